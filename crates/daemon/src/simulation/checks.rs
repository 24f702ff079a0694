//! The promises: checked whenever omr writes, and when a daemon has ended.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_actuate::Advice;
use omr_policy::rank::ProcessId;
use serde_json::Value;

use super::learned::Learning;
use super::machine::processes::Process;
use super::machine::{BLOCK, Evicted, Group, HOUR, Kind, MINUTE, Machine, SECOND};
use super::{Nanos, Summary};

/// The time in which a sweep ends when somebody needs the machine.
const STOP: Nanos = SECOND / 10;

/// The time within which a scan has found all processes, and what they do.
const SCAN: Nanos = 8 * SECOND;
/// A process that rests for this long may get a hint.
const REST: Nanos = 10 * SECOND;

/// The most files that a daemon has open on a machine with some ten groups.
const MOST_FILES: u64 = 40;
/// Of them, files of groups that were removed since the last scan.
const MOST_OF_REMOVED: u64 = 20;

/// The goal of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Auto,
    Free,
}

/// The promises, and the facts that they need.
pub struct Checks {
    pub goal: Goal,
    /// The write budget of a day, in bytes.
    budget: u64,
    /// The part of swap that stays free, in percent.
    floor: u64,
    /// The time that the machine was asleep.
    pub slept: Nanos,
    /// Bytes that omr has written to swap on a disk, by the time since boot, asleep or not.
    written: VecDeque<(Nanos, u64)>,
    /// The records were lost, and no daemon has begun new ones yet.
    has_lost: bool,
    /// The records were begun anew by a wall clock that was wrong, which is right after the next boot.
    is_hour_wrong: bool,
    /// Bytes that killed daemons had written in sweeps that did not end, or that no disk took.
    unrecorded: u64,
    of_sweep: u64,
    /// Bytes that the disk does not have in the daemon's books yet.
    unsaved: u64,
    /// The group being swept, and since when.
    sweep: Option<(String, Nanos)>,
    /// The process that the worker is to hint, and since when.
    hint: Option<(ProcessId, Nanos)>,
    /// Sweeps are paused since then.
    pub paused: Option<Nanos>,
    /// The daemon was told that the machine will sleep.
    pub falls_asleep: Option<Nanos>,
    /// Somebody asked for a preparation, at this time.
    pub asked_to_prepare: Option<Nanos>,
    /// The daemon prepares for an event, whoever works.
    pub prepares: bool,
    /// The disk of the daemon's state is gone: new records are lost if the daemon ends.
    pub disk_is_away: bool,
    /// A task waited for memory, at this time.
    pub stalled: Option<Nanos>,
    /// Files that cannot be read since then.
    pub unreadable: Option<Nanos>,
    /// No file can be opened since then.
    pub blind: Option<Nanos>,
    /// The list of swap devices cannot be read since then.
    pub swaps_unreadable: Option<Nanos>,
    /// A limit is changed since then, and nothing keeps omr from restoring it.
    squeezed: Option<Nanos>,
    /// What was learned, in memory and in its file.
    pub learning: Learning,
    pub violation: Option<String>,
    pub summary: Summary,
}

impl Checks {
    pub fn new(goal: Goal, budget: u64, floor: u64) -> Self {
        Checks {
            goal,
            budget,
            floor,
            slept: 0,
            written: VecDeque::new(),
            has_lost: false,
            is_hour_wrong: false,
            unrecorded: 0,
            of_sweep: 0,
            unsaved: 0,
            sweep: None,
            hint: None,
            paused: None,
            falls_asleep: None,
            asked_to_prepare: None,
            prepares: false,
            disk_is_away: false,
            stalled: None,
            unreadable: None,
            blind: None,
            swaps_unreadable: None,
            squeezed: None,
            learning: Learning::default(),
            violation: None,
            summary: Summary::default(),
        }
    }

