//! `/proc/meminfo`, `stat`, `vmstat`, pressure, and the memory and CPU files of groups.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use omr_kernel::Kernel;
use omr_kernel::inotify::Watches;
use omr_kernel::memcg::{self, Found, Group, MemoryStat, Visit};
use omr_kernel::meminfo::Meminfo;
use omr_kernel::psi::{self, Resource};
use omr_kernel::stat::Stat;
use omr_kernel::vmstat::Vmstat;
use omr_testkit::{FakeRoot, Release, captured};
use omr_units::{Bytes, Limit, Pages};
use proptest::prelude::*;

use crate::open;

/// The number after `key` in a text, by a second and simpler parser.
fn number(text: &str, key: &str) -> u64 {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(key));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn real_machines() {
    for release in Release::ALL {
        let kernel = open(&FakeRoot::captured(release));
        drop(kernel);
        let root = FakeRoot::captured(release);
        let kernel = open(&root);
        let buffer = &mut Vec::new();

        let text = captured(release, "proc/meminfo");
        let memory = Meminfo::read(&kernel, buffer).expect("meminfo");
        for (field, key) in [
            (memory.mem_total, "MemTotal:"),
            (memory.mem_free, "MemFree:"),
            (memory.mem_available, "MemAvailable:"),
            (memory.swap_cached, "SwapCached:"),
            (memory.swap_total, "SwapTotal:"),
            (memory.swap_free, "SwapFree:"),
            (memory.dirty, "Dirty:"),
            (memory.writeback, "Writeback:"),
            (memory.active_anon, "Active(anon):"),
            (memory.inactive_anon, "Inactive(anon):"),
            (memory.active_file, "Active(file):"),
            (memory.inactive_file, "Inactive(file):"),
            (memory.slab_reclaimable, "SReclaimable:"),
            (memory.zswap, "Zswap:"),
        ] {
            assert_eq!(field, Some(Bytes::kib(number(text, key))), "{} {key}", release.name());
        }

        let text = captured(release, "proc/stat");
        let stat = Stat::read(&kernel, buffer).expect("stat");
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).collect();
        assert_eq!(stat.cpus.len(), lines.len());
        for ((cpu, ticks), line) in stat.cpus.iter().zip(lines) {
            let numbers: Vec<u64> = line.split_whitespace().skip(1).map(|n| n.parse().expect("a number")).collect();
            assert!(line.starts_with(&format!("cpu{cpu} ")));
            assert_eq!(ticks.total(), numbers[..8].iter().sum::<u64>(), "{line}");
            assert_eq!(
                (ticks.user, ticks.idle, ticks.iowait, ticks.steal),
                (numbers[0], numbers[3], numbers[4], numbers[7])
            );
        }

        let text = captured(release, "proc/vmstat");
        let vm = Vmstat::read(&kernel, buffer).expect("vmstat");
        assert_eq!(vm.pswpin, Some(Pages(number(text, "pswpin"))));
        assert_eq!(vm.pswpout, Some(Pages(number(text, "pswpout"))));
        let stalls = text.lines().filter_map(|line| line.strip_prefix("allocstall_"));
        let stalls: u64 =
            stalls.map(|line| line.split(' ').nth(1).expect("a number").parse::<u64>().expect("one")).sum();
        assert_eq!(vm.allocstall, Some(stalls));

        for resource in Resource::ALL {
            let text = captured(release, &format!("proc/pressure/{}", resource.name()));
            let total = text.lines().next().expect("a line").rsplit_once("total=").expect("a total").1;
            let total = Duration::from_micros(total.parse().expect("a number"));
            assert_eq!(psi::Totals::read(&kernel.proc, resource, buffer).some, Some(total));
        }
    }
}

