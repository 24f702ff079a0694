//! No change of a kernel's file makes its parser panic, or any reader of the machine.

use std::cell::RefCell;
use std::path::Path;

use omr_kernel::block::SwapDisks;
use omr_kernel::damon::Damon;
use omr_kernel::dmi::Dmi;
use omr_kernel::hibernate::Hibernation;
use omr_kernel::lockdown::Lockdown;
use omr_kernel::lru_gen::Reader;
use omr_kernel::maps::{self, Layout};
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::numa::Nodes;
use omr_kernel::pagemap::Pagemap;
use omr_kernel::process::{self, Process, ProcessMemory, ProcessStat, Status};
use omr_kernel::stat::Stat;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{Kernel, buddyinfo, lru_gen, medium, mounts, numa, page_reporting, power_supply, probe, psi, swap};
use omr_testkit::{FakeRoot, Release};

use crate::{open, parsers};

/// The parser of a captured file, as in [`parsers::parse`].
fn parser(path: &str) -> Option<u8> {
    Some(match path {
        "self/maps" => 0,
        "self/smaps_rollup" => 1,
        "memory.stat" => 2,
        "meminfo" => 3,
        "vmstat" => 4,
        "stat" => 5,
        "self/stat" => 6,
        "self/status" => 7,
        "self/cgroup" => 9,
        "pressure/memory" | "memory.pressure" => 10,
        "zoneinfo" => 11,
        "buddyinfo" => 12,
        "self/mountinfo" => 14,
        "swaps" => 15,
        "memory.numa_stat" => 16,
        "power/disk" | "power/state" => 17,
        "kernel/debug/lru_gen" => 19,
        _ => return None,
    })
}

#[test]
fn no_change_of_a_file_makes_its_parser_panic() {
    let log = "PM: hibernation: Need to copy 67559 pages\n\
               PM: hibernation: Allocated 304344 kbytes in 3.26 seconds (93.35 MB/s)\n";
    let mut inputs = vec![
        [&[13], b"6,1234,5678,-;PM: hibernation: Need to copy 67559 pages\n".as_slice()].concat(),
        [&[17], b"none [integrity] confidentiality\n".as_slice()].concat(),
        [&[18], log.as_bytes()].concat(),
    ];
    for release in Release::ALL {
        for (path, bytes) in release.files("proc").chain(release.files("group")).chain(release.files("sys")) {
            inputs.extend(parser(path.to_str().unwrap_or_default()).map(|which| [&[which], bytes].concat()));
        }
    }
    assert!(inputs.len() > 40, "{}", inputs.len());
    omr_testkit::fuzz::feed(&inputs, parsers::parse);
}

