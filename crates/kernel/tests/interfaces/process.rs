use std::path::PathBuf;

use omr_kernel::process::{
    Capabilities, Capability, ProcessMemory, ProcessStat, Status, parse_group, parse_is_first_user_namespace, read_all,
    read_command, read_oom_score_adj, read_own_group, read_program,
};
use omr_testkit::{FakeRoot, Release, captured};
use omr_units::{Bytes, Pages};
use proptest::prelude::*;

use crate::open;

#[test]
fn real_kernels() {
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let kernel = open(&root);
        assert!(read_own_group(&kernel).expect("readable").is_some());

        let status = Status::read_own(&kernel).expect("readable");
        assert_eq!(status.uid, Some(0));
        assert!(status.capabilities.expect("a mask").has(Capability::SysAdmin));

        let stat = ProcessStat::parse(captured(release, "proc/self/stat").as_bytes()).expect("a line");
        assert!(stat.pid > 0 && stat.ppid > 0 && stat.starttime > 0 && stat.rss > Pages(0), "{stat:?}");
        assert!(matches!(stat.state, b'R' | b'S'), "{stat:?}");
    }
}

#[test]
fn own_group() {
    for (text, group) in [
        ("0::/\n", Some("")),
        ("0::/system.slice/omr.service\n", Some("system.slice/omr.service")),
        ("0::/a b/c:d\n", Some("a b/c:d")),
        // cgroup v1 beside cgroup v2, as on hybrid machines.
        ("4:memory:/x\n1:name=systemd:/y\n0::/z\n", Some("z")),
        ("4:memory:/x\n10::/y\n", None),
        // A v1 group whose name imitates the v2 line.
        ("1:name=systemd:/0::/x\n", None),
        ("0::/a (deleted)\n", None),
        ("0::/../a\n", None),
        ("0::/..\n", None),
        ("0::/..a\n", Some("..a")),
        ("0::\n", None),
        ("", None),
    ] {
        assert_eq!(parse_group(text.as_bytes()), group.map(PathBuf::from), "{text:?}");
    }
}

/// 24 fields of proc(5) around a name.
fn stat(comm: &str) -> Vec<u8> {
    format!(
        "77 ({comm}) S 1 77 77 34817 -1 4194304 116 0 0 0 11 12 0 0 20 0 1 0 59938 3133440 390 18446744073709551615 0"
    )
    .into_bytes()
}

#[test]
fn a_name_cannot_fake_the_fields_behind_it() {
    for comm in ["cat", "", "foo) Z (", "foo) Z 9 9 9", ") R 1 2 3 4 (", "((((", "))))", "a b\tc", "x\\ny"] {
        let stat = ProcessStat::parse(&stat(comm)).expect(comm);
        assert_eq!(stat.comm.to_str(), Some(comm));
        assert_eq!((stat.pid, stat.state, stat.ppid), (77, b'S', 1), "{comm}");
        assert_eq!(stat.terminal, 0x8801, "pts/1");
        assert_eq!((stat.utime, stat.stime, stat.starttime, stat.rss), (11, 12, 59_938, Pages(390)));
    }
}

