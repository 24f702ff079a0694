//! Returns free memory to the host of this machine: compacts it into blocks that are large enough
//! for free page reporting, and waits until the kernel has reported them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_actuate::{Actuator, Outcome, compaction};
use omr_base::cancel::Flag;
use omr_base::paths;
use omr_kernel::{Kernel, buddyinfo, clock, page_reporting, zoneinfo};
use omr_policy::End;
use omr_units::{Bytes, Pages};
use serde::Serialize;

use crate::session::NewActuator;

/// Compaction ends after this number of passes in a row without more blocks.
const PASSES_IN_VAIN: u32 = 2;
/// The most passes of compaction.
const MOST_PASSES: u32 = 20;
/// The time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The wait ends after this time without a report. Reports are 2 s apart.
const STALL: Duration = Duration::from_secs(8);
/// All blocks must be reported for this time: blocks that are being reported, up to 32 at a time,
/// are on no list, so they are missing from the free ones.
const SETTLED: Duration = Duration::from_secs(1);
/// The wait if reports cannot be seen: 17 rounds, as the kernel reports a sixteenth in each round.
const UNSEEN: Duration = Duration::from_secs(34);

/// Free memory in the zones that are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Free memory.
    pub free: Bytes,
    /// The part of it in blocks that are large enough to be reported.
    pub in_blocks: Bytes,
    /// The number of these blocks.
    pub blocks: u64,
    /// The number of reported blocks; `None`: the kernel does not show it.
    pub reported: Option<u64>,
}

impl Blocks {
    /// Reads the free memory, and its part in blocks of at least this order.
    pub fn read(kernel: &Kernel, order: u32) -> Result<Self> {
        let buffer = &mut Vec::new();
        let free = buddyinfo::read(kernel, buffer)?;
        let mut sum = Blocks { reported: Some(0), ..Blocks::default() };
        let zones = zoneinfo::read(kernel, buffer)?;
        for zone in zones.iter().filter(|zone| page_reporting::is_reported(zone, order)) {
            let Some(blocks) = free.iter().find(|blocks| blocks.zone == zone.id) else { continue };
            sum.free += zone.free.bytes(kernel.page());
            sum.in_blocks += blocks.pages_from(order).bytes(kernel.page());
            sum.blocks = sum.blocks.saturating_add(blocks.from(order));
            let reported = page_reporting::read_reported(kernel, zone, order)?;
            sum.reported = sum.reported.zip(reported).map(|(sum, more)| sum + more);
        }
        Ok(sum)
    }

    /// Returns true if all blocks are reported.
    fn is_reported(&self) -> bool {
        self.reported.is_some_and(|reported| reported >= self.blocks)
    }

    /// Returns true if nearly all blocks are reported: blocks come and go while the counts are
    /// read.
    fn is_nearly_reported(&self) -> bool {
        self.reported.is_some_and(|reported| reported.saturating_mul(10) >= self.blocks.saturating_mul(9))
    }
}

/// Returns the part of a preparation's time that is for compaction and reports: a quarter, at most
/// 10 s, as the kernel also reports during reclaim.
pub fn reserve(time: Duration) -> Duration {
    (time / 4).min(Duration::from_secs(10))
}

/// Compacts free memory and waits until it is reported, for the daemon; `None`: this machine has no
/// free page reporting.
pub fn run(kernel: &Kernel, root: &Path, new_actuator: NewActuator<'_>, stop: &Flag) -> Result<Option<Blocks>> {
    let Some(order) = page_reporting::read_order(kernel)? else { return Ok(None) };
    let compacted = compact_fully(kernel, root, order, new_actuator, stop)?;
    if let Some(outcome) = compacted
        && outcome != Outcome::Done
    {
        log::warn!("free memory was not compacted ({outcome:?}), so the host gets less of it");
    }
    let (blocks, _) = wait_for_reports(kernel, order, stop, &mut |_| {})?;
    Ok(Some(blocks))
}

/// Returns the size of the smallest block that is reported.
pub fn block_size(kernel: &Kernel, order: u32) -> Bytes {
    Pages(1u64.checked_shl(order).unwrap_or(u64::MAX)).bytes(kernel.page())
}

