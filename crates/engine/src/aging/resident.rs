//! The processes of groups, and the memory of processes whose age is measured: private anonymous
//! and shared memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Result;
use omr_kernel::Kernel;
use omr_kernel::maps::{self, Backing, Layout, Mapping};
use omr_kernel::memcg::Group;
use omr_kernel::pagemap::Pagemap;
use omr_kernel::process::{self, Process};
use omr_kernel::ranges::{Ranges, length};
use omr_machine::groups::below::groups_below;
use omr_policy::age::Bounds;
use omr_units::Bytes;

/// A file in tmpfs, or shared memory without a name: device and inode.
type File = ((u32, u32), u64);

/// A process and its mappings.
pub struct Mapped {
    /// The process.
    pub process: Process,
    /// The group that accounts for its memory: the nearest with a memory controller, below the
    /// mount.
    pub group: PathBuf,
    layout: Layout,
    pagemap: Pagemap<'static>,
    changed: Ranges,
}

/// Returns the processes of a group and of the groups below it, without this process, and the
/// number of processes that could not be read. Processes that end meanwhile are left out.
pub fn find_processes(kernel: &Kernel, top: &Group) -> Result<(Vec<Mapped>, usize)> {
    let groups: HashSet<PathBuf> = groups_below(top)?.into_iter().map(|(_, path)| path).collect();
    let (mut found, mut left_out) = (Vec::new(), 0);
    for pid in process::read_all(kernel)? {
        let Ok(process) = Process::open(kernel, pid) else { continue };
        if pid == std::process::id() || process.stat().is_kernel_thread() || process.stat().is_zombie() {
            continue;
        }
        let Ok(Some(path)) = process.read_group() else { continue };
        let Some(group) = path.ancestors().find(|path| groups.contains(*path)).map(Path::to_path_buf) else { continue };
        let opened =
            Layout::read(process.dir()).and_then(|layout| Ok((layout, Pagemap::open(process.dir(), kernel.page())?)));
        match opened {
            Ok((layout, pagemap)) => found.push(Mapped { process, group, layout, pagemap, changed: Ranges::new() }),
            Err(err) if err.is_denied() => left_out += 1,
            Err(err) if err.is_gone() => {}
            Err(err) => return Err(err.into()),
        }
    }
    // Sorted, so that the order is the same in each run.
    found.sort_by(|a, b| (&a.group, a.process.stat().pid).cmp(&(&b.group, b.process.stat().pid)));
    Ok((found, left_out))
}

impl Mapped {
    /// Returns the resident ranges of each counted mapping. The error is [`is_gone`] if the process
    /// has ended or runs another program.
    ///
    /// [`is_gone`]: omr_kernel::Error::is_gone
    pub fn resident(&mut self) -> omr_kernel::Result<Vec<(Mapping, Ranges)>> {
        // Before 6.7 the page map of a process that has ended is empty, as if no memory were
        // resident. Updating the layout detects that.
        self.changed = self.changed.union(&self.layout.update()?);
        let mappings = self.layout.mappings().iter().filter(|mapping| is_counted(&self.process, mapping));
        let counted: Vec<&Mapping> = mappings.collect();
        let (present, _) = self.pagemap.residency(&counted.iter().map(|mapping| mapping.range.clone()).collect())?;
        let each = counted.into_iter().map(|mapping| (mapping.clone(), present.within(&mapping.range)));
        Ok(each.filter(|(_, present)| !present.is_empty()).collect())
    }

    /// Returns the pages of private memory in these ranges that other processes share since
    /// `fork(2)`, each with its frame; `None`: the kernel does not show frames.
    pub fn pages_shared_by_fork(&mut self, resident: &Ranges) -> omr_kernel::Result<Vec<(u64, Option<u64>)>> {
        let mut found = Vec::new();
        for range in resident.as_slice() {
            self.pagemap.for_each_shared(range.clone(), |at, frame| found.push((at, frame)))?;
        }
        Ok(found)
    }

    /// Returns the addresses whose mapping has changed since the process was found.
    pub fn changed(&self) -> &Ranges {
        &self.changed
    }
}