#[test]
fn real_groups() {
    for release in Release::ALL {
        let root = FakeRoot::new().busy_group_of(release, "a/b");
        let kernel = open(&root);
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a/b")).expect("the group");
        let buffer = &mut Vec::new();
        let text = captured(release, "group/memory.stat");
        let stat = group.read_stat(&kernel, buffer).expect("memory.stat");
        for (field, key) in [
            (stat.anon, "anon"),
            (stat.file, "file"),
            (stat.shmem, "shmem"),
            (stat.file_mapped, "file_mapped"),
            (stat.file_dirty, "file_dirty"),
            (stat.file_writeback, "file_writeback"),
            (stat.swapcached, "swapcached"),
            (stat.unevictable, "unevictable"),
            (stat.slab_reclaimable, "slab_reclaimable"),
        ] {
            assert_eq!(field, Some(Bytes(number(text, key))), "{} {key}", release.name());
        }
        for (field, key) in [
            (stat.pgscan, "pgscan"),
            (stat.pgsteal, "pgsteal"),
            (stat.pgrefill, "pgrefill"),
            (stat.workingset_refault_anon, "workingset_refault_anon"),
            (stat.workingset_refault_file, "workingset_refault_file"),
        ] {
            assert_eq!(field, Some(Pages(number(text, key))), "{} {key}", release.name());
        }
        let current = captured(release, "group/memory.current").trim().parse().expect("a number");
        assert_eq!(group.read_current(buffer).expect("memory.current"), Bytes(current));
        let cpu = number(captured(release, "group/cpu.stat"), "usage_usec");
        assert_eq!(group.read_cpu(buffer).expect("cpu.stat"), Duration::from_micros(cpu));
        for file in ["memory.min", "memory.low", "memory.high", "memory.max", "memory.swap.max"] {
            let expected = match captured(release, &format!("group/{file}")).trim() {
                "max" => Limit::Max,
                digits => Limit::Bytes(Bytes(digits.parse().expect("digits"))),
            };
            assert_eq!(group.read_limit(file, buffer).expect(file), expected, "{file}");
        }
        for resource in Resource::ALL {
            assert!(psi::Totals::read_group(group.dir(), resource, buffer).some.is_some());
        }
    }
}

#[test]
fn text_that_is_cut_off_is_never_a_smaller_number() {
    for release in Release::ALL {
        let text = captured(release, "proc/meminfo");
        let whole = Meminfo::parse(text.as_bytes());
        for end in 0..text.len() {
            let part = Meminfo::parse(&text.as_bytes()[..end]);
            // A number that is cut off in the middle is the only exception: a line has a unit after
            // it.
            let ends_in_number = text.as_bytes()[..end].last().is_some_and(u8::is_ascii_digit);
            if !ends_in_number {
                assert!(part.mem_total.is_none() || part.mem_total == whole.mem_total, "{end}");
                assert!(part.swap_free.is_none() || part.swap_free == whole.swap_free, "{end}");
            }
        }
        let text = captured(release, "proc/stat");
        let cpus = Stat::parse(text.as_bytes()).expect("a stat").cpus.len();
        for end in 0..text.find("intr").expect("a line") {
            assert!(Stat::parse(&text.as_bytes()[..end]).is_none_or(|stat| stat.cpus.len() <= cpus), "{end}");
        }
    }
}

#[test]
fn a_cpu_line_that_is_cut_off_makes_all_unknown() {
    assert_eq!(Stat::parse(b"cpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 2 3"), None);
    assert_eq!(Stat::parse(b"cpu0 1 2 3 x 5 6 7 8\n"), None);
    assert_eq!(Stat::parse(b"cpu  1 2 3 4 5 6 7 8\n"), None, "the sum alone names no CPU");
    assert_eq!(Stat::parse(b""), None);
    // A new field of a later kernel does not hide the known ones. Neither does a missing CPU.
    let stat = Stat::parse(b"cpu 1\ncpu3 1 2 3 4 5 6 7 8 9 10 11 12\nintr 5\ncpu9 1 1 1 1 1 1 1 1\n").expect("a stat");
    assert_eq!(stat.cpus.iter().map(|(cpu, _)| *cpu).collect::<Vec<_>>(), [3]);
}