/// Compacts all memory; `None`: cancelled before the end.
///
/// The write returns when all zones are compacted, and only the end of the process ends it earlier.
/// So a thread makes the write, and a cancelled run leaves the thread behind. Whoever is not uid 0 may
/// not write, whatever its capabilities, and asks `omr-compact.socket`.
pub fn compact(root: &Path, mut actuator: Box<dyn Actuator>, stop: &Flag) -> Result<Option<Outcome>> {
    let (kernel, socket) = (Kernel::open(root)?, paths::compact_socket(root));
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("omr-compact".into())
        .stack_size(64 << 10)
        .spawn(move || {
            let outcome = compaction::compact(&kernel, &mut *actuator);
            let is_denied = matches!(outcome, Ok(Outcome::Denied)) && socket.symlink_metadata().is_ok();
            sender.send(if is_denied { Ok(ask(&socket)) } else { outcome })
        })
        .context("start a thread for compaction")?;
    loop {
        match receiver.recv_timeout(Duration::from_millis(10)) {
            Ok(outcome) => return Ok(Some(outcome?)),
            Err(RecvTimeoutError::Timeout) if stop.is_set() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(err @ RecvTimeoutError::Disconnected) => return Err(err).context("compaction"),
        }
    }
}

/// The word of `omr-compact@.service` when all is compacted.
const DONE: &[u8] = b"done\n";

/// Asks `omr-compact@.service` to compact all memory once.
fn ask(socket: &Path) -> Outcome {
    let asked = UnixStream::connect(socket).and_then(|mut stream| {
        let mut answer = Vec::new();
        Read::by_ref(&mut stream).take(64).read_to_end(&mut answer)?;
        Ok(answer)
    });
    match asked {
        Ok(answer) if answer == DONE => Outcome::Done,
        Ok(_) => Outcome::Denied,
        Err(err) => {
            log::warn!("{}: {err}", socket.display());
            Outcome::Denied
        }
    }
}

/// Compacts all memory once, for whoever is at the other end of `stream`: systemd starts this for a
/// connection to `omr-compact.socket`. Nothing is read from it.
pub fn serve(kernel: &Kernel, actuator: &mut dyn Actuator, mut stream: impl Write) -> Result<()> {
    compaction::drain_per_cpu_lists(kernel);
    match compaction::compact(kernel, actuator)? {
        Outcome::Done => stream.write_all(DONE).context("answer"),
        outcome => bail!("free memory was not compacted ({outcome:?})"),
    }
}

/// Compacts as [`compact`] does, repeatedly, until a pass makes no more blocks.
///
/// One pass does not move all memory, and memory that was freed just now is partly on the lists of
/// the CPUs; 7.x keeps more there. (Measured with 400 MiB free: 7.3 had 167 MiB in blocks after one
/// pass and after ten, and nearly all if the lists were drained before each pass. 6.12 needs one
/// pass.)
pub fn compact_fully(
    kernel: &Kernel,
    root: &Path,
    order: u32,
    new_actuator: NewActuator<'_>,
    stop: &Flag,
) -> Result<Option<Outcome>> {
    let (mut most, mut in_vain) = (Bytes::ZERO, 0);
    for _ in 0..MOST_PASSES {
        compaction::drain_per_cpu_lists(kernel);
        let outcome = compact(root, new_actuator(), stop)?;
        let in_blocks = Blocks::read(kernel, order)?.in_blocks;
        in_vain = if in_blocks > most { 0 } else { in_vain + 1 };
        most = most.max(in_blocks);
        if outcome != Some(Outcome::Done) || in_vain == PASSES_IN_VAIN {
            return Ok(outcome);
        }
    }
    Ok(Some(Outcome::Done))
}

