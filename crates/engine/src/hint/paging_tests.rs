//! Tests of whole runs: what is paged out, read back or deactivated, and what ends a run.

use std::path::Path;

use omr_actuate::{Actuator, DryRun};
use omr_base::cancel::Flag;
use omr_kernel::Kernel;
use omr_kernel::process::Process;
use omr_testkit::{FakeRoot, Release};

use super::*;
use crate::reclaim::limit_journal::Journal;
use crate::session::Host;
use crate::stand_in::{
    Area, Both, GROUPS, Hints, PAGE, Reclaims, StoppedClocks, add_group, anon, page_out, set_line, set_process,
    set_swap, stop_clocks,
};

/// 1 MiB of memory.
const MEMORY: usize = 256;

/// A machine with 64 MiB of swap on this device, a group of 8 MiB, and a process with a file of two
/// pages and 4 MiB of anonymous memory.
fn machine(device: &str) -> (StoppedClocks, FakeRoot) {
    let root = FakeRoot::in_memory(Release::V6_12);
    set_swap(&root, device, 64);
    set_line(&root, "proc/meminfo", "Writeback:", "0 kB");
    // No swap is kept free for an image.
    root.write("sys/power/disk", "[disabled]\n");
    add_group(&root, "a", 8, 0);
    set_process(&root, 7, "a", &[Area { file: 9, ..anon(0x1000, "pp") }, anon(0x10_0000, &"p".repeat(4 * MEMORY))]);
    (stop_clocks(), root)
}

struct Run<'a> {
    root: &'a FakeRoot,
    advice: Advice,
    amount: Amount,
    swap_floor: Bytes,
    /// The memory that may leave the group; `None`: nobody accounts for the process.
    gain: Option<Bytes>,
    /// Limits may be changed.
    with_journal: bool,
}

impl<'a> Run<'a> {
    fn new(root: &'a FakeRoot, advice: Advice) -> Self {
        let (amount, swap_floor) = (Amount::Max, Bytes::ZERO);
        Run { root, advice, amount, swap_floor, gain: Some(Bytes::MAX), with_journal: false }
    }

    fn with(&self, actuator: &mut dyn Actuator, cancel: &Flag) -> Result<Report> {
        let kernel = Kernel::open(self.root.path()).expect("a kernel");
        let journal = Journal::open(&kernel, &self.root.resolve("var/lib/omr")).expect("a journal");
        let open = || Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let subject = Subject {
            process: Process::open(&kernel, 7).expect("a process"),
            group: "a".into(),
            account: self.gain.map(|gain| Account { group: open(), gain }),
        };
        let mut session = Session {
            host: Host { kernel: &kernel, root: self.root.path() },
            actuator,
            journal: self.with_journal.then_some(&journal),
            cancel,
            progress: &mut |_| {},
        };
        let extent = Extent { amount: self.amount, swap_floor: Some(Amount::Bytes(self.swap_floor)) };
        session.hint(&Config::default(), &subject, &Selection::all(self.advice), extent)
    }

    /// Runs on a kernel that takes all pages that are in memory. Returns the report and the ranges.
    fn taken(&self) -> (Report, Vec<Range<u64>>) {
        let mut calls = Vec::new();
        let mut kernel_side = Hints(|pid, ranges: &[Range<u64>]| {
            ranges.iter().for_each(|range| page_out(self.root, pid, range));
            calls.extend_from_slice(ranges);
            Outcome::Done
        });
        let report = self.with(&mut kernel_side, &Flag::default()).expect("a report");
        (report, calls)
    }
}