#[test]
fn future_lines_are_passed_over() {
    let stat =
        MemoryStat::parse(b"anon 1\nanon_of_the_future 2\nbanana\nfile 3 4 5\nshmem x\nzswap 18446744073709551616\n");
    assert_eq!((stat.anon, stat.file, stat.shmem), (Some(Bytes(1)), Some(Bytes(3)), None));
    let memory = Meminfo::parse(b"MemTotal: 18446744073709551615 kB\nSwapFree:\nHugeThings: 1 MB\nWriteback: -1 kB\n");
    assert_eq!(memory.mem_total, Some(Bytes::MAX), "as large as can be said");
    assert_eq!((memory.swap_free, memory.writeback), (None, None));
    assert_eq!(Vmstat::parse(b"pswpout 99999999999999999999\npswpin 7\n").pswpin, Some(Pages(7)));
    assert_eq!(Vmstat::parse(b"pswpout 99999999999999999999\n").pswpout, None);
}

#[test]
fn the_first_releases_of_mglru_count_major_faults_as_refaults() {
    let refaults = |release: &str, enabled: &str| {
        let stat = "workingset_refault_anon 5\nworkingset_refault_file 2\npgmajfault 40\n";
        let root = FakeRoot::new().proc("sys/kernel/osrelease", release).group("a", &[("memory.stat", stat)]);
        let root = root.sys("kernel/mm/lru_gen/enabled", enabled);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("a hierarchy"), Path::new("a")).expect("a group");
        let stat = group.read_stat(&kernel, &mut Vec::new()).expect("memory.stat");
        assert_eq!(kernel.counts_few_refaults(), stat.workingset_refault_anon == Some(Pages(40)));
        stat.refaults()
    };
    for (release, enabled, expected) in [
        ("6.1.0-56-amd64", "0x0007\n", 42),
        ("6.4.16", "0x0003\n", 42),
        ("6.5.0", "0x0007\n", 7),
        ("6.12.117+deb12-amd64", "0x0007\n", 7),
        // The LRU of before counts right.
        ("6.1.0-56-amd64", "0x0006\n", 7),
        ("5.10.0", "", 7),
        ("", "0x0007\n", 7),
    ] {
        assert_eq!(refaults(release, enabled), Some(Pages(expected)), "{release:?} {enabled:?}");
    }
}

#[test]
fn pressure_lines() {
    let some = |text: &str| psi::Totals::parse(text.as_bytes()).some;
    assert_eq!(
        some("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull total=9\n"),
        Some(Duration::from_micros(12))
    );
    // The first release with PSI printed no "full" line for the CPU. A later one may add averages.
    assert_eq!(some("full total=1\nsome avg900=0.00 total=2 avg10=1\n"), Some(Duration::from_micros(2)));
    for unknown in [
        "",
        "full total=1\n",
        "some avg10=1\n",
        "some total=\n",
        "some total=-1\n",
        "some total=1.5\n",
        "something total=1\n",
    ] {
        assert_eq!(some(unknown), None, "{unknown}");
    }
    let both = psi::Totals::parse(b"some avg10=0.00 total=12\nfull avg10=0.00 total=9\n");
    assert_eq!(both.full, Some(Duration::from_micros(9)));
    assert_eq!(psi::Totals::parse(b"some total=12\n").full, None);
}