/// Returns true if the memory of this mapping is counted.
pub fn is_counted(process: &Process, mapping: &Mapping) -> bool {
    match (mapping.backing, mapping.shared) {
        (Backing::Anonymous, _) => true,
        (Backing::File, true) => maps::is_shared_memory(process.dir(), mapping),
        _ => false,
    }
}

/// The unused state of a range of addresses, for each of the requested times.
pub struct Idle {
    /// The addresses.
    pub range: Range<u64>,
    /// For each time: the range was surely unused.
    pub least: Vec<bool>,
    /// For each time: the range may have been unused.
    pub most: Vec<bool>,
}

/// Sums of the memory of processes by group, in which shared memory counts once.
pub struct Sums {
    times: usize,
    page: u64,
    groups: BTreeMap<PathBuf, (Bytes, Vec<Bounds>)>,
    shared: HashMap<File, Shared>,
    /// Pages that processes share since `fork(2)`, by frame.
    forked: HashMap<u64, Forked>,
}

/// A page with the first group that has it mapped. For each time, the page is in the *least* if all
/// its processes call it surely unused, and in the *most* if none calls it used.
struct Forked {
    group: Rc<Path>,
    least: Vec<bool>,
    most: Vec<bool>,
}

struct Shared {
    group: PathBuf,
    present: Vec<Range<u64>>,
    /// For each time: the ranges that are not surely unused, and those that are used.
    not_least: Vec<Vec<Range<u64>>>,
    not_most: Vec<Vec<Range<u64>>>,
}

impl Sums {
    /// Returns empty sums for this number of times.
    pub fn new(times: usize, page: Bytes) -> Self {
        Sums { times, page: page.0, groups: BTreeMap::new(), shared: HashMap::new(), forked: HashMap::new() }
    }

    /// Adds pages of [`Mapped::pages_shared_by_fork`]. A page of unknown frame may be one that
    /// another process uses, so it is never surely unused.
    pub fn add_forked(&mut self, group: &Path, pages: &[(u64, Option<u64>)], idle: &[Idle]) {
        let (times, page) = (self.times, self.page);
        let name: Rc<Path> = group.into();
        for &(at, frame) in pages {
            let known =
                idle.get(idle.partition_point(|idle| idle.range.end <= at)).filter(|idle| idle.range.start <= at);
            let of = |of: fn(&Idle) -> &Vec<bool>, time: usize| known.is_some_and(|idle| of(idle)[time]);
            let Some(frame) = frame else {
                let (memory, bounds) = self.of_group(group);
                *memory += Bytes(page);
                for (time, bounds) in bounds.iter_mut().enumerate() {
                    bounds.most += Bytes(if of(|idle| &idle.most, time) { page } else { 0 });
                }
                continue;
            };
            let all = || Forked { group: Rc::clone(&name), least: vec![true; times], most: vec![true; times] };
            let forked = self.forked.entry(frame).or_insert_with(all);
            for time in 0..times {
                forked.least[time] &= of(|idle| &idle.least, time);
                forked.most[time] &= of(|idle| &idle.most, time);
            }
        }
    }

    /// Adds the resident memory of a mapping. `idle`: the regions with known ages, lowest first.
    /// Memory in no region was mapped or read in since, so it was used.
    pub fn add(&mut self, group: &Path, mapping: &Mapping, resident: &Ranges, idle: &[Idle]) {
        let first = idle.partition_point(|idle| idle.range.end <= mapping.range.start);
        let idle: Vec<&Idle> = idle[first..].iter().take_while(|idle| idle.range.start < mapping.range.end).collect();
        // For one time: the ranges that are surely unused, or that may be.
        let ranges = |of: fn(&Idle) -> &Vec<bool>, time: usize| -> Ranges {
            let known: Ranges = idle.iter().filter(|idle| of(idle)[time]).map(|idle| idle.range.clone()).collect();
            known.intersection(resident)
        };
        let Some(file) = mapping.file.filter(|_| mapping.shared) else {
            let (memory, bounds) = self.of_group(group);
            *memory += resident.bytes();
            for (time, bounds) in bounds.iter_mut().enumerate() {
                *bounds += Bounds {
                    least: ranges(|idle| &idle.least, time).bytes(),
                    most: ranges(|idle| &idle.most, time).bytes(),
                };
            }
            return;
        };
        let times = self.times;
        let shared = self.shared.entry((file.device, file.inode)).or_insert_with(|| Shared {
            group: group.into(),
            present: Vec::new(),
            not_least: vec![Vec::new(); times],
            not_most: vec![Vec::new(); times],
        });
        let in_file = |ranges: &Ranges| -> Vec<Range<u64>> {
            let place = |address: u64| address - mapping.range.start + file.offset;
            ranges.as_slice().iter().map(|range| place(range.start)..place(range.end)).collect()
        };
        shared.present.extend(in_file(resident));
        for time in 0..times {
            shared.not_least[time].extend(in_file(&resident.without(&ranges(|idle| &idle.least, time))));
            shared.not_most[time].extend(in_file(&resident.without(&ranges(|idle| &idle.most, time))));
        }
    }

