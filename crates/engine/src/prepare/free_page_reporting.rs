//! Handing free memory back to the host of this machine: compact it into blocks large enough to be reported, and wait
//! until the host was told of them.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::{Actuator, Outcome, compaction};
use omr_base::cancel::Flag;
use omr_kernel::{Kernel, buddyinfo, clock, page_reporting, zoneinfo};
use omr_policy::End;
use omr_units::{Bytes, Pages};
use serde::Serialize;

use crate::session::NewActuator;

/// Passes of compaction that make no more blocks, before it is over.
const PASSES_IN_VAIN: u32 = 2;
/// However much each makes.
const MOST_PASSES: u32 = 20;
/// How often is looked.
const LOOK: Duration = Duration::from_millis(250);
/// Reports go out 2 s apart: so long without another is the end of it.
const STALL: Duration = Duration::from_secs(8);
/// The host has to know of all for so long: blocks that it is being told of are on no list, so they are missing from what is
/// free, 32 at a time.
const SETTLED: Duration = Duration::from_secs(1);
/// Where nothing can be seen: 17 rounds, as many as the kernel needs when it tells a sixteenth in each.
const UNSEEN: Duration = Duration::from_secs(34);

/// Free memory in the zones that are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Free memory.
    pub free: Bytes,
    /// Of it, in blocks that are large enough to be reported.
    pub in_blocks: Bytes,
    /// How many those are.
    pub blocks: u64,
    /// How many of them the host was told of; `None` where the kernel does not show it.
    pub reported: Option<u64>,
}

impl Blocks {
    /// Looks what is free now, in blocks of this order and larger ones.
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

    /// Whether the host knows of all.
    fn is_reported(&self) -> bool {
        self.reported.is_some_and(|reported| reported >= self.blocks)
    }

    /// Whether it knows of nearly all: blocks come and go while the counts are read.
    fn is_nearly_reported(&self) -> bool {
        self.reported.is_some_and(|reported| reported.saturating_mul(10) >= self.blocks.saturating_mul(9))
    }
}

/// Of the time that there is for preparing, what compacting and reports need: a quarter and no more than 10 s, as reports go
/// out while memory is reclaimed as well.
pub fn reserve(time: Duration) -> Duration {
    (time / 4).min(Duration::from_secs(10))
}

/// Compacts what is free and waits until the host was told of it; `None`: no host is told of anything. For the daemon.
pub fn run(kernel: &Kernel, root: &Path, new_actuator: NewActuator<'_>, stop: &Flag) -> Result<Option<Blocks>> {
    let Some(order) = page_reporting::read_order(kernel)? else { return Ok(None) };
    compact_fully(kernel, root, order, new_actuator, stop)?;
    let (blocks, _) = wait(kernel, order, stop, &mut |_| {})?;
    Ok(Some(blocks))
}

/// Size of the smallest block that is reported.
pub fn block(kernel: &Kernel, order: u32) -> Bytes {
    Pages(1u64.checked_shl(order).unwrap_or(u64::MAX)).bytes(kernel.page())
}

/// Compacts all memory; `None` when the time was up before.
///
/// The write returns when all zones are done and nothing but the end of the process ends it before, so it is made in a
/// thread of its own, which is left behind at a stop.
pub fn compact(root: &Path, mut actuator: Box<dyn Actuator>, stop: &Flag) -> Result<Option<Outcome>> {
    let kernel = Kernel::open(root)?;
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("omr-compact".into())
        .stack_size(64 << 10)
        .spawn(move || sender.send(compaction::compact(&kernel, &mut *actuator)))
        .context("a thread for compaction")?;
    loop {
        match receiver.recv_timeout(Duration::from_millis(10)) {
            Ok(outcome) => return Ok(Some(outcome?)),
            Err(RecvTimeoutError::Timeout) if stop.is_set() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(err @ RecvTimeoutError::Disconnected) => return Err(err).context("compaction"),
        }
    }
}

/// Compacts again and again, until that makes no more blocks; as [`compact`] otherwise.
///
/// One pass does not move everything, and what was freed a moment ago is partly on the lists of the CPUs, 7.x keeping more
/// there. (Of 400 MiB free, 7.3 had 167 MiB in blocks after one pass, as after ten; with the lists drained before each it is
/// nearly all. 6.12 needs one pass.)
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

/// Waits until the host was told of all blocks, until no more are told of, or until it must end.
pub fn wait(kernel: &Kernel, order: u32, stop: &Flag, progress: &mut dyn FnMut(&Blocks)) -> Result<(Blocks, End)> {
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
        stop.sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use omr_actuate::{Live, Transcript};
    use omr_testkit::FakeRoot;

    use super::*;
    use crate::stand_in::Writes;

    const ORDER: u32 = 3;
    const REPORTED: u64 = 1 << 10 | 1 << 3;

    /// Five free blocks of 8 pages at the beginning of a zone that is large enough to be reported, the first of them
    /// reported; beside it a zone that is not.
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
    fn waiting_ends_when_the_host_knows_of_all() {
        let root = machine(4);
        let mut seen = Vec::new();
        let (blocks, end) =
            wait(&kernel(&root), ORDER, &Flag::default(), &mut |blocks| seen.push(*blocks)).expect("it");
        assert_eq!((end, blocks.reported), (End::Complete, Some(4)));
        assert_eq!((seen.first(), seen.last()), (Some(&blocks), Some(&blocks)));
    }

    #[test]
    fn blocks_that_the_host_is_being_told_of_are_waited_for() {
        let root = machine(3);
        let told =
            |free: &str| root.write("proc/buddyinfo", format!("Node 0, zone Normal {free}\nNode 0, zone Movable 0\n"));
        // One is on no list, so three of three are reported.
        told("9 0 0 2 1");
        let mut looks = 0;
        let stop = Flag::with_timeout(Some(Duration::from_secs(2)));
        let (blocks, end) = wait(&kernel(&root), ORDER, &stop, &mut |_| {
            looks += 1;
            told("9 0 0 3 1");
        })
        .expect("it");
        assert_eq!((end, blocks.blocks, blocks.reported), (End::Timeout, 4, Some(3)));
        assert!(looks > 2);
    }

    #[test]
    fn waiting_ends_with_the_time() {
        let root = machine(1);
        let stop = Flag::with_timeout(Some(Duration::ZERO));
        let (blocks, end) = wait(&kernel(&root), ORDER, &stop, &mut |_| {}).expect("it");
        assert_eq!((end, blocks.reported), (End::Timeout, Some(1)));
        stop.set();
        root.remove("proc/kpageflags");
        let (blocks, _) = wait(&kernel(&root), ORDER, &stop, &mut |_| {}).expect("it");
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
    fn compaction_goes_on_while_it_makes_blocks() {
        let root = machine(0);
        let transcript = Transcript::new(Live);
        let actuator = || -> Box<dyn Actuator> { Box::new(transcript.clone()) };
        let outcome =
            compact_fully(&kernel(&root), root.path(), ORDER, &actuator, &Flag::default()).expect("compacted");
        // One that made all there are, and two in vain.
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
    fn compaction_is_left_behind_when_the_time_is_up() {
        let root = machine(0);
        let stop = Flag::with_timeout(Some(Duration::from_millis(30)));
        assert_eq!(compact(root.path(), slow(), &stop).expect("no error"), None);
    }
}
