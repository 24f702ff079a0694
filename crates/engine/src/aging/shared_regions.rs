//! Shared memory that processes have mapped: shared buffers of databases, for example.
//!
//! `file_mapped` of `memory.stat` only counts pages that are in a page table now. Memory of a
//! mapping that is in no page table, because the process that used it has ended, is used through
//! page faults, which set accessed bits. So MGLRU sees its use, unlike that of a file in tmpfs that
//! programs read and write.

use std::collections::HashMap;

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_kernel::Kernel;
use omr_kernel::maps::{self, Detail, Layout, Mapping, SharedMemory};
use omr_kernel::memcg::Group;
use omr_kernel::process::Process;
use omr_units::Bytes;

use super::no_recency::processes_by_size;

/// The most processes that are read. Most programs have mapped a region in all their processes.
const MOST_PROCESSES: usize = 64;
/// The most shared files that are opened.
const MOST_FILES: usize = 1024;

/// Returns the memory in RAM of all shared memory that one of the group's processes has mapped from
/// its beginning to its end. Other mappings do not count, nor what may not be read.
pub fn read(kernel: &Kernel, group: &Group, stop: &Flag) -> Result<Bytes> {
    let mut files = Files::default();
    for (_, process) in processes_by_size(kernel, group)?.into_iter().take(MOST_PROCESSES) {
        if stop.is_set() || files.opened >= MOST_FILES {
            break;
        }
        // The process has ended, or this process may not read it.
        let Ok(layout) = Layout::read(process.dir()) else { continue };
        files.add(&process, layout.mappings());
    }
    Ok(files.resident.into_values().sum())
}

/// A file: device and inode.
type File = ((u32, u32), u64);

/// The files that a process has mapped as a whole.
#[derive(Default)]
struct Files {
    /// Their memory in RAM.
    resident: HashMap<File, Bytes>,
    /// How many files were opened. One that a process has mapped in parts is opened for each part.
    opened: usize,
}

impl Files {
    /// Adds the files of a process that are not known yet.
    fn add(&mut self, process: &Process, mappings: &[Mapping]) {
        // Reading them walks the page tables, so they are read only where there is a new file.
        let mut details: Option<Vec<Detail>> = None;
        for mapping in mappings.iter().filter(|mapping| mapping.shared) {
            let Some(file) = mapping.file else { continue };
            let known = (file.device, file.inode);
            if self.resident.contains_key(&known) {
                continue;
            }
            if self.opened >= MOST_FILES {
                return;
            }
            self.opened += 1;
            let memory = maps::shared_memory(process.dir(), mapping).filter(|memory| is_whole(mapping, memory));
            let resident = memory.and_then(|memory| {
                let details = details.get_or_insert_with(|| maps::read_smaps(process.dir()).unwrap_or_default());
                let detail = details.iter().find(|detail| detail.mapping == *mapping)?;
                Some(memory.allocated - detail.swapped?)
            });
            if let Some(resident) = resident {
                self.resident.insert(known, resident);
            }
        }
    }
}

/// Returns true if the mapping has all of the file. Then `Swap` of smaps is that of the whole file.
fn is_whole(mapping: &Mapping, memory: &SharedMemory) -> bool {
    let length = mapping.range.end - mapping.range.start;
    mapping.file.is_some_and(|file| file.offset == 0) && Bytes(length) >= memory.size
}