#[test]
fn all_memory_of_a_process_is_paged_out_in_calls_of_a_limited_size() {
    let (_clocks, root) = machine("zram0");
    let (report, calls) = Run::new(&root, Advice::PageOut).taken();
    let all = Bytes::mib(4) + Bytes(2 * PAGE);
    assert_eq!((report.end, report.hinted, report.resident_before), (End::Complete, all, all));
    assert_eq!((report.resident_after, report.swapped_out), (Some(Bytes::ZERO), all));
    assert_eq!(calls, [0x1000..0x3000, 0x10_0000..0x20_0000, 0x20_0000..0x40_0000, 0x40_0000..0x50_0000]);
    // Each is for 2 MiB at most.
    assert_eq!((report.calls, report.skipped), (3, Skipped::default()));
    assert_eq!(report.places.as_slice(), [0x1000..0x50_0000]);
    assert_eq!(report.notes, Vec::<String>::new());
}

#[test]
fn memory_of_a_device_is_found_among_files_without_pages() {
    let (_clocks, root) = machine("zram0");
    let file = |at| Area { file: 9, flags: "rd pf", ..anon(at, "--") };
    let areas = [file(0x1000), file(0x4000), file(0x8000), anon(0x10_0000, "pp")];
    set_process(&root, 7, "a", &areas);
    let (first, mut tried) = (0x4000, Vec::new());
    let mut kernel_side = Hints(|pid, ranges: &[Range<u64>]| {
        if ranges[0].start == 0x10_0000 {
            ranges.iter().for_each(|range| page_out(&root, pid, range));
            return Outcome::Done;
        }
        // The kernel says no more than that it refuses the first range of a call.
        tried.push(ranges.to_vec());
        if ranges[0].start == first { Outcome::Unsupported } else { Outcome::Partial }
    });
    let report = Run::new(&root, Advice::PageOut).with(&mut kernel_side, &Flag::default()).expect("a report");
    let pages = [0x1000..0x2000, 0x4000..0x5000, 0x8000..0x9000];
    assert_eq!(tried, [pages.to_vec(), pages[1..].to_vec(), pages[2..].to_vec()], "a page of each");
    assert_eq!(report.skipped.device_mapped, Bytes(2 * PAGE));
    // All memory that was to be paged out is in swap.
    assert_eq!((report.end, report.resident_after), (End::Complete, Some(Bytes::ZERO)));
    set_process(&root, 7, "a", &areas);
    let mut ended = Hints(|_, _: &[Range<u64>]| Outcome::Gone);
    let report = Run::new(&root, Advice::PageOut).with(&mut ended, &Flag::default()).expect("a report");
    assert_eq!((report.end, report.skipped.device_mapped), (End::Gone, Bytes::ZERO));
}

#[test]
fn no_more_than_the_amount_and_the_gain_is_paged_out() {
    let (_clocks, root) = machine("zram0");
    let half = Run { amount: Amount::Bytes(Bytes::mib(2)), ..Run::new(&root, Advice::PageOut) };
    let (report, calls) = half.taken();
    assert_eq!((report.end, report.hinted, report.swapped_out), (End::Complete, Bytes::mib(2), Bytes::mib(2)));
    assert_eq!(calls, [0x10_0000..0x20_0000, 0x20_0000..0x30_0000], "anonymous memory comes before files");
    // The group keeps the rest.
    let (_clocks, root) = machine("zram0");
    let kept = Run { gain: Some(Bytes::mib(1)), ..Run::new(&root, Advice::PageOut) };
    let (report, _) = kept.taken();
    assert_eq!((report.end, report.hinted), (End::Floor, Bytes::mib(1)));
    // More than there is: the kernel has been asked for all of it.
    let (_clocks, root) = machine("zram0");
    let more = Run { amount: Amount::Bytes(Bytes::mib(9)), ..Run::new(&root, Advice::PageOut) };
    assert_eq!(more.taken().0.end, End::Futile);
}

