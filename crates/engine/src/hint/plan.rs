//! The plan of a hint: the memory of a process to hint, and the memory to skip.

use std::ffi::OsString;
use std::ops::Range;

use omr_actuate::Advice;
use omr_kernel::maps::{Backing, Detail, Mapping, Refusal};
use omr_kernel::pagemap::Pagemap;
use omr_kernel::ranges::{Ranges, length};
use omr_units::Bytes;
use serde::Serialize;

use super::layout::Expected;

/// The memory that a user wants hinted.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The hint.
    pub advice: Advice,
    /// Only these addresses; `None`: all.
    pub within: Option<Ranges>,
    /// Only this backing; `None`: any.
    pub backing: Option<Backing>,
    /// The report names all ranges, also those that were hinted as asked.
    pub all_ranges: bool,
    /// The run ends when the layout is another.
    pub expected: Expected,
}

impl Selection {
    /// Returns all memory of a process.
    pub fn all(advice: Advice) -> Self {
        Selection { advice, within: None, backing: None, all_ranges: false, expected: Expected::default() }
    }
}

/// The reason why a mapping is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// Shared with other processes. The kernel skips each page that another process maps, and no
    /// file that is cheap to read shows these pages, so all `MAP_SHARED` mappings are skipped.
    Shared,
    /// Locked in memory.
    Locked,
    /// Pages of hugetlbfs.
    HugePages,
    /// Memory of a device. No file shows the part of it that is in the page table.
    Device,
    /// Anonymous memory without swap.
    NoSwap,
}

impl Skip {
    /// Returns the reason in a few words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Skip::Shared => "shared",
            Skip::Locked => "locked",
            Skip::HugePages => "huge pages",
            Skip::Device => "mapped from a device",
            Skip::NoSwap => "without swap",
        }
    }
}

impl From<Refusal> for Skip {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Locked => Skip::Locked,
            Refusal::HugePages => Skip::HugePages,
            Refusal::Device => Skip::Device,
        }
    }
}

/// Skipped bytes by reason: resident memory, or mapped memory for devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Mapped by other processes, too.
    pub shared: Bytes,
    /// Locked in memory.
    pub locked: Bytes,
    /// Pages of hugetlbfs.
    pub huge_pages: Bytes,
    /// Mapped from a device.
    pub device_mapped: Bytes,
    /// Anonymous memory without swap.
    pub no_swap: Bytes,
}

impl Skipped {
    /// Adds skipped bytes.
    pub fn add(&mut self, skip: Skip, bytes: Bytes) {
        *match skip {
            Skip::Shared => &mut self.shared,
            Skip::Locked => &mut self.locked,
            Skip::HugePages => &mut self.huge_pages,
            Skip::Device => &mut self.device_mapped,
            Skip::NoSwap => &mut self.no_swap,
        } += bytes;
    }

    /// Adds the skipped bytes of another process.
    pub fn add_all(&mut self, other: &Skipped) {
        other.each().into_iter().for_each(|(skip, bytes)| self.add(skip, bytes));
    }

    /// Returns each reason with its bytes.
    pub fn each(&self) -> [(Skip, Bytes); 5] {
        [
            (Skip::Shared, self.shared),
            (Skip::Locked, self.locked),
            (Skip::HugePages, self.huge_pages),
            (Skip::Device, self.device_mapped),
            (Skip::NoSwap, self.no_swap),
        ]
    }
}

/// One mapping of a selection.
#[derive(Debug)]
pub struct Part {
    /// The mapping.
    pub mapping: Mapping,
    /// The selected part.
    pub selected: Ranges,
    /// The selected part that is resident.
    pub present: Ranges,
    /// The ranges to hint: for [`Advice::WillNeed`] those that are not resident, else those that
    /// are. Empty if the mapping is skipped.
    pub hint: Ranges,
    /// The reason to skip the mapping; `None`: it is hinted.
    pub skip: Option<Skip>,
}