#[test]
fn a_truncated_stat_is_nothing() {
    let whole = stat("cat");
    let text = String::from_utf8(whole.clone()).expect("text");
    let last_needed = text.find("390").expect("the field") + 1;
    for end in 0..last_needed {
        assert_eq!(ProcessStat::parse(&whole[..end]), None, "{:?}", &text[..end]);
    }
    for text in ["", "()", "1 () S", ") S (", "x (a) S 1", "1 (a) SS 1 1 1"] {
        assert_eq!(ProcessStat::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn status() {
    let parse = |text: &str| Status::parse(text.as_bytes());
    assert_eq!(parse("Uid:\t1000\t0\t0\t0\nCapEff:\t0000000000880000\n").uid, Some(0));
    let capabilities = parse("CapEff:\t0000000000880000\n").capabilities.expect("a mask");
    assert!(capabilities.has(Capability::SysPtrace) && capabilities.has(Capability::SysNice));
    assert!(!capabilities.has(Capability::SysAdmin));
    assert_eq!(parse("Name:\tx\\nCapEff:\t1\nCapEff:\t0\n").capabilities, Some(Capabilities(0)));
    for text in ["", "CapEff:\t\n", "CapEff:\t+1\n", "CapEff:\txyz\n", "CapEff:\t11112222333344445\n", "Uid:\t0\n"] {
        assert_eq!(parse(text), Status::default(), "{text}");
    }
}

#[test]
fn the_memory_of_a_process_is_read() {
    let parse = |text: &str| ProcessMemory::parse(text.as_bytes());
    let text = "Name:\tcat\nVmLck:\t       8 kB\nVmHWM:\t    2000 kB\nVmRSS:\t    1892 kB\nRssAnon:\t     120 kB\nVmSwap:\t       4 kB\n";
    let memory = parse(text);
    assert_eq!(memory.locked, Some(Bytes::kib(8)));
    assert_eq!(memory.resident, Some(Bytes::kib(1892)));
    assert_eq!((memory.anon, memory.swapped), (Some(Bytes::kib(120)), Some(Bytes::kib(4))));
    for text in ["", "Name:\tkthreadd\n", "RssAnon:\n", "RssAnon:\t-1 kB\n", "RssAnon:\t12\n", "RssAnon:\t1x kB\n"] {
        assert_eq!(parse(text), ProcessMemory::default(), "{text:?}");
    }
    for release in Release::ALL {
        let memory = ProcessMemory::parse(captured(release, "proc/self/status").as_bytes());
        assert!(memory.resident > memory.anon && memory.anon > Some(Bytes::ZERO), "{memory:?}");
        assert_eq!((memory.swapped, memory.locked), (Some(Bytes::ZERO), Some(Bytes::ZERO)));
    }
}

#[test]
fn the_identity_of_a_process_is_read() {
    let root = FakeRoot::new()
        .proc("7/stat", stat("cat"))
        .proc("7/oom_score_adj", "-900\n")
        .proc("7/cmdline", "cat\0a b\0\0")
        .proc("8/cmdline", "")
        .proc("8/oom_score_adj", "1001\n")
        .proc("self/stat", stat("omr"))
        .proc("stat", "");
    std::os::unix::fs::symlink("/usr/bin/cat (deleted)", root.resolve("proc/7/exe")).expect("a link");
    let kernel = open(&root);
    let mut all = read_all(&kernel).expect("readable");
    all.sort_unstable();
    assert_eq!(all, [7, 8]);
    let dir = |pid: &str| kernel.proc.sub(pid).expect("a directory");
    assert_eq!(read_program(&dir("7")).expect("readable"), Some(PathBuf::from("/usr/bin/cat")));
    assert_eq!(read_program(&dir("8")).expect("readable"), None);
    assert_eq!(read_command(&dir("7")).expect("readable"), "cat a b");
    assert_eq!(read_command(&dir("8")).expect("readable"), "");
    assert_eq!(read_oom_score_adj(&dir("7")).expect("readable"), -900);
    let wrong = read_oom_score_adj(&dir("8")).expect_err("out of range").to_string();
    assert!(wrong.ends_with("/proc/8/oom_score_adj: no number from -1000 to 1000"), "{wrong}");
    let gone = read_oom_score_adj(&dir("self")).expect_err("not there");
    assert!(gone.is_gone(), "{gone}");
    let cpu = ProcessStat::parse(&stat("cat")).expect("a line").cpu();
    assert_eq!(cpu, std::time::Duration::from_millis(230));
}

#[test]
fn the_first_user_namespace_maps_everything_onto_itself() {
    for (text, first) in [
        ("         0          0 4294967295\n", Some(true)),
        ("         0       1000          1\n", Some(false)),
        ("         0     100000      65536\n     65536          0          1\n", Some(false)),
        ("", None),
        ("zero zero many\n", None),
    ] {
        assert_eq!(parse_is_first_user_namespace(text.as_bytes()), first, "{text:?}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text: Vec<u8>, near in "[0-9]{1,3} \\(.{0,20}\\) [A-Z] [0-9 ]{0,80}") {
        for text in [text.as_slice(), near.as_bytes()] {
            let _ = ProcessStat::parse(text);
            let _ = Status::parse(text);
            let _ = ProcessMemory::parse(text);
            let _ = parse_group(text);
            let _ = parse_is_first_user_namespace(text);
        }
    }

    #[test]
    fn any_name_survives(comm in "[^\0\n]{0,15}") {
        let stat = ProcessStat::parse(&stat(&comm)).expect("a line");
        prop_assert_eq!(stat.comm.to_str(), Some(comm.as_str()));
        prop_assert_eq!(stat.starttime, 59_938);
    }
}