#[test]
fn memory_that_does_not_leave_ends_the_run() {
    let (_clocks, root) = machine("zram0");
    let run = Run { amount: Amount::Bytes(Bytes::mib(1)), ..Run::new(&root, Advice::PageOut) };
    // The kernel says that it did it, and takes nothing. Other memory is tried, a MiB at a time.
    let mut calls = 0;
    let mut kernel_side = Hints(|_, _: &[Range<u64>]| {
        calls += 1;
        Outcome::Done
    });
    let report = run.with(&mut kernel_side, &Flag::default()).expect("a report");
    assert_eq!((report.end, calls, report.swapped_out), (End::Futile, 5, Bytes::ZERO));
    assert_eq!(report.resident_after, Some(report.resident_before));
    // A page at a time: it ends after eight rounds.
    let page = Run { amount: Amount::Bytes(Bytes(PAGE)), ..Run::new(&root, Advice::PageOut) };
    let mut rounds = 0;
    let mut kernel_side = Hints(|_, _: &[Range<u64>]| {
        rounds += 1;
        Outcome::Done
    });
    let report = page.with(&mut kernel_side, &Flag::default()).expect("a report");
    assert_eq!((report.end, rounds), (End::Futile, FUTILE));
}

#[test]
fn anonymous_memory_stays_when_it_cannot_go_to_swap() {
    let anonymous = Bytes::mib(4);
    let (_clocks, root) = machine("zram0");
    root.write("proc/swaps", "Filename Type Size Used Priority\n");
    let (report, calls) = Run::new(&root, Advice::PageOut).taken();
    assert_eq!((report.skipped.no_swap, calls), (anonymous, vec![0x1000..0x3000]));
    assert_eq!(report.notes, ["this machine has no swap, so anonymous memory cannot be paged out"]);
    assert_eq!(Run::new(&root, Advice::Cold).taken().0.skipped.no_swap, Bytes::ZERO, "deactivated memory stays");
    // The limit of a group is reached when less than a page is left.
    let (_clocks, root) = machine("zram0");
    for (most, is_full) in [(2 * PAGE - 1, true), (2 * PAGE, false)] {
        root.write(format!("{GROUPS}/a/memory.swap.max"), format!("{most}\n"));
        root.write(format!("{GROUPS}/a/memory.swap.current"), format!("{PAGE}\n"));
        let report = Run::new(&root, Advice::PageOut).with(&mut DryRun, &Flag::default()).expect("a report");
        assert_eq!(report.skipped.no_swap == anonymous, is_full, "{most}");
        assert_eq!(report.notes.iter().any(|note| note.starts_with("memory.swap.max of a is reached")), is_full);
    }
    // A group without this file has no limit.
    root.remove(format!("{GROUPS}/a/memory.swap.max"));
    let report = Run::new(&root, Advice::PageOut).with(&mut DryRun, &Flag::default()).expect("a report");
    assert_eq!(report.skipped.no_swap, Bytes::ZERO);
}

#[test]
fn swap_of_the_machine_stays_free() {
    for (floor, end) in [(62, End::Complete), (63, End::SwapFloor)] {
        let (_clocks, root) = machine("zram0");
        set_line(&root, "proc/meminfo", "SwapFree:", &format!("{} kB", 64 << 10));
        let run = Run { swap_floor: Bytes::mib(floor), ..Run::new(&root, Advice::PageOut) };
        let (report, _) = run.taken();
        // The first call is for a MiB, and the next for two.
        assert_eq!(report.end, end, "{floor}: {}", report.hinted);
    }
    let (_clocks, root) = machine("zram0");
    let meminfo = root.read("proc/meminfo").replace("SwapFree:", "Other:");
    root.write("proc/meminfo", meminfo);
    let mut none = Hints(|_, _: &[Range<u64>]| unreachable!("unknown is no permission"));
    let err = Run::new(&root, Advice::PageOut).with(&mut none, &Flag::default()).expect_err("unknown");
    assert_eq!(err.to_string(), "no SwapFree in meminfo");
}