#[test]
fn an_unknown_text_is_an_error_and_a_missing_file_is_no_protection() {
    let root = FakeRoot::new()
        .group("a", &[("memory.current", "12 apples\n"), ("memory.low", "-1\n"), ("cpu.stat", "user_usec 1\n")])
        .group("b", &[("memory.min", "4096\n"), ("memory.low", "max\n")])
        .group("c", &[("cgroup.procs", "")]);
    let kernel = open(&root);
    let group = |name: &str| Group::open(kernel.cgroup().expect("groups"), Path::new(name)).expect("a group");
    let buffer = &mut Vec::new();
    let text = |err: omr_kernel::Error| {
        assert!(!err.is_gone() && !err.is_denied(), "{err}");
        err.to_string()
    };
    assert!(text(group("a").read_current(buffer).unwrap_err()).ends_with("a/memory.current: not a number"));
    assert!(text(group("a").read_cpu(buffer).unwrap_err()).contains("usage_usec NUMBER"));
    assert!(text(group("a").read_protection(buffer).unwrap_err()).contains("a/memory.low: neither"));
    assert_eq!(group("b").read_protection(buffer).expect("limits"), Limit::Max);
    assert_eq!(group("c").read_protection(buffer).expect("none"), Limit::Bytes(Bytes::ZERO));
    assert!(group("c").read_current(buffer).unwrap_err().is_gone());
}

#[test]
fn a_target_cannot_lead_out_of_the_mount() {
    let root = FakeRoot::new().group("a", &[("memory.current", "1\n")]);
    let kernel = open(&root);
    let groups = kernel.cgroup().expect("groups");
    for path in ["..", "a/..", "a/../..", "./a", "/etc"] {
        assert!(Group::open(groups, Path::new(path)).is_err(), "{path}");
    }
    std::os::unix::fs::symlink("/", root.resolve("sys/fs/cgroup/out")).expect("a link");
    assert!(Group::open(groups, Path::new("out")).is_err(), "links are not followed");
    assert!(Group::open(groups, Path::new("")).expect("the root").is_root());
    for (named, path) in [
        ("/sys/fs/cgroup/a/b/", "a/b"),
        ("/sys/fs/cgroup", ""),
        ("/", ""),
        ("a", "a"),
        ("/a", "a"),
        ("./4711", "4711"),
        (".", "."),
        ("/sys/fs/cgroupies", "sys/fs/cgroupies"),
    ] {
        assert_eq!(kernel.group_path(Path::new(named)), Path::new(path), "{named}");
    }
    assert_eq!(kernel.group_path(&root.resolve("sys/fs/cgroup/a")), Path::new("a"));
}

/// Names of the groups, and the number of calls of `unknown`.
#[derive(Default)]
struct Names(Vec<String>, usize);

impl Visit for Names {
    fn enter(&mut self, found: Found<'_>) -> Option<usize> {
        self.0.push(found.name.to_string_lossy().into_owned());
        Some(self.0.len() - 1)
    }

    fn unknown(&mut self, _: usize) {
        self.1 += 1;
    }
}

#[test]
fn a_tree_that_is_too_deep_is_said_to_be_unknown() {
    let names = |depth: usize| {
        let path = vec!["d"; depth].join("/");
        let root = FakeRoot::new().group(&path, &[("memory.current", "1\n")]);
        let kernel: Kernel = open(&root);
        let mut names = Names::default();
        memcg::walk(kernel.cgroup().expect("groups"), &mut names).expect("a walk");
        (names.0.len(), names.1)
    };
    assert_eq!(names(60), (61, 0));
    let (seen, unknown) = names(200);
    assert!(seen < 100 && unknown == 1, "{seen} {unknown}");
}