    fn of_group(&mut self, group: &Path) -> &mut (Bytes, Vec<Bounds>) {
        let times = self.times;
        self.groups.entry(group.into()).or_insert_with(|| (Bytes::ZERO, vec![Bounds::default(); times]))
    }

    /// Returns each group's memory, and the bounds of its unused part for each time.
    pub fn finish(mut self) -> BTreeMap<PathBuf, (Bytes, Vec<Bounds>)> {
        for (_, shared) in std::mem::take(&mut self.shared) {
            let present = sorted(shared.present);
            let (memory, bounds) = self.of_group(&shared.group);
            *memory += present.bytes();
            for ((bounds, not_least), not_most) in bounds.iter_mut().zip(shared.not_least).zip(shared.not_most) {
                *bounds += Bounds {
                    least: present.without(&sorted(not_least)).bytes(),
                    most: present.without(&sorted(not_most)).bytes(),
                };
            }
        }
        let page = Bytes(self.page);
        for (_, Forked { group, least, most }) in std::mem::take(&mut self.forked) {
            let (memory, bounds) = self.of_group(&group);
            *memory += page;
            for ((bounds, least), most) in bounds.iter_mut().zip(least).zip(most) {
                bounds.least += Bytes(if least { page.0 } else { 0 });
                bounds.most += Bytes(if most { page.0 } else { 0 });
            }
        }
        self.groups
    }
}

fn sorted(mut ranges: Vec<Range<u64>>) -> Ranges {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.into_iter().collect()
}

/// Ranges nearer to each other than this become one region. A sample in the gap sees no use, so the
/// gap must be short.
const NEAR: Bytes = Bytes::kib(16);

/// Cuts ranges into at most `most` regions of nearly the same size. No region is smaller than half
/// of `smallest`, unless its range is. If there are too many ranges, the shortest are left out.
pub fn cut_regions(ranges: &Ranges, smallest: Bytes, most: usize, page: Bytes) -> Vec<Range<u64>> {
    let mut ranges = ranges.bridged(NEAR).as_slice().to_vec();
    ranges.sort_by_key(|range| std::cmp::Reverse(length(range)));
    ranges.truncate(most);
    ranges.sort_by_key(|range| range.start);
    let parts = |size: Bytes| ranges.iter().map(move |range| length(range).0.div_ceil(size.0));
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let mut size = smallest;
    // The loop ends: if regions are as long as the longest range, there is one for each range.
    while parts(size).sum::<u64>() > most.max(1) {
        size = Bytes(size.0.saturating_mul(2));
    }
    ranges.iter().zip(parts(size)).flat_map(|(range, parts)| split_range(range, parts, page)).collect()
}

/// Splits a range into this number of parts of whole pages, or into single pages if it has fewer.
pub fn split_range(range: &Range<u64>, parts: u64, page: Bytes) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, pages) = (range.start, length(range).0 / page.0);
    let parts = parts.clamp(1, pages.max(1));
    let border = move |part: u64| start + pages / parts * part * page.0 + (pages % parts).min(part) * page.0;
    (0..parts).map(move |part| border(part)..border(part + 1))
}

#[cfg(test)]
mod tests {
    use omr_kernel::maps::FilePart;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{Area, PAGE, anon, set_mappings, set_process, set_shared_file};

