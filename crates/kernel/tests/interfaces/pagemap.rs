//! The mappings of a process, and where its pages are: on text of every kind, and on this process.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use omr_kernel::Kernel;
use omr_kernel::maps::{self, Backing, Detail, Layout, Mapping, Refusal};
use omr_kernel::pagemap::{Pagemap, Residency};
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use omr_testkit::FakeRoot;
use omr_units::Bytes;
use proptest::prelude::*;

use crate::open;

fn parsed(text: &str) -> Vec<Mapping> {
    let mut all = Vec::new();
    maps::parse(text.as_bytes(), |mapping| all.push(mapping));
    all
}

fn details(text: &str) -> Vec<Detail> {
    let mut all = Vec::new();
    maps::parse_smaps(text.as_bytes(), |detail| all.push(detail));
    all
}

#[test]
fn mappings_of_every_kind() {
    let text = "\
55d0c4a3e000-55d0c4a5f000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7f1000000000-7f1000001000 r--p 00001000 fe:01 77                         /usr/lib/a b (deleted)
7f2000000000-7f2000001000 rw-s 00000000 00:01 5                          /dev/zero (deleted)
7ffd3b5f0000-7ffd3b5f4000 r--p 00000000 00:00 0                          [vvar]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
    let kinds: Vec<_> = parsed(text).into_iter().map(|mapping| (mapping.range.start, mapping.backing)).collect();
    assert_eq!(
        kinds,
        [
            (0x55d0_c4a3_e000, Backing::Anonymous),
            (0x7f00_0000_0000, Backing::Anonymous),
            (0x7f10_0000_0000, Backing::File),
            (0x7f20_0000_0000, Backing::File),
            (0x7ffd_3b5f_0000, Backing::Kernel),
            (0xffff_ffff_ff60_0000, Backing::Kernel),
        ]
    );
    let files: Vec<_> = parsed(text).into_iter().filter_map(|mapping| mapping.file).collect();
    let files: Vec<_> = files.iter().map(|file| (file.device, file.inode, file.offset)).collect();
    assert_eq!(files, [((0xfe, 1), 77, 0x1000), ((0, 1), 5, 0)]);
}

#[test]
fn smaps_tell_what_was_used() {
    let text = "1000-5000 rw-p 00000000 00:00 0 \nSize:   16 kB\nReferenced:   12 kB\nVmFlags: rd wr\n\
                5000-6000 rw-p 00000000 00:00 0 \nReferenced:   0 kB\n6000-7000 rw-p 00000000 00:00 0\n";
    let used: Vec<_> = details(text).into_iter().map(|detail| detail.referenced).collect();
    assert_eq!(used, [Some(Bytes::kib(12)), Some(Bytes::ZERO), None]);
}

#[test]
fn smaps_tell_what_is_there_and_what_the_kernel_will_refuse() {
    let text = "1000-5000 rw-p 00000000 00:00 0   [heap]\nRss:   8 kB\nSwap:   4 kB\nSwapPss:  1 kB\nLocked: 8 kB\n\
                VmFlags: rd wr mr lo ac\n5000-6000 rw-p 00000000 00:00 0\nVmFlags: rd lot pfn\n\
                6000-7000 rw-s 00000000 00:0f 8 /dev/hugepages/a b\nVmFlags: rd sh ht\n\
                7000-8000 rw-s 00000000 00:05 9 /dev/mem\nVmFlags: io pf\n";
    let all = details(text);
    let refusals: Vec<_> = all.iter().map(|detail| detail.refusal).collect();
    assert_eq!(refusals, [Some(Refusal::Locked), None, Some(Refusal::HugePages), Some(Refusal::Device)]);
    assert!(all.iter().all(|detail| !detail.no_recency));
    for (flags, no_recency) in [("rr", true), ("lo sr", true), ("srx arr", false), ("", false)] {
        let all = details(&format!("1000-5000 rw-p 00000000 00:00 0\nVmFlags: rd wr {flags} \n"));
        assert_eq!(all[0].no_recency, no_recency, "{flags}");
    }
    assert_eq!((all[0].resident, all[0].swapped), (Some(Bytes::kib(8)), Some(Bytes::kib(4))));
    let names: Vec<_> = all.iter().map(|detail| detail.name.to_string_lossy()).collect();
    assert_eq!(names, ["[heap]", "", "/dev/hugepages/a b", "/dev/mem"]);
    assert_eq!(all.iter().map(|detail| detail.mapping.shared).collect::<Vec<_>>(), [false, false, true, true]);
}