#[test]
fn memory_is_read_back_largest_range_first_while_it_fits() {
    let (_clocks, root) = machine("zram0");
    let areas = [anon(0x10_0000, "ssp"), anon(0x20_0000, "ssss"), Area { file: 9, ..anon(0x30_0000, "p---") }];
    set_process(&root, 7, "a", &areas);
    set_line(&root, "proc/meminfo", "MemTotal:", "1024000 kB");
    let told = |available: u64| {
        set_line(&root, "proc/meminfo", "MemAvailable:", &format!("{} kB", 102_400 + available));
        let mut calls = Vec::new();
        let mut kernel_side = Hints(|_, ranges: &[Range<u64>]| {
            calls.extend_from_slice(ranges);
            Outcome::Done
        });
        let report = Run::new(&root, Advice::WillNeed).with(&mut kernel_side, &Flag::default()).expect("a report");
        (report.end, report.hinted.0 / PAGE, calls)
    };
    let calls = vec![0x20_0000..0x20_4000, 0x30_1000..0x30_4000, 0x10_0000..0x10_2000];
    assert_eq!(told(36), (End::Complete, 9, calls));
    assert_eq!(told(35), (End::Floor, 0, vec![]), "a tenth of the memory stays available");
    root.write(format!("{GROUPS}/a/memory.max"), format!("{}\n", (8 << 20) + 8 * PAGE));
    assert_eq!(told(1000).0, End::Floor, "the group has no room");
    root.write(format!("{GROUPS}/a/memory.max"), format!("{}\n", (8 << 20) + 9 * PAGE));
    assert_eq!(told(1000).0, End::Complete);
}

#[test]
fn a_run_ends_with_the_process_or_when_it_is_cancelled() {
    let (_clocks, root) = machine("zram0");
    let run = Run::new(&root, Advice::PageOut);
    let with = |outcome, cancel: &Flag| {
        let mut calls = 0;
        let mut kernel_side = Hints(|_, _: &[Range<u64>]| {
            calls += 1;
            outcome
        });
        run.with(&mut kernel_side, cancel).map(|report| (report.end, calls, report.resident_after.is_some()))
    };
    let go = Flag::default();
    assert_eq!(with(Outcome::Gone, &go).expect("a report"), (End::Gone, 1, false));
    assert_eq!(with(Outcome::Interrupted, &go).expect("a report"), (End::Stopped, 1, true));
    let (stopped, late) = (Flag::default(), Flag::with_timeout(Some(Duration::ZERO)));
    stopped.set();
    assert_eq!(with(Outcome::Done, &stopped).expect("a report"), (End::Stopped, 0, true));
    assert_eq!(with(Outcome::Done, &late).expect("a report"), (End::Timeout, 0, true));
    // It has ended before: nothing is known of it.
    root.write("proc/7/maps", "");
    let report = run.with(&mut DryRun, &go).expect("a report");
    assert_eq!((report.end, report.layout, report.pid), (End::Gone, None, 7));
    // Other errors are errors.
    root.remove("proc/swaps");
    root.write("proc/swaps/is-a-directory", "");
    assert!(run.with(&mut DryRun, &go).expect_err("unknown").to_string().contains("list of swap devices"));
}

#[test]
fn a_refused_hint_names_the_right_that_it_takes() {
    let (_clocks, root) = machine("zram0");
    let said = || {
        let mut refuses = Hints(|_, _: &[Range<u64>]| Outcome::Denied);
        Run::new(&root, Advice::PageOut).with(&mut refuses, &Flag::default()).expect_err("denied").to_string()
    };
    root.write("proc/self/status", "CapEff:\t0000000000000000\n");
    assert_eq!(said(), "cannot hint 7 (a): needs CAP_SYS_NICE, so run it as root");
    root.write("proc/self/status", format!("CapEff:\t{:016x}\n", 1u64 << Capability::SysNice as u8));
    assert_eq!(said(), "cannot hint 7 (a): forbidden in spite of CAP_SYS_NICE, perhaps by a security module");
    root.write("proc/self/uid_map", "0 1000 1\n");
    assert_eq!(said(), "cannot hint 7 (a): needs CAP_SYS_NICE in the first user namespace, and omr runs in another");
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let read = subject::denied(&kernel, "7 (a)", Capability::SysPtrace);
    assert!(read.to_string().starts_with("cannot read 7 (a): needs CAP_SYS_PTRACE"), "{read}");
}