/// Waits until all blocks are reported, until no more reports come, or until the flag is set.
pub fn wait_for_reports(
    kernel: &Kernel,
    order: u32,
    stop: &Flag,
    progress: &mut dyn FnMut(&Blocks),
) -> Result<(Blocks, End)> {
    let began = clock::read_monotonic();
    let (mut most, mut when) = (0, began);
    let mut knows_since = None;
    loop {
        let blocks = Blocks::read(kernel, order)?;
        progress(&blocks);
        let now = clock::read_monotonic();
        knows_since = if blocks.is_reported() { knows_since.or(Some(now)) } else { None };
        if blocks.reported.is_some_and(|reported| reported > most) {
            (most, when) = (blocks.reported.unwrap_or_default(), now);
        }
        let end = match blocks.reported {
            Some(_) if knows_since.is_some_and(|since| now.since(since) >= SETTLED || stop.is_set()) => {
                Some(End::Complete)
            }
            Some(_) if now.since(when) >= STALL && blocks.is_nearly_reported() => Some(End::Complete),
            Some(_) if now.since(when) >= STALL => Some(End::Futile),
            None if now.since(began) >= UNSEEN => Some(End::Complete),
            _ if stop.is_set() => Some(if stop.timed_out() { End::Timeout } else { End::Stopped }),
            _ => None,
        };
        if let Some(end) = end {
            return Ok((blocks, end));
        }
        stop.sleep(CHECK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use omr_actuate::{Live, Transcript};
    use omr_testkit::FakeRoot;

    use super::*;
    use crate::stand_in::{Writes, stop_clocks};

    const ORDER: u32 = 3;
    const REPORTED: u64 = 1 << 10 | 1 << 3;

    /// A machine with five free blocks of 8 pages in a zone that is large enough to be reported, of
    /// which the first `reported` are reported, and a second zone that is too small.
    fn machine(reported: usize) -> FakeRoot {
        let zone = |name: &str, free: u64, start: u64| {
            format!("Node 0, zone {name}\n  pages free {free}\n  low 10\n  spanned 64\n  start_pfn: {start}\n")
        };
        let mut flags = vec![0u64; 128];
        flags[..40].iter_mut().step_by(8).take(reported).for_each(|flags| *flags = REPORTED);
        let flags: Vec<u8> = flags.iter().flat_map(|flags| flags.to_ne_bytes()).collect();
        FakeRoot::new()
            .proc("zoneinfo", zone("Normal", 500, 0) + &zone("Movable", 60, 64))
            .proc("buddyinfo", "Node 0, zone Normal 9 0 0 3 1\nNode 0, zone Movable 0 0 0 7\n")
            .proc("kpageflags", flags)
            .proc("sys/vm/compact_memory", "")
    }

    fn kernel(root: &FakeRoot) -> Kernel {
        Kernel::open(root.path()).expect("a fake root opens")
    }

    #[test]
    fn only_zones_that_are_reported_count() {
        let root = machine(2);
        let kernel = kernel(&root);
        let page = kernel.page().bytes().0;
        let blocks = Blocks::read(&kernel, ORDER).expect("readable");
        assert_eq!((blocks.blocks, blocks.reported), (4, Some(2)));
        assert_eq!((blocks.free, blocks.in_blocks), (Bytes(500 * page), Bytes((3 * 8 + 16) * page)));
    }

    #[test]
    fn a_wait_ends_when_all_blocks_are_reported() {
        let root = machine(4);
        let mut seen = Vec::new();
        let (blocks, end) =
            wait_for_reports(&kernel(&root), ORDER, &Flag::default(), &mut |blocks| seen.push(*blocks)).expect("it");
        assert_eq!((end, blocks.reported), (End::Complete, Some(4)));
        assert_eq!((seen.first(), seen.last()), (Some(&blocks), Some(&blocks)));
    }

    #[test]
    fn a_wait_includes_blocks_that_are_being_reported() {
        let root = machine(3);
        let told =
            |free: &str| root.write("proc/buddyinfo", format!("Node 0, zone Normal {free}\nNode 0, zone Movable 0\n"));
        // One block is on no list, so three of three are reported.
        told("9 0 0 2 1");
        let mut looks = 0;
        let stop = Flag::with_timeout(Some(Duration::from_secs(2)));
        let (blocks, end) = wait_for_reports(&kernel(&root), ORDER, &stop, &mut |_| {
            looks += 1;
            told("9 0 0 3 1");
        })
        .expect("it");
        assert_eq!((end, blocks.blocks, blocks.reported), (End::Timeout, 4, Some(3)));
        assert!(looks > 2);
    }

    #[test]
    fn a_wait_without_further_reports_ends() {
        // 19 blocks, of which nearly all, or not nearly all, are reported.
        for (reported, end) in [(18, End::Complete), (17, End::Futile)] {
            let clocks = stop_clocks();
            let root = machine(0);
            root.write("proc/buddyinfo", "Node 0, zone Normal 9 0 0 19 0\nNode 0, zone Movable 0\n");
            let mut flags = vec![0u64; 160];
            flags.iter_mut().step_by(8).take(reported).for_each(|flags| *flags = REPORTED);
            root.write("proc/kpageflags", flags.iter().flat_map(|flags| flags.to_ne_bytes()).collect::<Vec<u8>>());
            let zones = root.read("proc/zoneinfo").replacen("spanned 64", "spanned 160", 1);
            root.write("proc/zoneinfo", zones);
            let (blocks, ended) = wait_for_reports(&kernel(&root), ORDER, &Flag::default(), &mut |_| {}).expect("it");
            assert_eq!((ended, blocks.reported, blocks.blocks), (end, Some(reported as u64), 19));
            assert_eq!(clocks.passed(), STALL);
        }
        // Nobody can see the reports.
        let clocks = stop_clocks();
        let root = machine(0);
        root.remove("proc/kpageflags");
        let (_, ended) = wait_for_reports(&kernel(&root), ORDER, &Flag::default(), &mut |_| {}).expect("it");
        assert_eq!((ended, clocks.passed()), (End::Complete, UNSEEN));
    }

    #[test]
    fn free_memory_is_compacted_and_reported_where_somebody_wants_reports() {
        let _clocks = stop_clocks();
        let root = machine(4);
        let transcript = Transcript::new(Live);
        let actuator = || -> Box<dyn Actuator> { Box::new(transcript.clone()) };
        let ran = || run(&kernel(&root), root.path(), &actuator, &Flag::default()).expect("no error");
        assert_eq!((ran(), transcript.lines().len()), (None, 0));
        root.write("sys/module/page_reporting/parameters/page_reporting_order", format!("{ORDER}\n"));
        assert_eq!(ran().map(|blocks| blocks.reported), Some(Some(4)));
        assert_eq!(transcript.lines().len(), 3);
        // A kernel that does not compact reports all the same.
        root.remove("proc/sys/vm/compact_memory");
        assert_eq!(ran().map(|blocks| blocks.reported), Some(Some(4)));
        let page = kernel(&root).page().bytes();
        assert_eq!((block_size(&kernel(&root), 0), block_size(&kernel(&root), ORDER)), (page, Bytes(8 * page.0)));
        assert_eq!(reserve(Duration::from_secs(20)), Duration::from_secs(5));
        assert_eq!(reserve(Duration::from_secs(60)), Duration::from_secs(10));
    }

    #[test]
    fn a_wait_ends_when_the_time_is_up() {
        let root = machine(1);
        let stop = Flag::with_timeout(Some(Duration::ZERO));
        let (blocks, end) = wait_for_reports(&kernel(&root), ORDER, &stop, &mut |_| {}).expect("it");
        assert_eq!((end, blocks.reported), (End::Timeout, Some(1)));
        stop.set();
        root.remove("proc/kpageflags");
        let (blocks, _) = wait_for_reports(&kernel(&root), ORDER, &stop, &mut |_| {}).expect("it");
        assert_eq!(blocks.reported, None);
    }

    #[test]
    fn compaction_is_one_write() {
        let root = machine(0);
        let transcript = Transcript::new(Live);
        let outcome = compact(root.path(), Box::new(transcript.clone()), &Flag::default()).expect("compacted");
        assert_eq!(outcome, Some(Outcome::Done));
        let path: PathBuf = root.resolve("proc/sys/vm/compact_memory");
        assert_eq!(transcript.lines(), [(path, "1".to_owned())]);
        root.remove("proc/sys/vm/compact_memory");
        assert_eq!(compact(root.path(), Box::new(Live), &Flag::default()).expect("no error"), Some(Outcome::Gone));
    }

    #[test]
    fn who_may_not_compact_asks_a_service_of_roots() {
        let root = machine(0);
        // As the kernel answers unless the process is uid 0.
        let refuses = || Writes(|_: &str| Outcome::Denied);
        let compacted = || compact(root.path(), Box::new(refuses()), &Flag::default()).expect("no error");
        assert_eq!(compacted(), Some(Outcome::Denied), "the control: nobody to ask");
        let socket = paths::compact_socket(root.path());
        std::fs::create_dir_all(socket.parent().expect("a directory")).expect("made");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let kernel = kernel(&root);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().expect("the daemon");
                serve(&kernel, &mut Live, &stream).expect("compacted");
                drop(stream);
                // This one ends without an answer.
                let (stream, _) = listener.accept().expect("the daemon");
                serve(&kernel, &mut refuses(), &stream).expect_err("refused");
            });
            assert_eq!(compacted(), Some(Outcome::Done));
            assert_eq!(root.read("proc/sys/vm/compact_memory"), "1");
            assert_eq!(compacted(), Some(Outcome::Denied));
        });
        drop(listener);
        assert_eq!(compacted(), Some(Outcome::Denied), "nobody listens");
    }

    #[test]
    fn compaction_goes_on_while_it_makes_blocks() {
        let root = machine(0);
        let transcript = Transcript::new(Live);
        let actuator = || -> Box<dyn Actuator> { Box::new(transcript.clone()) };
        let outcome =
            compact_fully(&kernel(&root), root.path(), ORDER, &actuator, &Flag::default()).expect("compacted");
        // One pass made all blocks, and two made none.
        assert_eq!((outcome, transcript.lines().len()), (Some(Outcome::Done), 3));
        let stop = Flag::default();
        stop.set();
        assert_eq!(compact_fully(&kernel(&root), root.path(), ORDER, &slow, &stop).expect("no error"), None);
    }

    /// A kernel that compacts for an hour.
    fn slow() -> Box<dyn Actuator> {
        Box::new(Writes(|_: &str| {
            thread::sleep(Duration::from_secs(3600));
            Outcome::Done
        }))
    }

    #[test]
    fn a_compaction_thread_is_left_behind_when_the_time_is_up() {
        let root = machine(0);
        let stop = Flag::with_timeout(Some(Duration::from_millis(30)));
        assert_eq!(compact(root.path(), slow(), &stop).expect("no error"), None);
    }
}