/// A machine with all files that this crate reads.
fn machine() -> FakeRoot {
    let mut root = FakeRoot::in_memory(Release::V6_12).busy_group("app.scope");
    for (path, text) in [
        (
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram0 partition 4096 100 5\n/dev/vda partition 9 0 -2\n",
        ),
        ("sys/block/zram0/mm_stat", "4096 74 12288 0 12288 0 0 0 0\n"),
        ("sys/block/zram0/dev", "252:0\n"),
        ("sys/class/block/vda/dev", "254:0\n"),
        ("sys/class/block/vda/queue/rotational", "1\n"),
        ("sys/class/block/vda/size", "81920\n"),
        ("sys/class/block/vda/stat", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n"),
        ("sys/class/block/vda/inflight", "0 1\n"),
        ("sys/class/power_supply/BAT0/type", "Battery\n"),
        ("sys/class/power_supply/BAT0/scope", "System\n"),
        ("sys/class/power_supply/BAT0/status", "Discharging\n"),
        ("sys/class/power_supply/AC/type", "Mains\n"),
        ("sys/class/power_supply/AC/online", "1\n"),
        ("sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
        ("sys/devices/system/node/online", "0-1\n"),
        ("sys/devices/system/node/has_cpu", "0\n"),
        ("sys/devices/system/node/has_memory", "0-1\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
        ("sys/kernel/mm/numa/demotion_enabled", "true\n"),
        ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1\n"),
        ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
        ("sys/module/page_reporting/parameters/page_reporting_order", "9\n"),
        ("proc/7/comm", "app\n"),
        ("proc/7/cmdline", "app\0--flag\0"),
        ("proc/7/oom_score_adj", "200\n"),
        ("proc/7/uid_map", "         0          0 4294967295\n"),
    ] {
        root = root.file(path, text);
    }
    for (path, bytes) in Release::V6_12.files("proc/self") {
        root.write(Path::new("proc/7").join(path), bytes);
    }
    let smaps = format!("{}Rss: 8 kB\nSwap: 4 kB\nVmFlags: rd wr mr\n", maps_line());
    root.write("proc/7/smaps", smaps);
    root.write("proc/7/pagemap", [0x81u8, 0, 0, 0, 0, 0, 0, 0x80].repeat(64));
    root.write("proc/kpageflags", [0u8; 4096]);
    root
}

fn maps_line() -> String {
    let maps = omr_testkit::captured(Release::V6_12, "proc/self/maps");
    format!("{}\n", maps.lines().next().expect("a line"))
}

/// Calls the readers. What cannot be read is an error, or unknown.
fn read_all(kernel: &Kernel) {
    let mut buffer = Vec::new();
    let _ = kernel.read_boot_id();
    let _ = (Meminfo::read(kernel, &mut buffer), Vmstat::read(kernel, &mut buffer), Stat::read(kernel, &mut buffer));
    for zone in omr_kernel::zoneinfo::read(kernel, &mut buffer).unwrap_or_default() {
        // One that is as large as the machine that the file is of.
        if zone.spanned.0 < 1 << 14 {
            let _ = page_reporting::read_reported(kernel, &zone, 9);
        }
    }
    let _ = (buddyinfo::read(kernel, &mut buffer), page_reporting::read_order(kernel));
    for device in swap::read(kernel).unwrap_or_default() {
        let _ = (device.free(), device.read_number(kernel), swap::read_zram_pool(kernel, &device));
        medium::read_disks(kernel, &device);
    }
    let _ = (swap::read_zswap(kernel), SwapDisks::find(kernel).map(|disks| disks.read_in_flight(kernel, &mut buffer)));
    let _ = (mounts::read(kernel), mounts::read_is_cgroup_read_only(kernel));
    let _ = (power_supply::read(kernel), Dmi::read(kernel), Damon::read(kernel), Lockdown::read(kernel));
    let _ = (Hibernation::read(kernel), Nodes::read(kernel), lru_gen::read_enabled(kernel));
    let _ = (lru_gen::read_generations(kernel), lru_gen::sees_root(kernel), probe::psi_window(kernel));
    for resource in psi::Resource::ALL {
        let _ = psi::Totals::read(&kernel.proc, resource, &mut buffer);
    }
    if let Ok(group) = kernel.cgroup().and_then(|root| Group::open(root, Path::new("app.scope"))) {
        let _ = (group.read_current(&mut buffer), group.read_swap_current(&mut buffer));
        let stat = group.read_stat(kernel, &mut buffer).unwrap_or_default();
        let _ = (stat.swap_backed(), stat.page_cache(), stat.refaults(), stat.refaults_with_swap_ins());
        for file in ["memory.high", "memory.max", "memory.swap.max", "memory.min"] {
            let _ = group.read_limit(file, &mut buffer);
        }
        let _ = (group.read_protection(&mut buffer), group.read_populated(&mut buffer), group.read_cpu(&mut buffer));
        let _ = (process::read_pids(group.dir()), numa::read_group(&group));
        let mut lists = Vec::new();
        let _ = Reader::default().read_group(kernel, &group, &mut lists);
    }
    let _ = (process::read_own_group(kernel), process::read_is_first_user_namespace(kernel));
    let _ = (process::read_all(kernel), process::read_group(kernel, 7), Process::open(kernel, 7).map(drop));
    let Ok(process) = kernel.proc.sub("7") else { return };
    let stat = ProcessStat::read(&process);
    let _ = (stat.map(|stat| stat.cpu()), Status::read(&process), ProcessMemory::read(&process, &mut buffer));
    let _ = (process::read_oom_score_adj(&process), process::read_command(&process), maps::read_smaps(&process));
    let Ok(layout) = Layout::read_text(&process) else { return };
    let mut pagemap = Pagemap::open(&process, kernel.page()).expect("a file").without_scan();
    for mapping in layout.mappings() {
        assert!(mapping.range.start <= mapping.range.end);
        // As long as the file, with what is behind its end.
        let end = mapping.range.end.min(mapping.range.start.saturating_add(1 << 16));
        let _ = pagemap.for_each(mapping.range.start..end, |range, _| assert!(range.start < range.end));
    }
}

/// The first byte of an input is the number of the file.
#[test]
fn no_change_of_a_file_makes_a_reader_panic() {
    let root = machine();
    let kernel = open(&root);
    let mut files = Vec::new();
    let mut directories = vec![root.path().to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.push((path.clone(), std::fs::read(path).expect("a file")));
            }
        }
    }
    assert!((60..=256).contains(&files.len()), "{} files", files.len());
    let number = |at: usize| u8::try_from(at).expect("fewer than 256 files");
    let inputs: Vec<_> =
        files.iter().enumerate().map(|(at, (_, text))| [&[number(at)], text.as_slice()].concat()).collect();
    let changed = RefCell::new(0);
    omr_testkit::fuzz::feed(&inputs, |input| {
        let Some((which, text)) = input.split_first() else { return };
        let (path, before) = &files[usize::from(*which) % files.len()];
        std::fs::write(path, text).expect("written");
        *changed.borrow_mut() += 1;
        read_all(&kernel);
        std::fs::write(path, before).expect("written");
    });
    assert!(changed.into_inner() >= files.len());
}