    #[test]
    fn the_processes_of_a_group_are_those_with_memory_that_can_be_read() {
        let files = [("memory.stat", ""), ("cgroup.procs", "")];
        let mut root = FakeRoot::in_memory(Release::V6_12).group("a", &files).group("a/b", &files);
        root = root.group("a/b/c", &[("cgroup.procs", "")]).group("other", &files);
        for (pid, group) in [(14, "a"), (13, "a/b"), (12, "a/b/c"), (15, "other"), (std::process::id(), "a")] {
            set_process(&root, pid, group, &[anon(0x10_0000, "p")]);
        }
        let ended = |pid: u32, state: char, flags: u32| {
            set_process(&root, pid, "a", &[anon(0x10_0000, "p")]);
            let stat = format!("{pid} (a) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 9 0\n");
            root.write(format!("proc/{pid}/stat"), stat);
        };
        ended(16, 'Z', 0);
        ended(17, 'S', 0x20_0000);
        // A process that has ended in the meantime.
        set_process(&root, 18, "a", &[]);
        root.remove("proc/18/maps");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let (found, left_out) = find_processes(&kernel, &top).expect("processes");
        let told: Vec<_> = found.iter().map(|of| (of.process.stat().pid, of.group.to_str().expect("text"))).collect();
        // The group without a memory controller is accounted for above it.
        assert_eq!((told, left_out), (vec![(14, "a"), (12, "a/b"), (13, "a/b")], 0));
        root.remove("proc/14/pagemap");
        root.write("proc/14/maps", "");
        assert_eq!(find_processes(&kernel, &top).expect("processes").0.len(), 2);
    }

    #[test]
    fn counted_memory_is_anonymous_or_shared_and_changes_are_noticed() {
        let root = FakeRoot::in_memory(Release::V6_12).group("a", &[("memory.stat", ""), ("cgroup.procs", "")]);
        let shared = |at, inode| Area { at, pages: "pp", file: inode, shared: true, ..anon(0, "") };
        let areas = [
            anon(0x10_0000, "p-ps"),
            Area { file: 5, ..anon(0x20_0000, "pp") },
            shared(0x30_0000, 6),
            shared(0x40_0000, 7),
            anon(0x50_0000, "--"),
        ];
        set_process(&root, 11, "a", &areas);
        // Of the two shared mappings one is a file in tmpfs.
        set_shared_file(&root, 11, &areas[2], 2);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let (mut found, _) = find_processes(&kernel, &top).expect("processes");
        let resident = |mapped: &mut Mapped| -> Vec<_> {
            mapped
                .resident()
                .expect("readable")
                .into_iter()
                .flat_map(|(_, present)| present.as_slice().to_vec())
                .collect()
        };
        let expected = [0x10_0000..0x10_1000, 0x10_2000..0x10_3000, 0x30_0000..0x30_2000];
        assert_eq!(resident(&mut found[0]), expected);
        assert!(found[0].changed().is_empty());
        set_mappings(&root, 11, &[areas[0], areas[1]]);
        assert_eq!(resident(&mut found[0]), expected[..2]);
        assert_eq!(found[0].changed().as_slice(), [0x30_0000..0x30_2000, 0x40_0000..0x40_2000, 0x50_0000..0x50_2000]);
        root.write("proc/11/maps", "");
        assert!(found[0].resident().expect_err("it has ended").is_gone());
    }

    fn mapping(range: Range<u64>, inode: u64, offset: u64) -> Mapping {
        let file = (inode > 0).then_some(FilePart { device: (0, 1), inode, offset });
        let backing = if inode > 0 { Backing::File } else { Backing::Anonymous };
        Mapping { range, backing, shared: inode > 0, file }
    }

    fn idle(range: Range<u64>, least: bool, most: bool) -> Idle {
        Idle { range, least: vec![least], most: vec![most] }
    }

    fn pages(least: u64, most: u64) -> Vec<Bounds> {
        vec![Bounds { least: Bytes(least * PAGE), most: Bytes(most * PAGE) }]
    }

