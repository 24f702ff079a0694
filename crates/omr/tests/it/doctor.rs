//! `omr doctor` on fake roots, where it reads files and asks no kernel, and once on the machine the
//! tests run on.

use std::path::Path;
use std::process::{Command, Output};

use omr_testkit::{FakeRoot, Release};
use serde_json::Value;

const PROC_MOUNTS: &str = "proc/self/mounts";

fn omr(root: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_omr"));
    command.arg("doctor").arg("--root").arg(root).args(args).output().expect("omr runs")
}

/// Exit code and text.
fn doctor(root: &FakeRoot) -> (i32, String) {
    let output = omr(root.path(), &[]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing goes to stderr");
    (output.status.code().expect("an exit"), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn json(root: &FakeRoot) -> Value {
    serde_json::from_slice(&omr(root.path(), &["--json"]).stdout).expect("JSON")
}

/// The row of that name, its words separated by one blank.
fn row(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(&format!("  {name} ")));
    line.unwrap_or_else(|| panic!("no row {name} in\n{text}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn first(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn full() -> FakeRoot {
    FakeRoot::captured(Release::V6_12)
        .busy_group("system.slice/a.service")
        .busy_group("user.slice")
        .proc("sys/kernel/osrelease", "6.12.117+deb12-amd64\n")
        .proc("self/cgroup", "0::/system.slice/a.service\n")
        .proc(
            "swaps",
            "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n\
             /dev/vdb                                partition\t2097148\t\t1048572\t\t-2\n",
        )
        .sys("class/block/vdb/dev", "254:16\n")
        .sys("module/zswap/parameters/enabled", "N\n")
        .sys("power/state", "freeze mem disk\n")
        .sys("power/disk", "[platform] shutdown reboot suspend test_resume\n")
        .sys("power/resume", "254:16\n")
        .sys("power/resume_offset", "0\n")
        .sys("power/image_size", "825339904\n")
        .sys("kernel/security/lockdown", "[none] integrity confidentiality\n")
        .sys("kernel/mm/lru_gen/enabled", "0x0007\n")
        .sys("kernel/debug/lru_gen", "")
        .sys("kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n")
}

#[test]
fn a_v1_host_is_told_so_and_exits_with_3() {
    let root = FakeRoot::new()
        .sys("fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .sys("fs/cgroup/unified/cgroup.controllers", "")
        .proc("self/cgroup", "4:memory:/x\n0::/\n");
    let (code, text) = doctor(&root);
    assert_eq!(code, 3);
    assert_eq!(
        first(&text),
        "omr cannot reclaim: this machine runs cgroup v1; \
         start it with systemd.unified_cgroup_hierarchy=1 on the kernel command line"
    );
    assert!(row(&text, "cgroup v2").starts_with("cgroup v2 no this machine runs cgroup v1"), "{text}");
    assert!(row(&text, "memory.reclaim").ends_with("Linux 5.19 with cgroup v2"), "{text}");
}

#[test]
fn a_full_6_12() {
    let (code, text) = doctor(&full());
    assert_eq!(
        (code, first(&text)),
        (0, "omr can reclaim on the machine of these files: memory.reclaim, paced for disk swap")
    );
    for (name, start) in [
        ("cgroup v2", "cgroup v2 yes 3 groups, 2 with the memory controller"),
        ("memory.reclaim", "memory.reclaim yes keys not probed"),
        ("memory.swap.reclaim", "memory.swap.reclaim no not there omr's patches for Linux 6.12"),
        ("memory.high", "memory.high yes in 2 groups only with --backend"),
        ("PSI", "PSI ? there, shortest window not probed"),
        ("swap", "swap yes /dev/vdb (disk), 1.00 GiB of 2.00 GiB free, resume device"),
        ("zswap", "zswap no off"),
        ("page reporting", "page reporting no off"),
        ("hibernation", "hibernation yes resume=254:16, image_size 787 MiB"),
        ("MGLRU", "MGLRU yes on (0x0007), debugfs mounted"),
        ("DAMON", "DAMON yes free"),
        ("process_madvise", "process_madvise ? not probed"),
        ("PROCMAP_QUERY", "PROCMAP_QUERY ? not probed"),
        ("PAGEMAP_SCAN", "PAGEMAP_SCAN ? not probed"),
    ] {
        assert!(row(&text, name).starts_with(start), "{name}\n{text}");
    }
    assert!(text.trim_end().ends_with("; no running kernel was probed."), "{text}");
}

#[test]
fn the_medium_of_the_swap_and_the_power_source_are_named() {
    let root = full()
        .sys("class/block/vdb/queue/rotational", "1\n")
        .sys("class/block/vdb/size", "41943040\n")
        .sys("class/power_supply/BAT0/type", "Battery\n")
        .sys("class/power_supply/BAT0/status", "Discharging\n");
    let (_, text) = doctor(&root);
    let swap = "swap yes /dev/vdb (disk), 1.00 GiB of 2.00 GiB free, resume device, on rotating disk, not encrypted";
    assert!(row(&text, "swap").starts_with(swap), "{text}");
    assert!(row(&text, "power").starts_with("power partly battery on battery"), "{text}");
    let json = json(&root);
    assert_eq!(json["facts"]["swap"][0]["disks"][0]["medium"], "rotational");
    assert_eq!(json["facts"]["power"], "battery");
    // The same disk below an encrypted volume.
    root.write("sys/class/block/vdb/slaves/vda/x", "");
    root.write("sys/class/block/vda/queue/rotational", "1\n");
    root.write("sys/class/block/vdb/dm/uuid", "CRYPT-PLAIN-swap\n");
    let (_, text) = doctor(&root);
    assert!(row(&text, "swap").ends_with("on rotating disk"), "{text}");
    // The control: neither is known.
    let (_, text) = doctor(&full());
    assert!(row(&text, "power").starts_with("power yes mains"), "{text}");
    root.write("sys/class/power_supply/BAT0/status", "foo\n");
    assert!(row(&doctor(&root).1, "power").starts_with("power partly unknown"), "{text}");
}

#[test]
fn the_compression_of_the_image_and_the_time_to_live_are_shown() {
    let lz4 = |module: &str| {
        format!(
            "name         : deflate\nmodule       : kernel\n\nname         : lz4\ndriver       : lz4-generic\nmodule       : {module}\n"
        )
    };
    let shown = |compressor: &str, crypto: &str| {
        let root = full().sys("module/hibernate/parameters/compressor", compressor).proc("crypto", crypto);
        let (_, text) = doctor(&root);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (row(&text, "hibernation"), words.contains("to resume, the initramfs needs the module lz4"))
    };
    let start = "resume=254:16, image_size 787 MiB, compressed by";
    for (compressor, crypto, found, is_missing) in [
        ("lzo", String::new(), "lzo", false),
        ("lzo", lz4("kernel"), "lzo (lz4 is built in)", false),
        ("lz4", lz4("kernel"), "lz4 (lz4 is built in)", false),
        ("lz4", lz4("lz4"), "lz4 (lz4 is a module)", true),
        ("lz4", String::new(), "lz4", true),
    ] {
        let works = if is_missing { "partly" } else { "yes" };
        assert_eq!(shown(compressor, &crypto), (format!("hibernation {works} {start} {found}"), is_missing));
    }
    let root = full().sys("kernel/mm/lru_gen/min_ttl_ms", "1000\n");
    assert!(row(&doctor(&root).1, "MGLRU").starts_with("MGLRU yes on (0x0007, min_ttl_ms 1000), debugfs"));
    assert_eq!(json(&root)["facts"]["mglru"]["min_ttl_ms"], 1000);
    // The control: 0, as everywhere by default, and a kernel that cannot choose.
    let root = full();
    assert!(row(&doctor(&root).1, "MGLRU").starts_with("MGLRU yes on (0x0007), debugfs"));
    assert_eq!(
        (&json(&root)["facts"]["mglru"]["min_ttl_ms"], &json(&root)["facts"]["image_compression"]),
        (&0.into(), &Value::Null)
    );
}

#[test]
fn the_kernels_own_monitors_are_named() {
    let root = full()
        .sys("module/damon_stat/parameters/enabled", "Y\n")
        .sys("module/damon_reclaim/parameters/enabled", "N\n")
        .sys("module/damon_lru_sort/parameters/enabled", "Y\n");
    let (code, text) = doctor(&root);
    assert_eq!(code, 0, "{text}");
    let mglru = row(&text, "MGLRU");
    assert!(mglru.starts_with("MGLRU partly on (0x0007), debugfs mounted, damon_stat, damon_lru_sort on"), "{mglru}");
    let fix = "/sys/module/damon_stat/parameters/enabled /sys/module/damon_lru_sort/parameters/enabled";
    assert!(text.contains(fix) && text.contains("used huge pages may look unused"), "{text}");
    assert!(row(&text, "DAMON").starts_with("DAMON partly used by damon_stat, damon_lru_sort"), "{text}");
    assert_eq!(json(&root)["facts"]["damon_modules"], serde_json::json!(["damon_stat", "damon_lru_sort"]));
    // The control: all of them are off.
    let root = full().sys("module/damon_stat/parameters/enabled", "N\n");
    assert!(row(&doctor(&root).1, "MGLRU").starts_with("MGLRU yes on (0x0007), debugfs mounted "));
}

#[test]
fn nothing_is_written_below_an_injected_root() {
    let root = full();
    root.write("sys/fs/cgroup/system.slice/a.service/memory.reclaim", "untouched");
    root.write("proc/pressure/memory", "untouched");
    let (code, _) = doctor(&root);
    assert_eq!(code, 0);
    assert_eq!(root.read("sys/fs/cgroup/system.slice/a.service/memory.reclaim"), "untouched");
    assert_eq!(root.read("sys/fs/cgroup/memory.reclaim"), "");
    assert_eq!(root.read("proc/pressure/memory"), "untouched");
}

#[test]
fn a_6_1_with_mglru_off() {
    let root = FakeRoot::captured(Release::V6_1)
        .busy_group_of(Release::V6_1, "a.slice")
        .proc("sys/kernel/osrelease", "6.1.0-56-amd64\n")
        .sys("kernel/mm/lru_gen/enabled", "0x0000\n");
    let (code, text) = doctor(&root);
    assert_eq!(code, 0, "{text}");
    assert!(row(&text, "MGLRU").starts_with("MGLRU no off (0x0000) write \"y\" to /sys/kernel/mm/lru_gen/enabled"));
    assert!(row(&text, "DAMON").starts_with("DAMON no not in this kernel since Linux 6.2, this is 6.1"));
}

#[test]
fn a_5_10_has_only_memory_high_and_is_told_the_version_it_needs() {
    let root = full().proc("sys/kernel/osrelease", "5.10.0-30-amd64\n");
    for path in ["", "user.slice", "system.slice/a.service"] {
        root.remove(Path::new("sys/fs/cgroup").join(path).join("memory.reclaim"));
    }
    root.remove("sys/kernel/mm/lru_gen");
    let (code, text) = doctor(&root);
    assert_eq!(
        (code, first(&text)),
        (
            0,
            "omr can reclaim on the machine of these files only with --backend memory.high: \
         memory.reclaim came with Linux 5.19"
        )
    );
    assert!(row(&text, "memory.reclaim").ends_with("not there since Linux 5.19, this is 5.10.0-30-amd64"), "{text}");
    assert!(row(&text, "MGLRU").contains("since Linux 6.1, this is 5.10.0-30-amd64"), "{text}");
    assert_eq!(json(&root)["backend"], "memory.high");
}

#[test]
fn the_patchs_file_comes_first_and_needs_no_memory_reclaim() {
    assert_eq!(json(&full())["backend"], "memory.reclaim");
    let root = full().group("user.slice", &[("memory.swap.reclaim", "0\n")]);
    assert_eq!(json(&root)["backend"], "memory.swap.reclaim");
    for path in ["", "user.slice", "system.slice/a.service"] {
        root.remove(Path::new("sys/fs/cgroup").join(path).join("memory.reclaim"));
    }
    let report = json(&root);
    assert_eq!((&report["backend"], &report["can_reclaim"]), (&"memory.swap.reclaim".into(), &true.into()));
}

#[test]
fn control_groups_mounted_read_only() {
    let root = full();
    root.write(PROC_MOUNTS, "cgroup2 /sys/fs/cgroup cgroup2 ro,nosuid,nodev,noexec,relatime 0 0\n");
    let (code, text) = doctor(&root);
    assert_eq!(code, 3);
    assert_eq!(
        first(&text),
        "omr cannot reclaim: the control groups are mounted read-only, as in a container; run omr on the host"
    );
    assert!(row(&text, "cgroup v2").starts_with("cgroup v2 no mounted read-only, 3 groups"), "{text}");
    assert!(row(&text, "memory.reclaim").starts_with("memory.reclaim no may not be written"), "{text}");
}

#[test]
fn no_memory_controller() {
    let root = FakeRoot::new().group("", &[("cgroup.controllers", "cpuset cpu io pids\n")]).group::<&str>("a", &[]);
    let (code, text) = doctor(&root);
    assert_eq!(code, 3);
    assert!(first(&text).contains("no memory controller; remove cgroup_disable=memory"), "{text}");
}

#[test]
fn no_control_groups_at_all() {
    let (code, text) = doctor(&FakeRoot::new());
    assert_eq!(code, 3);
    assert!(first(&text).contains("no control groups are mounted; mount -t cgroup2"), "{text}");
}

#[test]
fn the_agent_of_ec2_is_named() {
    let (code, text) = doctor(&full().file("etc/hibinit-config.cfg", "[swap]\npercentage-of-ram = 100\n"));
    assert_eq!(code, 0);
    assert!(row(&text, "hibernation").contains("EC2's agent installed"), "{text}");
    let (_, without) = doctor(&full());
    assert!(!without.contains("EC2"), "{without}");
}

#[test]
fn a_swapoff_after_resume_is_named() {
    for name in ["usr/lib/systemd/system-sleep/sleep-handler.sh", "etc/acpi/actions/sleep.sh"] {
        let hook = |text| doctor(&full().file("etc/hibinit-config.cfg", "").file(name, text)).1;
        let old = hook("#!/bin/bash\nif [ \"$1\" = \"post\" ]; then\n    swapoff /swap\nfi\n");
        assert!(old.contains(&format!("after resume, /{name} of the agent reads back all its swap")), "{old}");
        let quiet = [
            "#!/bin/bash\n# We do not swapoff /swap here.\n",
            "#!/bin/sh\nlogger \"Resuming from sleep to swapoff\"\n",
            // After an attempt that failed, before the next.
            "#!/bin/sh\nsystemctl hibernate && exit\nswapoff /swap\n# Or swapon would fail.\n\tsleep 10\n",
        ];
        for new in quiet.map(hook) {
            assert!(!new.contains("reads back"), "{new}");
        }
        let both = hook("#!/bin/sh\nswapoff /swap\nsleep 2m\nsystemctl hibernate\nswapoff /swap\n");
        assert!(both.contains("reads back"), "{both}");
    }
}

/// A pipe that nobody writes to must not be waited for, nor bytes that are no text keep the answer
/// away.
#[test]
fn a_hook_that_is_no_script_is_no_obstacle() {
    let name = "usr/lib/systemd/system-sleep/sleep-handler.sh";
    let root = full().file("etc/hibinit-config.cfg", "").file(name, "");
    let path = root.resolve(name);
    std::fs::write(&path, b"# \xff\n swapoff /swap\n").expect("written");
    assert!(doctor(&root).1.contains("reads back all its swap"));
    std::fs::remove_file(&path).expect("removed");
    let pipe = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    // SAFETY: a valid C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    assert!(!doctor(&root).1.contains("reads back"));
}

#[test]
fn no_swap_leaves_file_memory() {
    let root = full().proc("swaps", "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n");
    let (code, text) = doctor(&root);
    assert_eq!(code, 0);
    assert!(first(&text).ends_with("memory.reclaim, but only file memory, because there is no swap"), "{text}");
    assert!(row(&text, "swap").starts_with("swap no none only file memory can be reclaimed"), "{text}");
    assert!(row(&text, "hibernation").starts_with("hibernation partly"), "{text}");
}

#[test]
fn several_swap_devices_come_in_the_order_of_use() {
    let root = full()
        .proc(
            "swaps",
            "Filename Type Size Used Priority\n/swap\\040file file 1024 1024 -2\n/dev/zram0 partition 4096 0 100\n",
        )
        .sys("module/zswap/parameters/enabled", "Y\n");
    let (_, text) = doctor(&root);
    assert!(first(&text).ends_with("memory.reclaim into zram"), "{text}");
    let at = |what| text.find(what).unwrap_or_else(|| panic!("{what} in\n{text}"));
    assert!(at("/dev/zram0 (zram), 4.00 MiB of 4.00 MiB free") < at("/swap file (file), 0 B of 1.00 MiB free"));
    assert!(at("full: it holds no more") > 0);
    assert!(row(&text, "zswap").starts_with("zswap yes on"));
    let (_, text) = doctor(&root.sys("module/page_reporting/parameters/page_reporting_order", "9\n"));
    assert!(row(&text, "page reporting").starts_with("page reporting yes in blocks of 2.00 MiB"), "{text}");
}

#[test]
fn a_locked_down_or_used_interface_is_not_a_plain_yes() {
    let root = full()
        .sys("power/disk", "[disabled]\n")
        .sys("power/state", "freeze mem\n")
        .sys("kernel/security/lockdown", "none [integrity] confidentiality\n")
        .sys("kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1\n");
    root.remove("sys/kernel/debug/lru_gen");
    root.write(PROC_MOUNTS, "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    let (_, text) = doctor(&root);
    assert!(row(&text, "hibernation").starts_with("hibernation no forbidden by lockdown (integrity)"), "{text}");
    assert!(row(&text, "MGLRU").starts_with("MGLRU partly on (0x0007), debugfs not mounted"), "{text}");
    assert!(text.contains("mount -t debugfs none /sys/kernel/debug"), "{text}");
    assert!(row(&text, "DAMON").starts_with("DAMON partly in use, 1 monitors"), "{text}");
}

#[test]
fn privileges_name_what_is_lacking() {
    let status = |uid: u32, mask: &str| format!("Name:\tomr\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{mask}\n");
    let row_of = |status: String| row(&doctor(&full().proc("self/status", status)).1, "privileges");
    assert!(row_of(status(0, "000001ffffffffff")).starts_with("privileges yes root, all capabilities it needs"));
    let user = row_of(status(1000, "0000000000000000"));
    assert!(user.starts_with("privileges partly user 1000, own group system.slice/a.service delegated"), "{user}");

    let (_, text) = doctor(&full().proc("self/status", status(0, "000001fffeffffff")));
    assert!(text.contains("lacks CAP_SYS_RESOURCE"), "{text}");

    let root = full().proc("self/status", status(1000, "0")).proc("self/cgroup", "0::/gone\n");
    let nobody = row(&doctor(&root).1, "privileges");
    assert!(nobody.starts_with("privileges no user 1000, no capabilities run as root"), "{nobody}");
}

#[test]
fn the_json_has_stable_names() {
    let report = json(&full());
    for name in ["answer", "can_reclaim", "backend", "probed", "root", "checks", "facts"] {
        assert!(report.get(name).is_some(), "{name}");
    }
    assert_eq!((&report["probed"], &report["backend"]), (&false.into(), &"memory.reclaim".into()));
    let checks = report["checks"].as_array().expect("an array");
    for check in checks {
        for name in ["name", "works", "found", "use", "fix"] {
            assert!(check.get(name).is_some(), "{name} in {check}");
        }
        assert!(["yes", "partly", "no", "not_probed"].contains(&check["works"].as_str().expect("a word")));
    }
    let facts = &report["facts"];
    assert_eq!(facts["kernel"], "6.12.117+deb12-amd64");
    assert_eq!(facts["cgroup"]["groups"], 3);
    assert_eq!(facts["memory_reclaim"]["writable"], 3);
    assert_eq!(facts["swap"][0]["path"], "/dev/vdb");
    assert_eq!(facts["swap"][0]["kind"], "partition");
    assert_eq!(facts["swap"][0]["size"], 2_097_148u64 * 1024);
    assert_eq!(facts["swap"][0]["resume"], true);
    assert_eq!(facts["hibernation"]["availability"], "available");
    assert_eq!(facts["mglru"]["enabled"], 7);
    assert_eq!(facts["procmap_query"], "not_probed");
    assert_eq!(facts["psi"]["present"], true);
}

#[test]
fn a_swap_files_name_cannot_play_with_the_terminal() {
    let mut swaps = b"Filename Type Size Used Priority\n/a\x1b[2J\xff file 4096 0 5\n".to_vec();
    swaps.extend_from_slice(b"garbage\n");
    let root = full().proc("swaps", swaps);
    let (code, text) = doctor(&root);
    assert_eq!(code, 0);
    assert!(!text.contains('\x1b') && text.contains("/a\\u{1b}[2J"), "{text}");
    assert!(json(&root)["facts"]["swap"][0]["path"].is_string());
}

#[test]
fn columns_line_up() {
    let (_, text) = doctor(&full());
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")).collect();
    assert!(rows.len() >= 13, "{text}");
    for line in rows {
        // "memory.swap.reclaim" is the longest name, so every state begins in column 23.
        assert_eq!((&line[21..23], line[23..24].trim().len()), ("  ", 1), "{line}");
    }
    // Room for two windows beside each other on any screen of today.
    assert!(text.lines().all(|line| line.chars().count() <= 120 && line.trim_end() == line), "{text}");
}

#[test]
fn an_unreadable_root_is_an_error_with_its_path() {
    let output = omr(Path::new("/nonexistent"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("omr: read /nonexistent/proc: "), "{stderr}");
}

/// On whatever machine this runs: it answers, and exits with 3 exactly when it says that it cannot.
#[test]
fn the_machine_itself() {
    let output = Command::new(env!("CARGO_BIN_EXE_omr")).args(["doctor", "--json"]).output().expect("omr runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["probed"], true);
    let can = report["can_reclaim"].as_bool().expect("yes or no");
    assert_eq!(output.status.code(), Some(if can { 0 } else { 3 }), "{report}");
    assert!(report["answer"].as_str().expect("text").starts_with(if can {
        "omr can "
    } else {
        "omr cannot reclaim: "
    }));
    let works = |check: &Value| check["works"].as_str().map(str::to_owned);
    let not_probed = Some("not_probed".to_owned());
    assert!(report["checks"].as_array().expect("an array").iter().all(|check| works(check) != not_probed), "{report}");
}

#[test]
fn rules_by_age_have_a_row_that_says_whether_they_can_be_followed() {
    let rule = "[[group]]\nmatch = 'a'\nolder_than = '2m'\n";
    let (_, text) = doctor(&full());
    assert!(!text.contains("older_than"), "no rule, no row: {text}");
    let root = full().file("etc/omr/omr.toml", rule);
    assert!(row(&doctor(&root).1, "older_than").starts_with("older_than yes 1 rule"));
    root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
    let (code, text) = doctor(&root);
    let expected = "older_than no 1 rule, MGLRU off (0x0000): not swept write \"y\" to /sys/kernel/mm/lru_gen/enabled";
    assert_eq!((code, row(&text, "older_than").as_str()), (0, expected));
}

#[test]
fn without_mglru_doctor_says_what_the_goal_auto_does_instead() {
    for (config, says) in [
        ("goal = 'free'", "; for ages only"),
        ("goal = 'free'\n[[group]]\nmatch = 'a'\nolder_than = '2m'\n", "; for ages only"),
        ("goal = 'free'\n[[group]]\nmatch = 'a'\nolder_than = 'auto'\n", "; without ages, sweeps only probe groups"),
        ("goal = 'auto'", "; without ages, sweeps only probe groups"),
    ] {
        let root = full().file("etc/omr/omr.toml", config);
        root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        let text = doctor(&root).1;
        assert!(row(&text, "MGLRU").ends_with(says), "{config}: {text}");
    }
}

#[test]
fn doctor_says_whether_memory_can_be_given_back() {
    let root = full().file("etc/omr/omr.toml", "goal = 'auto'");
    let (code, text) = doctor(&root);
    let missing = "giving back no omr-give-back.socket is not there systemctl start omr-give-back.socket; not needed";
    assert_eq!((code, row(&text, "giving back").as_str()), (0, missing));
    root.write("run/omr-root/give-back.sock", "");
    assert!(row(&doctor(&root).1, "giving back").starts_with("giving back yes when somebody comes back"));
    root.write("etc/omr/omr.toml", "goal = 'free'\n");
    assert!(!doctor(&root).1.contains("giving back"), "another goal, no row");
}
