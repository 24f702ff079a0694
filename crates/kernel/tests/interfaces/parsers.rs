//! All parsers of the kernel's files, for both fuzzers. `fuzz/` includes this file.

use std::path::Path;

use omr_kernel::hibernate::parse_availability;
use omr_kernel::memcg::MemoryStat;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::process::{ProcessMemory, ProcessStat, Status, parse_group, parse_is_first_user_namespace};
use omr_kernel::stat::Stat;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{buddyinfo, kmsg, lru_gen, maps, mounts, numa, psi, swap, zoneinfo};

/// Gives a text to a parser. The first byte of the input chooses the parser.
pub fn parse(input: &[u8]) {
    let Some((which, text)) = input.split_first() else { return };
    match which % 18 {
        0 => maps::parse(text, |mapping| assert!(mapping.range.start <= mapping.range.end)),
        1 => maps::parse_smaps(text, |_| {}),
        2 => drop(MemoryStat::parse(text)),
        3 => drop(Meminfo::parse(text)),
        4 => drop(Vmstat::parse(text)),
        5 => drop(Stat::parse(text)),
        6 => drop(ProcessStat::parse(text)),
        7 => drop(Status::parse(text)),
        8 => drop(ProcessMemory::parse(text)),
        9 => drop((parse_group(text), parse_is_first_user_namespace(text))),
        10 => drop(psi::parse_some_total(text)),
        11 => drop(zoneinfo::parse(text)),
        12 => drop(buddyinfo::parse(text)),
        13 => drop(kmsg::parse_record(text)),
        14 => {
            mounts::MountDevice::parse(text);
            let _ = mounts::find(&mounts::parse(text), Path::new("/a"), b"cgroup2");
        }
        15 => drop(swap::parse(text)),
        16 => {
            numa::parse_numa_stat(text);
            std::str::from_utf8(text).map(numa::parse_list).ok();
        }
        _ => {
            parse_availability(text, text);
            lru_gen::Enabled::parse(text);
        }
    }
}