    #[test]
    fn regions_have_similar_sizes_and_a_limited_number() {
        let ranges = Ranges::from_iter([0..10 * PAGE, 40 * PAGE..41 * PAGE, 1000 * PAGE..1100 * PAGE]);
        let all = |most| cut_regions(&ranges, Bytes(4 * PAGE), most, Bytes(PAGE));
        let regions = all(1000);
        assert_eq!(regions.iter().cloned().collect::<Ranges>(), ranges, "nothing is left out");
        assert!(
            regions.iter().all(|region| region.start % PAGE == 0 && length(region) <= Bytes(4 * PAGE)),
            "{regions:?}"
        );
        assert_eq!(regions.len(), 3 + 1 + 25);
        assert_eq!(all(12).iter().cloned().collect::<Ranges>(), ranges);
        assert!(all(12).len() <= 12, "{:?}", all(12));
        assert_eq!(all(2), [0..10 * PAGE, 1000 * PAGE..1100 * PAGE], "the shortest is left out");
        assert_eq!(split_range(&(0..5 * PAGE), 2, Bytes(PAGE)).collect::<Vec<_>>(), [0..3 * PAGE, 3 * PAGE..5 * PAGE]);
        assert_eq!(split_range(&(0..PAGE), 2, Bytes(PAGE)).count(), 1);
        let near = Ranges::from_iter([0..PAGE, 4 * PAGE..5 * PAGE, 10 * PAGE..11 * PAGE]);
        assert_eq!(cut_regions(&near, Bytes(64 * PAGE), 9, Bytes(PAGE)), [0..5 * PAGE, 10 * PAGE..11 * PAGE]);
        assert!(cut_regions(&Ranges::new(), Bytes(4 * PAGE), 9, Bytes(PAGE)).is_empty());
    }

    #[test]
    fn private_memory_is_added_and_shared_memory_counts_once_and_as_used_by_anybody() {
        let (a, b) = (Path::new("a"), Path::new("b"));
        let mut sums = Sums::new(1, Bytes(PAGE));
        let resident = Ranges::from_iter([0..8 * PAGE]);
        // Eight pages: two surely unused, two perhaps unused, two used, and two new.
        let known = [
            idle(0..2 * PAGE, true, true),
            idle(2 * PAGE..4 * PAGE, false, true),
            idle(4 * PAGE..6 * PAGE, false, false),
        ];
        sums.add(a, &mapping(0..8 * PAGE, 0, 0), &resident, &known);
        sums.add(b, &mapping(0..8 * PAGE, 0, 0), &resident, &known);
        // Shared: b has the same part at another address, and has used a page of it.
        sums.add(a, &mapping(0..4 * PAGE, 9, 0), &Ranges::from_iter([0..4 * PAGE]), &[idle(0..4 * PAGE, true, true)]);
        let there = mapping(100 * PAGE..102 * PAGE, 9, 2 * PAGE);
        let resident = Ranges::from_iter([100 * PAGE..102 * PAGE]);
        let known = [idle(100 * PAGE..101 * PAGE, false, false), idle(101 * PAGE..102 * PAGE, true, true)];
        sums.add(b, &there, &resident, &known);
        let found = sums.finish();
        assert_eq!(found[a], (Bytes(12 * PAGE), pages(2 + 3, 4 + 3)));
        assert_eq!(found[b], (Bytes(8 * PAGE), pages(2, 4)));
    }

    #[test]
    fn memory_shared_since_a_fork_counts_once_and_is_used_if_any_process_uses_it() {
        let (a, b) = (Path::new("a"), Path::new("b"));
        let mut sums = Sums::new(1, Bytes(PAGE));
        let known = [idle(0..2 * PAGE, true, true), idle(2 * PAGE..3 * PAGE, false, true)];
        // Frames 1 and 2 are surely unused here, 3 may be, 4 is new.
        sums.add_forked(a, &[(0, Some(1)), (PAGE, Some(2)), (2 * PAGE, Some(3)), (3 * PAGE, Some(4))], &known);
        // The child has used frame 2, in whichever group it is.
        sums.add_forked(
            b,
            &[(0, Some(1)), (PAGE, Some(2))],
            &[idle(0..PAGE, true, true), idle(PAGE..2 * PAGE, false, false)],
        );
        // Without frames they may be the same.
        sums.add_forked(
            b,
            &[(0, None), (PAGE, None)],
            &[idle(0..PAGE, true, true), idle(PAGE..2 * PAGE, false, false)],
        );
        let found = sums.finish();
        assert_eq!(found[a], (Bytes(4 * PAGE), pages(1, 2)));
        assert_eq!(found[b], (Bytes(2 * PAGE), pages(0, 1)));
    }
}