impl Part {
    /// Returns the skipped bytes with the reason.
    pub fn skipped(&self) -> Option<(Skip, Bytes)> {
        let skip = self.skip?;
        Some((skip, if skip == Skip::Device { &self.selected } else { &self.present }.bytes()))
    }
}

/// A selection, mapping by mapping.
#[derive(Debug, Default)]
pub struct Plan {
    /// The mappings, lowest address first.
    pub parts: Vec<Part>,
    /// Selected addresses where nothing is mapped.
    pub not_mapped: Ranges,
}

impl Plan {
    /// Makes a plan. `has_swap`: anonymous memory can be paged out. `refusal` returns the reason
    /// why the kernel would refuse a mapping. A real run learns the reasons from the kernel
    /// instead: smaps walks all page tables, and a lock may change before the hint is given.
    pub fn new(
        mappings: &[Mapping],
        pagemap: &mut Pagemap<'_>,
        selection: &Selection,
        has_swap: bool,
        refusal: impl Fn(&Mapping) -> Option<Refusal>,
    ) -> omr_kernel::Result<Plan> {
        let mut plan = Plan::default();
        let (mut mapped, mut meant, mut all) = (Ranges::new(), Vec::new(), Ranges::new());
        for mapping in mappings {
            mapped.push(mapping.range.clone());
            let selected = match &selection.within {
                None => Ranges::from_iter([mapping.range.clone()]),
                Some(within) => within.within(&mapping.range),
            };
            let is_meant = selection.backing.is_none_or(|backing| backing == mapping.backing);
            if mapping.backing != Backing::Kernel && !selected.is_empty() && is_meant {
                all.append(&selected);
                meant.push((mapping, selected));
            }
        }
        // One call for many mappings, as each is a system call.
        let (present, swapped) = pagemap.residency(&all)?;
        for (mapping, selected) in meant {
            let (present, swapped) = (present.within(&mapping.range), swapped.within(&mapping.range));
            let skip = match (selection.advice, refusal(mapping)) {
                (Advice::WillNeed, _) => None,
                (_, Some(Refusal::Device)) => Some(Skip::Device),
                _ if mapping.shared => Some(Skip::Shared),
                (Advice::PageOut, _) if mapping.backing == Backing::Anonymous && !has_swap => Some(Skip::NoSwap),
                (_, refusal) => refusal.map(Skip::from),
            };
            let hint = match (skip, selection.advice, mapping.backing) {
                (Some(_), ..) => Ranges::new(),
                (None, Advice::WillNeed, Backing::Anonymous) => swapped,
                (None, Advice::WillNeed, _) => selected.without(&present),
                (None, ..) => present.clone(),
            };
            plan.parts.push(Part { mapping: mapping.clone(), selected, present, hint, skip });
        }
        let not_mapped = selection.within.as_ref().map(|within| within.without(&mapped));
        plan.not_mapped = not_mapped.unwrap_or_default();
        Ok(plan)
    }

    /// Returns the ranges to hint, in their order: anonymous memory first, then files, each by
    /// address. No file that is cheap to read shows which of them was used last.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let of = |is_wanted: fn(Backing) -> bool| {
            let parts = self.parts.iter().filter(move |part| is_wanted(part.mapping.backing));
            parts.flat_map(|part| part.hint.as_slice().iter().cloned())
        };
        of(|backing| backing == Backing::Anonymous).chain(of(|backing| backing != Backing::Anonymous)).collect()
    }

    /// Returns the skipped memory.
    pub fn skipped(&self) -> Skipped {
        let mut skipped = Skipped::default();
        self.parts.iter().filter_map(Part::skipped).for_each(|(skip, bytes)| skipped.add(skip, bytes));
        skipped
    }

    /// Returns the ranges that may be memory of a device: the selected parts of file mappings
    /// without a page in the page table.
    pub fn without_pages(&self) -> Vec<Range<u64>> {
        let is_without = |part: &&Part| part.mapping.backing == Backing::File && part.present.is_empty();
        self.parts.iter().filter(is_without).flat_map(|part| part.selected.as_slice().iter().cloned()).collect()
    }
}