#[test]
fn addresses_without_a_mapping_are_skipped() {
    for text in ["", "\n", "1000 rw-p 0 00:00 0", "2000-1000 rw-p 0 00:00 0", "x-y rw-p 0 00:00 0", "1000-2000 rw-p"] {
        assert_eq!(parsed(text), [], "{text}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text: Vec<u8>, near in "([0-9a-f]{1,17}-[0-9a-f]{1,17} .{0,30}\n|Referenced: .{0,9}\n){0,4}") {
        maps::parse(&text, |_| {});
        maps::parse_smaps(&text, |_| {});
        maps::parse_smaps(near.as_bytes(), |_| {});
        maps::parse(near.as_bytes(), |mapping| assert!(mapping.range.start < mapping.range.end));
    }
}

/// On a child that sleeps, because the threads of the test program map and unmap memory meanwhile.
#[test]
fn both_ways_of_reading_a_layout_agree() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
    let process = Process::open(&kernel, child.id()).expect("the child");
    let mut layout = (0..500)
        .find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let mut layout = Layout::read(process.dir()).ok()?;
            // The child sleeps once its mappings no longer change.
            let is_asleep = process_state(&kernel, child.id()) == b'S' && layout.update().ok()?.is_empty();
            is_asleep.then_some(layout)
        })
        .expect("a process at rest");
    let text = Layout::read_text(process.dir()).expect("maps");
    assert_eq!(layout.mappings(), text.mappings());
    let backings: Vec<_> = text.mappings().iter().map(|mapping| mapping.backing).collect();
    for backing in [Backing::Anonymous, Backing::File, Backing::Kernel] {
        assert!(backings.contains(&backing), "{backing:?}");
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert!(layout.update().is_err_and(|err| err.is_gone()));
    assert!(Layout::read(process.dir()).is_err_and(|err| err.is_gone()));
}

fn process_state(kernel: &Kernel, pid: u32) -> u8 {
    Process::open(kernel, pid).map_or(b'?', |process| process.stat().state)
}

#[test]
fn a_layout_says_what_has_changed() {
    let maps = |text: &str| format!("1000-5000 rw-p 0 00:00 0\n{text}9000-a000 r--p 3000 fe:01 7 /a\n");
    let root = FakeRoot::new().proc("7/maps", maps("5000-6000 rw-p 0 00:00 0\n"));
    let mut layout = Layout::read(&open(&root).proc.sub("7").expect("a process")).expect("a layout");
    assert_eq!(layout.mappings().len(), 3);
    assert!(layout.update().expect("again").is_empty());
    root.write("proc/7/maps", maps("7000-8000 rw-p 0 00:00 0\n"));
    let expected: Ranges = [0x5000..0x6000, 0x7000..0x8000].into_iter().collect();
    assert_eq!(layout.update().expect("again"), expected);
    assert!(layout.update().expect("again").is_empty());
    // An empty file: the process has no memory any more, as after an exec. Other text is an error.
    root.write("proc/7/maps", "");
    assert!(layout.update().is_err_and(|err| err.is_gone()));
    root.write("proc/7/maps", "x\n");
    assert!(layout.update().is_err_and(|err| !err.is_gone() && err.to_string().contains("START-END")));
}

/// The entries of a text in which `p` is a page that is present, `s` one in swap, and others are
/// neither.
fn entries(text: &str) -> Vec<u8> {
    let entry = |c| match c {
        'p' => 1u64 << 63,
        's' => 1u64 << 62,
        _ => 0,
    };
    text.chars().flat_map(|c| entry(c).to_ne_bytes()).collect()
}

fn runs(pagemap: &mut Pagemap<'_>, range: Range<u64>) -> Vec<(Range<u64>, Residency)> {
    let mut all = Vec::new();
    pagemap.for_each(range, |range, residency| all.push((range, residency))).expect("readable");
    all
}