#[test]
fn a_dry_run_shows_each_mapping_and_what_would_be_hinted() {
    let (_clocks, root) = machine("zram0");
    let run = Run { amount: Amount::Bytes(Bytes::mib(3)), ..Run::new(&root, Advice::PageOut) };
    let dry = |run: &Run<'_>| run.with(&mut DryRun, &Flag::default()).expect("a report");
    let report = dry(&run);
    assert_eq!((report.hinted, report.calls), (Bytes::mib(3), 0));
    assert_eq!(report.resident_after, Some(report.resident_before));
    let lines: Vec<_> =
        report.mappings.iter().map(|line| (line.range.as_str(), line.kind, line.name.as_str())).collect();
    assert_eq!(lines, [("1000-3000", "file", "/a"), ("100000-500000", "anonymous", "")]);
    assert_eq!(
        (report.mappings[1].size, report.mappings[1].resident, report.mappings[1].hint),
        (Bytes::mib(4), Bytes::mib(4), Bytes::mib(4))
    );
    let kept = Run { gain: Some(Bytes::mib(1)), ..Run::new(&root, Advice::PageOut) };
    assert_eq!(dry(&kept).hinted, Bytes::mib(1));
    assert_eq!(dry(&Run { advice: Advice::Cold, ..kept }).hinted, Bytes::mib(4) + Bytes(2 * PAGE));
}

#[test]
fn the_decrease_of_the_group_is_what_was_freed_up_to_the_memory_that_left() {
    let freed = |per_call: u64| {
        let (_clocks, root) = machine("zram0");
        let mut current = 64u64 << 20;
        root.write(format!("{GROUPS}/a/memory.current"), format!("{current}\n"));
        let mut kernel_side = Hints(|pid, ranges: &[Range<u64>]| {
            ranges.iter().for_each(|range| page_out(&root, pid, range));
            current -= per_call << 20;
            root.write(format!("{GROUPS}/a/memory.current"), format!("{current}\n"));
            Outcome::Done
        });
        Run::new(&root, Advice::PageOut).with(&mut kernel_side, &Flag::default()).expect("a report").freed
    };
    assert_eq!(freed(1), Bytes::mib(3), "three calls");
    assert_eq!(freed(9), Bytes::mib(4) + Bytes(2 * PAGE), "others of the group freed memory, too");
}

/// Pages out to a disk, so that all of it is in the swap cache. Returns the report, and the writes.
fn cached(root: &FakeRoot, with_journal: bool, outcome: Outcome) -> (Report, Vec<String>) {
    let stat = format!("{GROUPS}/a/memory.stat");
    let left = std::sync::Mutex::new(0u64);
    let set = |bytes: u64| {
        *left.lock().expect("bytes") = bytes;
        set_line(root, &stat, "swapcached", &bytes.to_string());
    };
    let mut writes = Reclaims { outcome, ..Reclaims::new(root) };
    writes.then = Box::new(|line| {
        // The pages are in swap already, so none is written.
        set_line(root, "proc/vmstat", "pswpout", "1000");
        if let Some(bytes) = line.strip_prefix("a/memory.reclaim ").and_then(|bytes| bytes.parse().ok()) {
            let now = left.lock().expect("bytes").saturating_sub(bytes);
            set(now);
        }
    });
    set_line(root, "proc/vmstat", "pswpout", "1000");
    let hints = Hints(|pid, ranges: &[Range<u64>]| {
        for range in ranges {
            page_out(root, pid, range);
            let now = *left.lock().expect("bytes") + range.end - range.start;
            set(now);
        }
        Outcome::Done
    });
    let run = Run { amount: Amount::Bytes(Bytes::mib(4)), with_journal, ..Run::new(root, Advice::PageOut) };
    let mut kernel_side = Both(writes, hints);
    let report = run.with(&mut kernel_side, &Flag::default()).expect("a report");
    (report, kernel_side.0.lines)
}

