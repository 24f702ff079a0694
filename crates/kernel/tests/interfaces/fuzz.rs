//! No change of a kernel's file makes its parser panic.

use omr_testkit::Release;

use crate::parsers;

#[test]
fn no_change_of_a_file_makes_its_parser_panic() {
    let mut inputs = Vec::new();
    for release in Release::ALL {
        for (path, bytes) in release.files("proc").chain(release.files("group")) {
            let which = match path.to_str().unwrap_or_default() {
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
                _ => continue,
            };
            inputs.push([&[which], bytes].concat());
        }
    }
    assert!(inputs.len() > 20, "{}", inputs.len());
    omr_testkit::fuzz::feed(&inputs, parsers::parse);
}