    /// The first violation counts.
    pub fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub fn begin_sweep(&mut self, path: &Path, now: Nanos) {
        self.sweep = Some((path.display().to_string(), now));
        self.of_sweep = 0;
        self.stalled = None;
        self.summary.sweeps += 1;
    }

    pub fn begin_hint(&mut self, id: ProcessId, now: Nanos) {
        self.hint = Some((id, now));
        self.of_sweep = 0;
        self.stalled = None;
    }

    /// Returns the bytes that were written to a swap disk.
    pub fn end_order(&mut self) -> u64 {
        (self.sweep, self.hint) = (None, None);
        let written = std::mem::take(&mut self.of_sweep);
        self.unsaved += written;
        written
    }

    /// The disk has the daemon's books.
    pub fn saved(&mut self) {
        self.unsaved = 0;
    }

    /// A write begins that takes memory from this group.
    pub fn before(&mut self, machine: &Machine, index: usize, now: Nanos, data: &str) {
        let written = self.written(now);
        self.summary.writes += 1;
        for byte in data.bytes().chain(now.to_le_bytes()) {
            self.summary.digest = (self.summary.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let group = &machine.groups[index];
        let mut promise = |is_kept: bool, what: &str| {
            if !is_kept {
                self.violation.get_or_insert_with(|| format!("{what}: {} by {data:?}", group.path));
            }
        };
        let late = |since: Option<Nanos>, grace: Nanos| since.is_some_and(|since| now > since + grace);
        promise(group.kind == Kind::Background, "a foreground or protected group loses memory");
        promise(!late(group.said_foreground, 0), "a group loses memory after omr foreground");
        promise(!late(group.kept_foreground, 0), "a group loses memory that a client keeps in the foreground");
        if !self.prepares {
            // A sweep may begin within the second in which work begins.
            let began = self.sweep.as_ref().map(|(_, began)| *began);
            let work = machine.full_since.map(|since| began.map_or(since, |began| since.max(began)));
            promise(!late(work, STOP), "a write begins more than 100 ms after work has begun");
            promise(!late(self.paused, 0), "a write begins while sweeps are paused");
            promise(!late(self.stalled, STOP), "a write begins more than 100 ms after a task had to wait");
            promise(!late(self.unreadable, 2 * SECOND), "a write begins while the kernel's files cannot be read");
            promise(!late(self.blind, 2 * SECOND), "a write begins while no file can be opened");
            promise(!late(group.unreadable, SCAN), "a write begins while the size of the group cannot be read");
        }
        // Whoever asks for a preparation after the machine was said to sleep gets one.
        let is_asked_for = self.prepares && self.asked_to_prepare >= self.falls_asleep;
        promise(is_asked_for || !late(self.falls_asleep, 0), "a write begins before the machine sleeps");
        // Otherwise page cache is dropped, and nothing goes to swap.
        let to_swap = machine.swap > 0 && !data.ends_with("swappiness=0");
        let floor = if self.prepares { self.floor.min(10) } else { self.floor };
        promise(!to_swap || machine.swap_free() * 100 >= machine.swap * floor, "swap has reached its floor");
        let began = self.sweep.as_ref().map_or(now, |(_, began)| *began);
        // Of two values that were in force since the sweep began, the smaller one counts.
        let low = if group.low.1 <= began { group.low.0 } else { group.low.0.min(group.low_before) };
        promise(group.current() > low, "protected memory is taken");
        if to_swap && !self.prepares {
            let is_unknown = late(self.swaps_unreadable, 2 * SECOND);
            promise(!is_unknown, "memory goes to swap while the list of swap devices cannot be read");
        }
        if self.goal == Goal::Auto && machine.swap_on_disk && to_swap && !self.prepares {
            promise(!late(machine.on_battery_since(), 2 * SECOND), "a write goes to a disk on battery");
        }
        if machine.swap_on_disk && to_swap && !self.prepares {
            let allowed = self.budget + self.unrecorded + 8 * BLOCK;
            promise(written <= allowed, "the write budget of the day is used up");
        }
    }

    /// A hint begins to the process whose directory omr has open.
    pub fn before_hint(&mut self, machine: &Machine, process: &Process, now: Nanos, advice: Advice) {
        self.summary.hints += 1;
        let written = self.written(now);
        let group = machine.group_of(process.group);
        let path = group.map(|group| group.path.clone()).unwrap_or_default();
        let mut promise = |is_kept: bool, what: &str| {
            if !is_kept {
                self.violation.get_or_insert_with(|| format!("{what}: {advice:?} to {:?} in {path}", process.id));
            }
        };
        let late = |since: Option<Nanos>, grace: Nanos| since.is_some_and(|since| now > since + grace);
        let began = self.hint.map_or(now, |(_, began)| began);
        let is_ordered = self.hint.is_some_and(|(id, _)| id == process.id);
        promise(is_ordered, "a process is hinted that nobody has chosen");
        promise(!late(self.paused, 0), "a hint begins while sweeps are paused");
        promise(!late(self.falls_asleep, 0), "a hint begins before the machine sleeps");
        if advice == Advice::WillNeed {
            return;
        }
        // Memory leaves, now or when it is short.
        let is_settled = now > process.moved + SCAN;
        promise(!is_settled || machine.is_background(process), "a process is hinted that is not in the background");
        promise(!late(process.said_foreground, 0), "a process is hinted after omr foreground");
        if let Some(group) = group.filter(|_| is_settled) {
            promise(!late(group.said_foreground, 0), "a process is hinted in a group after omr foreground");
            promise(!late(group.kept_foreground, 0), "a process is hinted that a client keeps in the foreground");
        }
        // A scan has seen when its use began, and that it has used a CPU since.
        let is_in_use = process.began_use + SCAN < now && process.last_used + REST > now + SECOND / 2;
        promise(!is_in_use, "a process is hinted that is in use");
        promise(!late(self.blind, 2 * SECOND), "a hint begins while no file can be opened");
        if advice != Advice::PageOut {
            return;
        }
        let is_above_floor = machine.swap == 0 || machine.swap_free() * 100 >= machine.swap * self.floor;
        promise(is_above_floor, "a process is paged out while swap has reached its floor");
        if let Some(home) = machine.group_of(process.home) {
            let low = if home.low.1 < began { home.low.0 } else { home.low.0.min(home.low_before) };
            promise(home.current() > low, "protected memory is paged out");
        }
        if machine.swap_on_disk {
            promise(!late(self.stalled, STOP), "a process is paged out more than 100 ms after a task had to wait");
            let on_battery = self.goal == Goal::Auto && late(machine.on_battery_since(), 2 * SECOND);
            promise(!on_battery, "a process is paged out to a disk on battery");
            let allowed = self.budget + self.unrecorded + 8 * BLOCK;
            promise(written <= allowed, "a process is paged out while the write budget of the day is used up");
        }
    }

    /// The bytes that were written to a swap disk in a day.
    fn written(&mut self, now: Nanos) -> u64 {
        while self.written.front().is_some_and(|(at, _)| at + 23 * HOUR < now + self.slept) {
            self.written.pop_front();
        }
        self.written.iter().map(|(_, bytes)| bytes).sum()
    }

    /// A write or a hint has moved this much.
    pub fn count(&mut self, machine: &Machine, now: Nanos, evicted: Evicted) {
        self.summary.to_swap += evicted.to_swap;
        if machine.swap_on_disk && evicted.to_swap > 0 {
            self.written.push_back((now + self.slept, evicted.to_swap));
            self.of_sweep += evicted.to_swap;
        }
        if self.disk_is_away {
            self.unrecorded += evicted.to_swap;
        }
    }

    /// The write has moved this much.
    pub fn after(&mut self, machine: &Machine, index: usize, now: Nanos, evicted: Evicted) {
        self.count(machine, now, evicted);
        // Without MGLRU a probe takes a little, whatever its age.
        if self.goal == Goal::Auto
            && machine.has_mglru
            && !self.prepares
            && evicted.youngest.is_some_and(|unused| unused < 2 * MINUTE - SECOND)
        {
            let unused = Duration::from_nanos(evicted.youngest.unwrap_or_default());
            let path = &machine.groups[index].path;
            self.fail(format!("memory of {path} was taken that was used {unused:?} ago"));
        }
    }

    /// The daemon was killed: the writes of its sweep are not in its books.
    pub fn killed(&mut self) {
        self.unrecorded += std::mem::take(&mut self.of_sweep);
        (self.sweep, self.hint) = (None, None);
        self.summary.kills += 1;
    }

    /// The disk did not give the records back: the daemon cannot know that they were good.
    pub fn lost_state(&mut self) {
        self.written.clear();
        self.has_lost = true;
    }

    /// A daemon has started. Without records it takes the wall clock for right, for the whole boot.
    pub fn started(&mut self, is_clock_right: bool) {
        self.is_hour_wrong |= std::mem::take(&mut self.has_lost) && !is_clock_right;
    }

    /// The machine has booted, and its clock is right.
    pub fn booted(&mut self) {
        if std::mem::take(&mut self.is_hour_wrong) {
            self.written.clear();
        }
        self.summary.boots += 1;
    }

    /// At each tick: no limit stays changed. `is_excused`: the worker is about to restore it, or cannot.
    pub fn look_at_limits(&mut self, machine: &Machine, now: Nanos, is_excused: bool) {
        let changed = machine.groups.iter().find(|group| group.exists && group.high != group.own_high);
        match changed.filter(|_| !is_excused) {
            None => self.squeezed = None,
            Some(group) => {
                if *self.squeezed.get_or_insert(now) + MINUTE < now {
                    let (path, high, own) = (&group.path, group.high, group.own_high);
                    self.violation.get_or_insert_with(|| format!("{path}: memory.high stays {high:?} and not {own:?}"));
                }
            }
        }
    }

    /// Now and then: what the daemon keeps is bounded.
    pub fn look(&mut self, machine: &Machine) {
        let (files, of_removed) = machine.open_files();
        self.summary.files = self.summary.files.max(files);
        if files > MOST_FILES || of_removed > MOST_OF_REMOVED {
            self.fail(format!("{files} files are open, {of_removed} of them of groups that are gone"));
        }
    }

    /// A daemon has ended. `are_restored`: nothing kept omr from restoring its limits.
    pub fn ended(&mut self, machine: &Machine, are_restored: bool) {
        self.unrecorded += std::mem::take(&mut self.unsaved);
        let changed = |group: &&Group| group.exists && group.high != group.own_high;
        for group in machine.groups.iter().filter(changed).filter(|_| are_restored) {
            let (path, high, own) = (&group.path, group.high, group.own_high);
            self.violation.get_or_insert_with(|| format!("{path}: memory.high is {high:?} and not {own:?}"));
        }
        if let Some(torn) = torn(machine) {
            self.violation.get_or_insert_with(|| format!("{torn} is neither the old nor the new file"));
        }
        if self.disk_is_away {
            // The next daemon finds no records at all, and writes its own over them later.
            self.lost_state();
            self.learning.replaced(machine);
            return;
        }
        let kept = self.learning.ended(machine);
        self.demand(kept);
    }

    /// A check of its own.
    pub fn demand(&mut self, kept: Result<(), String>) {
        if let Err(what) = kept {
            self.fail(what);
        }
    }
}

/// A file of the daemon's state that is not whole. Lines of the ledger may be.
fn torn(machine: &Machine) -> Option<String> {
    let dirs = ["var/lib/omr", "var/lib/omr/limits", "run/omr"].map(|dir| machine.root.resolve(dir));
    let files = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten().map(|file| file.path());
    let is_torn =
        |path: &PathBuf| std::fs::read(path).is_ok_and(|text| serde_json::from_slice::<Value>(&text).is_err());
    let mut torn = files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).filter(is_torn);
    torn.next().map(|path| path.display().to_string())
}