#[test]
fn the_swap_cache_of_a_hint_is_freed_under_a_limit_that_is_restored() {
    let (_clocks, root) = machine("vda2");
    let (report, lines) = cached(&root, true, Outcome::Done);
    assert_eq!((report.end, report.swapped_out), (End::Complete, Bytes::mib(4)));
    assert_eq!((report.freed_behind, report.left_cached, report.notes.len()), (Bytes::mib(4), Bytes::ZERO, 0));
    assert_eq!(lines[..2], ["a/memory.reclaim 0 swappiness=0", "a/memory.swap.max 2097152"]);
    assert_eq!(lines.last().map(String::as_str), Some("a/memory.swap.max max"));
    let asked = |lines: &[String]| -> u64 {
        let amounts = lines.iter().filter_map(|line| line.strip_prefix("a/memory.reclaim ")?.parse::<u64>().ok());
        amounts.sum::<u64>() >> 20
    };
    assert_eq!(asked(&lines), 4, "{lines:?}");
    // A limit that is as low already stays, and without a journal none is changed.
    let (_clocks, root) = machine("vda2");
    root.write(format!("{GROUPS}/a/memory.swap.max"), "2097152\n");
    let (_, lines) = cached(&root, true, Outcome::Done);
    assert!(asked(&lines) == 4 && lines.iter().all(|line| !line.contains("memory.swap.max")), "{lines:?}");
    let (_clocks, root) = machine("vda2");
    let (_, lines) = cached(&root, false, Outcome::Done);
    assert!(asked(&lines) == 4 && lines.iter().all(|line| !line.contains("memory.swap.max")), "{lines:?}");
    // zram leaves none behind.
    let (_clocks, root) = machine("zram0");
    assert_eq!(cached(&root, true, Outcome::Done).1, Vec::<String>::new());
}

#[test]
fn swap_cache_that_cannot_be_freed_is_reported() {
    let (_clocks, root) = machine("vda2");
    root.remove(format!("{GROUPS}/a/memory.reclaim"));
    let (report, lines) = cached(&root, true, Outcome::Done);
    assert_eq!((report.left_cached, report.freed_behind, lines.len()), (Bytes::mib(4), Bytes::ZERO, 0));
    assert!(
        report.notes[0].ends_with("so 4.00 MiB of swap cache stay in memory until they are reclaimed"),
        "{:?}",
        report.notes
    );
    let (_clocks, root) = machine("vda2");
    let (report, _) = cached(&root, false, Outcome::Denied);
    assert!(report.notes[0].starts_with("memory.reclaim of its group: "), "{:?}", report.notes);
    // The disk does not keep up.
    let (clocks, root) = machine("vda2");
    set_line(&root, &format!("{GROUPS}/a/memory.stat"), "file_writeback", "9999999");
    let (report, lines) = cached(&root, true, Outcome::Done);
    assert_eq!((report.left_cached, lines.len()), (Bytes::mib(4), 0));
    assert!(report.notes[0].starts_with("the swap disk does not keep up"), "{:?}", report.notes);
    assert!(clocks.passed() >= Duration::from_secs(30) && clocks.passed() < Duration::from_secs(31));
}

#[test]
fn a_page_out_waits_for_the_disk() {
    let (clocks, root) = machine("vda2");
    set_line(&root, "proc/meminfo", "Writeback:", "9000 kB");
    let mut first = None;
    let mut kernel_side = Hints(|pid, ranges: &[Range<u64>]| {
        first.get_or_insert_with(|| clocks.passed());
        ranges.iter().for_each(|range| page_out(&root, pid, range));
        Outcome::Done
    });
    let run = Run { amount: Amount::Bytes(Bytes::mib(1)), gain: None, ..Run::new(&root, Advice::PageOut) };
    run.with(&mut kernel_side, &Flag::default()).expect("a report");
    let first = first.expect("a call");
    assert!(first >= DISK.patience && first < DISK.patience + Duration::from_secs(1), "{first:?}");
}