/// Returns the shared memory whose use MGLRU may not see: files in tmpfs that programs only read
/// and write.
///
/// `shmem`: all shared memory of the group. `unmapped`: the part that is in no page table.
/// `regions`: the memory of [`read`]. More of it than the group has belongs to another group at
/// least in part, and then it is not known how much of it is this group's.
pub fn unseen(shmem: Bytes, unmapped: Bytes, regions: Bytes, little: Bytes) -> Bytes {
    match regions <= shmem + little {
        true => unmapped.min(shmem - regions),
        false => unmapped,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{Area, PAGE, anon, set_process, set_shared_file};

    #[test]
    fn each_region_that_is_mapped_as_a_whole_counts_once_without_its_part_in_swap() {
        let root = FakeRoot::in_memory(Release::V6_12).group("a", &[("memory.stat", ""), ("cgroup.procs", "")]);
        let region = Area { file: 7, shared: true, ..anon(0x10_0000, "pps-") };
        let part = Area { at: 0x20_0000, file: 8, ..region };
        for pid in [1, 2] {
            set_process(&root, pid, "a", &[region, part, anon(0x30_0000, "pp")]);
            set_shared_file(&root, pid, &region, 4);
            set_shared_file(&root, pid, &part, 5);
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        assert_eq!(read(&kernel, &group, &Flag::default()).expect("readable"), Bytes(3 * PAGE));
        // The first process has no smaps any more, and the second one tells.
        root.remove("proc/1/smaps");
        assert_eq!(read(&kernel, &group, &Flag::default()).expect("readable"), Bytes(3 * PAGE));
        let set = Flag::default();
        set.set();
        assert_eq!(read(&kernel, &group, &set).expect("readable"), Bytes::ZERO);
    }

    #[test]
    fn shared_memory_in_mapped_regions_is_seen_and_the_rest_is_not() {
        let unseen = |shmem, unmapped, regions| {
            super::unseen(Bytes::mib(shmem), Bytes::mib(unmapped), Bytes::mib(regions), Bytes::mib(4))
        };
        // PostgreSQL: nearly all is one region, of which a process has mapped a little just now.
        assert_eq!(unseen(200, 192, 198), Bytes::mib(2));
        assert_eq!(unseen(200, 192, 203), Bytes::ZERO, "read at slightly different times");
        // Files in tmpfs beside it.
        assert_eq!(unseen(300, 292, 200), Bytes::mib(100));
        assert_eq!(unseen(300, 50, 200), Bytes::mib(50));
        // Only files, or processes that may not be read.
        assert_eq!(unseen(200, 192, 0), Bytes::mib(192));
        // A region of another group.
        assert_eq!(unseen(200, 192, 1000), Bytes::mib(192));
    }

    #[test]
    fn a_user_who_maps_a_file_in_many_parts_does_not_have_each_opened() {
        let stat = "7 (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0";
        let root = FakeRoot::captured(Release::V6_12).proc("7/stat", stat);
        let kernel = Kernel::open(root.path()).expect("a root");
        let process = Process::open(&kernel, 7).expect("a process");
        let mut mappings = Vec::new();
        for part in 0..65_000u64 {
            let (begin, end) = (part << 13, (part << 13) + 4096);
            let line = format!("{begin:x}-{end:x} rw-s 1000 00:01 7 /dev/shm/a\n");
            maps::parse(line.as_bytes(), |mapping| mappings.push(mapping));
        }
        let mut files = Files::default();
        files.add(&process, &mappings[..10]);
        assert_eq!((files.opened, files.resident.len()), (10, 0));
        files.add(&process, &mappings);
        files.add(&process, &mappings);
        assert_eq!(files.opened, MOST_FILES);
    }

    #[test]
    fn only_a_mapping_of_the_whole_file_counts() {
        let mapping = |text: &str| {
            let mut found = None;
            maps::parse(text.as_bytes(), |mapping| found = Some(mapping));
            found.expect("a mapping")
        };
        let memory = |size| SharedMemory { size: Bytes(size), allocated: Bytes(4096) };
        let whole = mapping("10000-20000 rw-s 0 00:01 7 /dev/zero (deleted)\n");
        assert!(is_whole(&whole, &memory(0x10000)) && is_whole(&whole, &memory(100)));
        assert!(!is_whole(&whole, &memory(0x10001)));
        assert!(!is_whole(&mapping("10000-20000 rw-s 1000 00:01 7 /dev/shm/a\n"), &memory(0x10000)));
        assert!(!is_whole(&mapping("10000-20000 rw-s 0 00:00 0\n"), &memory(1)));
    }
}