/// Anyone who may make groups can make such a path.
#[test]
fn a_group_whose_path_is_too_long_for_the_kernel_can_be_opened_and_watched() {
    let root = FakeRoot::new();
    let (path, dir) = root.deep_group("user.slice");
    let kernel: Kernel = open(&root);
    let hierarchy = kernel.cgroup().expect("groups");
    let at_once = std::fs::File::open(hierarchy.path().join(&path)).expect_err("too long");
    assert_eq!(at_once.raw_os_error(), Some(libc::ENAMETOOLONG));
    let group = Group::open(hierarchy, &path).expect("a group");
    assert_eq!((group.id().0, group.path()), (dir.metadata().expect("metadata").ino(), path.as_path()));
    assert!(group.read_stat(&kernel, &mut Vec::new()).expect("memory.stat").anon.is_some());
    let mut watches = Watches::new().expect("inotify");
    watches.watch(group.dir(), group.id()).expect("a watch");
    dir.set_permissions(std::fs::Permissions::from_mode(0o700)).expect("changed");
    assert_eq!(watches.read().groups, [group.id()]);
    let gone = Group::open(hierarchy, &path.join("gone")).expect_err("no such group");
    assert!(gone.is_gone(), "{gone}");
}

#[test]
fn of_a_users_groups_a_walk_visits_the_first_thousand() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: the groups cannot be given to a user");
        return;
    }
    let visit = |owner: u32| {
        let root = FakeRoot::new();
        let top = root.resolve("sys/fs/cgroup/user@1000.service");
        for (name, count) in [("a", 300), ("b", 3000)] {
            for number in 0..count {
                std::fs::create_dir_all(top.join(name).join(number.to_string())).expect("a group");
            }
        }
        for number in 0..1500 {
            std::fs::create_dir_all(root.resolve(format!("sys/fs/cgroup/system.slice/{number}"))).expect("a group");
        }
        std::os::unix::fs::chown(&top, Some(owner), None).expect("chown");
        let kernel: Kernel = open(&root);
        let mut names = Names::default();
        memcg::walk(kernel.cgroup().expect("groups"), &mut names).expect("a walk");
        (names.0.len(), names.1 > 0)
    };
    // The root, both tops, and 1,500 of root's.
    assert_eq!(visit(1000), (3 + 1500 + 1000, true));
    assert_eq!(visit(0), (3 + 1500 + 2 + 3300, false), "nobody bounds root");
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = (Meminfo::parse(&text), Stat::parse(&text), Vmstat::parse(&text), MemoryStat::parse(&text));
        let _ = psi::Totals::parse(&text);
    }

    /// Captured text with a few bytes replaced.
    #[test]
    fn damaged_text_makes_no_parser_panic(release in 0..2usize, at in any::<proptest::sample::Index>(), by in any::<[u8; 3]>()) {
        let release = Release::ALL[release];
        for file in ["proc/meminfo", "proc/stat", "proc/vmstat", "group/memory.stat", "proc/pressure/io"] {
            let mut text = captured(release, file).as_bytes().to_vec();
            let at = at.index(text.len());
            text.splice(at..(at + 2).min(text.len()), by);
            let _ = (Meminfo::parse(&text), Stat::parse(&text), Vmstat::parse(&text), MemoryStat::parse(&text));
            let _ = psi::Totals::parse(&text);
        }
    }

    #[test]
    fn a_printed_value_parses_to_the_same(values in any::<[u64; 5]>()) {
        let [anon, file, refaults, cpu, stall] = values;
        let text = format!("anon {anon}\nfile {file}\nworkingset_refault_anon {refaults}\n");
        let stat = MemoryStat::parse(text.as_bytes());
        prop_assert_eq!((stat.anon, stat.file), (Some(Bytes(anon)), Some(Bytes(file))));
        prop_assert_eq!(stat.workingset_refault_anon, Some(Pages(refaults)));
        prop_assert_eq!(stat.refaults(), None, "half of it is not known");
        let stat = Stat::parse(format!("cpu0 {cpu} 0 0 {cpu} 0 0 0 {cpu}\n").as_bytes()).expect("a stat");
        prop_assert_eq!(stat.cpus[0].1.total(), cpu.saturating_mul(3));
        let text = format!("some avg10=0.00 total={stall}\n");
        prop_assert_eq!(psi::Totals::parse(text.as_bytes()).some, Some(Duration::from_micros(stall)));
    }
}