#[test]
fn runs_of_pages() {
    let root = FakeRoot::new().proc("7/pagemap", entries("ppss-s"));
    let kernel = open(&root);
    let page = kernel.page().bytes().0;
    let mut pagemap = Pagemap::open(&kernel.proc.sub("7").expect("a process"), kernel.page()).expect("a file");
    let run = |from: u64, to: u64, residency| (from * page..to * page, residency);
    let (present, swapped) = (Residency::Present, Residency::Swapped);
    assert_eq!(runs(&mut pagemap, 0..6 * page), [run(0, 2, present), run(2, 4, swapped), run(5, 6, swapped)]);
    assert_eq!(runs(&mut pagemap, page..3 * page), [run(1, 2, present), run(2, 3, swapped)]);
    // The file ends early, as the file of a process that has exited.
    assert_eq!(runs(&mut pagemap, 5 * page..100 * page), [run(5, 6, swapped)]);
    assert_eq!(runs(&mut pagemap, 50 * page..100 * page), []);
}

#[test]
fn reading_ends_when_the_check_says_so() {
    let root = FakeRoot::new().proc("7/pagemap", vec![0; 1 << 20]);
    let kernel = open(&root);
    let page = kernel.page().bytes().0;
    let asked = AtomicU32::new(0);
    let check = || asked.fetch_add(1, Relaxed) == 3;
    let open = || Pagemap::open(&kernel.proc.sub("7").expect("a process"), kernel.page()).expect("a file");
    let err = open().until(&check).for_each(0..page << 17, |_, _| {}).expect_err("cancelled");
    assert!(err.is_cancelled() && asked.load(Relaxed) == 4, "{err}");
    open().for_each(0..page << 17, |_, _| {}).expect("the control");
}

#[test]
fn pages_that_others_have_mapped_as_well() {
    // Exclusive; shared; shared with a hidden frame; in swap; neither.
    let entries = [1u64 << 63 | 1 << 56 | 5, 1 << 63 | 6, 1 << 63, 1 << 62 | 7, 0];
    let root = FakeRoot::new().proc("7/pagemap", entries.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>());
    let kernel = open(&root);
    let page = kernel.page().bytes().0;
    let mut pagemap = Pagemap::open(&kernel.proc.sub("7").expect("a process"), kernel.page()).expect("a file");
    let mut found = Vec::new();
    pagemap.for_each_shared(0..9 * page, |at, frame| found.push((at, frame))).expect("readable");
    assert_eq!(found, [(page, Some(6)), (2 * page, None)]);
}

#[test]
fn this_process_as_both_ways_see_it() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let process = Process::open(&kernel, std::process::id()).expect("this process");
    let page = kernel.page().bytes().0;
    // 64 MiB of which every third page is used: more runs than one PAGEMAP_SCAN returns.
    let pages = (64 << 20) / page;
    let length = usize::try_from(pages * page).expect("a size");
    // SAFETY: a new private mapping; existing memory is not touched.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the mapping is `length` bytes long, and every write is inside of it. Huge pages would
    // hide which pages were used.
    unsafe {
        libc::madvise(memory, length, libc::MADV_NOHUGEPAGE);
        for number in (0..pages).step_by(3) {
            memory.cast::<u8>().add(usize::try_from(number * page).expect("inside")).write_volatile(1);
        }
    }
    let start = memory as u64;
    let range = start..start + pages * page;
    let details = maps::read_smaps(process.dir()).expect("smaps");
    let detail = details.into_iter().find(|detail| detail.mapping.range.contains(&start)).expect("the mapping");
    assert_eq!((detail.mapping.backing, detail.refusal), (Backing::Anonymous, None));
    assert!(detail.referenced >= Some(Bytes(page)), "{detail:?}");
    assert!(detail.resident.unwrap_or_default() + detail.swapped.unwrap_or_default() >= Bytes(page), "{detail:?}");

    let all: Ranges = (0..pages).step_by(3).map(|number| start + number * page..start + (number + 1) * page).collect();
    let mut scanned = Pagemap::open(process.dir(), kernel.page()).expect("a file");
    let mut read = Pagemap::open(process.dir(), kernel.page()).expect("a file").without_scan();
    // A page may have been swapped out meanwhile, so present and swapped count alike.
    for pagemap in [&mut scanned, &mut read] {
        assert_eq!(runs(pagemap, range.clone()).into_iter().map(|(range, _)| range).collect::<Ranges>(), all);
    }
    // This process has no child that shares the memory.
    read.for_each_shared(range.clone(), |at, _| panic!("{at:x} is another's, too")).expect("readable");
    assert_eq!(detail.private, detail.resident);
    assert_eq!(detail.proportional, detail.resident);
    // SAFETY: the mapping made above, which is no longer used.
    unsafe { libc::munmap(memory, length) };
    assert_eq!(runs(&mut scanned, range), []);
}
