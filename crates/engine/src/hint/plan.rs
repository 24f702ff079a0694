//! Which of a process's memory a hint is about, and what is passed over.

use std::ffi::OsString;
use std::ops::Range;

use omr_actuate::Advice;
use omr_kernel::maps::{Backing, Detail, Mapping, Refusal};
use omr_kernel::pagemap::Pagemap;
use omr_kernel::ranges::{Ranges, length};
use omr_units::Bytes;
use serde::Serialize;

/// What somebody wants hinted.
#[derive(Clone, Debug)]
pub struct Selection {
    /// How.
    pub advice: Advice,
    /// Only these addresses.
    pub within: Option<Ranges>,
    /// Only this backing.
    pub backing: Option<Backing>,
}

/// Why a mapping is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// Others may use it, and the kernel passes over what they have mapped, page by page. Whether they
    /// have is told by no file that is cheap to read, so all that is `MAP_SHARED` is left out.
    Shared,
    /// Locked in memory.
    Locked,
    /// Pages of hugetlbfs.
    HugePages,
    /// Memory of a device. What of it is in the page table is told by no file.
    Device,
    /// There is no swap for it.
    NoSwap,
}

impl Skip {
    /// For people.
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

/// Bytes that were passed over, by reason: of what is in memory, and of devices what is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Mapped by other processes as well.
    pub shared: Bytes,
    /// Locked in memory.
    pub locked: Bytes,
    /// Of hugetlbfs.
    pub huge_pages: Bytes,
    /// Mapped from a device.
    pub device_mapped: Bytes,
    /// Anonymous, while there is no swap.
    pub no_swap: Bytes,
}

impl Skipped {
    /// Adds some.
    pub fn add(&mut self, skip: Skip, bytes: Bytes) {
        *match skip {
            Skip::Shared => &mut self.shared,
            Skip::Locked => &mut self.locked,
            Skip::HugePages => &mut self.huge_pages,
            Skip::Device => &mut self.device_mapped,
            Skip::NoSwap => &mut self.no_swap,
        } += bytes;
    }

    /// Adds those of another process.
    pub fn add_all(&mut self, other: &Skipped) {
        other.each().into_iter().for_each(|(skip, bytes)| self.add(skip, bytes));
    }

    /// Each reason with its bytes.
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
    /// What is selected of it.
    pub selected: Ranges,
    /// What is in memory of it, as far as it is selected.
    pub present: Ranges,
    /// What the hint is about: for [`Advice::WillNeed`] what is not in memory, else what is. Nothing
    /// where it is passed over.
    pub hint: Ranges,
    /// Why.
    pub skip: Option<Skip>,
}

impl Part {
    /// Bytes that are passed over, and why.
    pub fn skipped(&self) -> Option<(Skip, Bytes)> {
        let skip = self.skip?;
        Some((skip, if skip == Skip::Device { &self.selected } else { &self.present }.bytes()))
    }
}

/// All of a selection.
#[derive(Debug, Default)]
pub struct Plan {
    /// Its mappings, lowest first.
    pub parts: Vec<Part>,
    /// Selected addresses where nothing is mapped.
    pub not_mapped: Bytes,
}

impl Plan {
    /// Looks for it. `has_swap`: anonymous memory can be paged out. `refusal` says what the kernel would
    /// refuse; a real run learns that from the kernel instead, since looking for it means to walk all
    /// page tables, and what is locked may change before the hint is given.
    pub fn find(
        mappings: &[Mapping],
        pagemap: &mut Pagemap,
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
        // One look for many mappings: each is a system call.
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
        let not_mapped = selection.within.as_ref().map(|within| within.without(&mapped).bytes());
        plan.not_mapped = not_mapped.unwrap_or_default();
        Ok(plan)
    }

    /// What the hint is about, in the order in which it is given: private memory of nothing but swap
    /// first, then files, each by address. Which of it was used last no file tells that is cheap to read.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let of = |is_wanted: fn(Backing) -> bool| {
            let parts = self.parts.iter().filter(move |part| is_wanted(part.mapping.backing));
            parts.flat_map(|part| part.hint.as_slice().iter().cloned())
        };
        of(|backing| backing == Backing::Anonymous).chain(of(|backing| backing != Backing::Anonymous)).collect()
    }

    /// What is passed over.
    pub fn skipped(&self) -> Skipped {
        let mut skipped = Skipped::default();
        self.parts.iter().filter_map(Part::skipped).for_each(|(skip, bytes)| skipped.add(skip, bytes));
        skipped
    }

    /// What may be memory of a device: all that is selected of mappings of files of which nothing is in the page table.
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
    /// Its file or the kernel's word for it.
    pub name: String,
    /// What would be hinted.
    pub hint: Bytes,
    pub skip: Option<Skip>,
}

impl Line {
    /// The line of a mapping.
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

/// A range as the user names it.
pub fn text(range: &Range<u64>) -> String {
    format!("{:x}-{:x}", range.start, range.end)
}

/// What smaps says of an address.
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
    fn anonymous_memory_comes_first_and_what_is_passed_over_is_counted() {
        let plan = Plan {
            parts: vec![
                part(0x1000, Backing::File, None),
                part(0x10000, Backing::Anonymous, None),
                part(0x20000, Backing::Anonymous, Some(Skip::Locked)),
                part(0x30000, Backing::File, Some(Skip::Shared)),
                Part { present: Ranges::new(), ..part(0x40000, Backing::File, Some(Skip::Device)) },
            ],
            not_mapped: Bytes::ZERO,
        };
        assert_eq!(plan.ranges(), [0x10000..0x12000, 0x1000..0x3000]);
        let skipped = plan.skipped();
        assert_eq!((skipped.locked, skipped.shared, skipped.no_swap), (Bytes(0x2000), Bytes(0x2000), Bytes::ZERO));
        assert_eq!(skipped.device_mapped, Bytes(0x4000), "all of it, as no file tells what is in memory");
        assert_eq!(plan.without_pages(), [0x40000..0x44000]);
    }
}