/// One line of a dry run.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its addresses, in hexadecimal digits.
    pub range: String,
    pub size: Bytes,
    pub resident: Bytes,
    /// `anonymous` or `file`.
    pub kind: &'static str,
    /// The file, or the kernel's name for the mapping.
    pub name: String,
    /// The bytes that would be hinted.
    pub hint: Bytes,
    pub skip: Option<Skip>,
}

impl Line {
    /// Returns the line of a mapping.
    pub fn of(part: &Part, details: &[Detail]) -> Self {
        let range = &part.mapping.range;
        Line {
            range: text(range),
            size: length(range),
            resident: part.present.bytes(),
            kind: if part.mapping.backing == Backing::Anonymous { "anonymous" } else { "file" },
            name: detail(details, range.start).map(|detail| shown(&detail.name)).unwrap_or_default(),
            hint: part.hint.bytes(),
            skip: part.skip,
        }
    }
}

/// Returns a range as the user writes it.
pub fn text(range: &Range<u64>) -> String {
    format!("{:x}-{:x}", range.start, range.end)
}

/// Returns the smaps entry of an address.
pub fn detail(details: &[Detail], address: u64) -> Option<&Detail> {
    let at = details.partition_point(|detail| detail.mapping.range.end <= address);
    details.get(at).filter(|detail| detail.mapping.range.contains(&address))
}

fn shown(name: &OsString) -> String {
    omr_base::text::printable(&name.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, backing: Backing, skip: Option<Skip>) -> Part {
        let mapping = Mapping { range: start..start + 0x4000, backing, shared: false, file: None };
        let selected = Ranges::from_iter([mapping.range.clone()]);
        let present = Ranges::from_iter([start..start + 0x2000]);
        let hint = if skip.is_some() { Ranges::new() } else { present.clone() };
        Part { mapping, selected, present, hint, skip }
    }

    #[test]
    fn skipped_memory_of_several_processes_is_added_up_by_reason() {
        let all = [Skip::Shared, Skip::Locked, Skip::HugePages, Skip::Device, Skip::NoSwap];
        let mut skipped = Skipped::default();
        for (bytes, skip) in (1..).zip(all) {
            skipped.add(skip, Bytes(bytes));
        }
        let mut sum = skipped;
        sum.add_all(&skipped);
        assert_eq!(
            sum.each(),
            [2, 4, 6, 8, 10].map(Bytes).into_iter().zip(all).map(|(bytes, skip)| (skip, bytes)).collect::<Vec<_>>()[..]
        );
        let words = all.map(Skip::words);
        assert_eq!(words, ["shared", "locked", "huge pages", "mapped from a device", "without swap"]);
        assert_eq!(Skip::from(Refusal::HugePages), Skip::HugePages);
    }

    #[test]
    fn anonymous_memory_comes_first_and_skipped_memory_is_counted() {
        let plan = Plan {
            parts: vec![
                part(0x1000, Backing::File, None),
                part(0x10000, Backing::Anonymous, None),
                part(0x20000, Backing::Anonymous, Some(Skip::Locked)),
                part(0x30000, Backing::File, Some(Skip::Shared)),
                Part { present: Ranges::new(), ..part(0x40000, Backing::File, Some(Skip::Device)) },
            ],
            not_mapped: Ranges::new(),
        };
        assert_eq!(plan.ranges(), [0x10000..0x12000, 0x1000..0x3000]);
        let skipped = plan.skipped();
        assert_eq!((skipped.locked, skipped.shared, skipped.no_swap), (Bytes(0x2000), Bytes(0x2000), Bytes::ZERO));
        assert_eq!(skipped.device_mapped, Bytes(0x4000), "all of it, as no file shows the resident part");
        assert_eq!(plan.without_pages(), [0x40000..0x44000]);
    }
}
