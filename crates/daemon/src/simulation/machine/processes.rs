//! Processes of the model machine, whose memory is that of a part of their group's blocks, and their
//! files below `/proc`.

use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use omr_actuate::Advice;
use omr_kernel::Dir;
use omr_policy::rank::ProcessId;

use super::{BLOCK, Evicted, Group, Kind, Machine, PAGES, REMOVED, SECOND, swap_out};
use crate::simulation::Nanos;

/// The program of which a rule says that it is in the background; no rule knows [`OTHER`].
pub const WORKER: &str = "/usr/bin/worker";
pub const OTHER: &str = "/usr/bin/other";
/// The address of a group's first block.
const START: u64 = BLOCK;
/// Bits of an entry in `pagemap`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// The effect of a hint.
#[derive(Clone, Copy, Default)]
pub struct Hinted {
    pub evicted: Evicted,
    /// Bytes that came back from swap.
    pub back: u64,
}

/// A process.
pub struct Process {
    pub id: ProcessId,
    /// The number of the group that it is in, and since when.
    pub group: u64,
    pub moved: Nanos,
    /// The group whose blocks are its memory, by number, and its blocks.
    pub home: u64,
    blocks: Range<usize>,
    program: &'static str,
    /// The inode number of its directory.
    inode: u64,
    /// CPU time: thousandths of a CPU that it uses now, and the sum so far.
    load: u64,
    used: Nanos,
    /// It began to use a CPU at this time, and last used it at that time. It rests otherwise.
    pub began_use: Nanos,
    pub last_used: Nanos,
    /// Somebody said `omr foreground` of it.
    pub said_foreground: Option<Nanos>,
    /// The places of its blocks that its page table shows.
    shown: Vec<Option<bool>>,
    pagemap: File,
    is_dirty: bool,
}

impl Machine {
    /// The process whose directory this is; `None`: it has ended.
    pub fn find_process(&self, dir: &Dir) -> Option<usize> {
        let inode = dir.id().ok()?.0;
        self.processes.iter().position(|process| process.inode == inode)
    }

    /// The group of this number.
    pub fn group_of(&self, number: u64) -> Option<&Group> {
        self.groups.iter().find(|group| group.exists && group.number == number)
    }

    /// Returns true if a rule says that it is in the background, and its group is there.
    pub fn is_background(&self, process: &Process) -> bool {
        process.program == WORKER && self.group_of(process.group).is_some_and(|group| group.kind == Kind::Background)
    }

    /// Starts a process with these blocks of a group. `pid`: one that is free; `None`: the next one.
    pub fn start_process(&mut self, group: usize, blocks: Range<usize>, program: &'static str, pid: Option<u32>) {
        let pid = pid.unwrap_or_else(|| {
            self.pids += 1;
            self.pids
        });
        let group = self.groups[group].number;
        let dir = format!("proc/{pid}");
        let name = program.rsplit('/').next().unwrap_or_default();
        let adj = if program == WORKER { 300 } else { 0 };
        self.root.write(format!("{dir}/oom_score_adj"), format!("{adj}\n"));
        self.root.write(format!("{dir}/cmdline"), format!("{name}\0"));
        let range = format!("{:x}-{:x}", address(blocks.start), address(blocks.end));
        self.root.write(format!("{dir}/maps"), format!("{range} rw-p 00000000 00:00 0                  [heap]\n"));
        self.root.write(format!("{dir}/pagemap"), "");
        let dir = self.root.resolve(dir);
        std::os::unix::fs::symlink(program, dir.join("exe")).expect("made");
        let pagemap = std::fs::OpenOptions::new().write(true).open(dir.join("pagemap")).expect("a file");
        self.processes.push(Process {
            id: ProcessId { pid, start: self.now / 10_000_000 },
            group,
            moved: self.now,
            home: group,
            shown: vec![None; blocks.len()],
            blocks,
            program,
            inode: std::fs::metadata(dir).expect("a directory").ino(),
            load: 0,
            used: 0,
            began_use: self.now,
            last_used: self.now,
            said_foreground: None,
            pagemap,
            is_dirty: true,
        });
        self.show_process(self.processes.len() - 1);
    }

    /// Ends a process. Whoever has its directory open can read nothing there any more.
    pub fn end_process(&mut self, index: usize) -> Process {
        let process = self.processes.swap_remove(index);
        let dir = format!("proc/{}", process.id.pid);
        self.forget(&format!("{dir}/"));
        let dir = self.root.resolve(dir);
        for file in std::fs::read_dir(&dir).expect("a process").flatten() {
            // An open `maps` or `pagemap` is empty from now on.
            if matches!(file.file_name().to_str(), Some("maps" | "pagemap")) {
                File::create(file.path()).expect("an empty file");
            }
            std::fs::remove_file(file.path()).expect("removed");
        }
        self.removed += 1;
        let removed = self.root.resolve(REMOVED);
        std::fs::create_dir_all(&removed).expect("made");
        std::fs::rename(dir, removed.join((self.removed % 64).to_string())).expect("moved");
        process
    }

    /// The process of this identity.
    pub fn process(&self, id: ProcessId) -> Option<usize> {
        self.processes.iter().position(|process| process.id == id)
    }

    /// All programs are started again, as the machine boots.
    pub(super) fn restart_all_processes(&mut self) {
        for id in self.processes.iter().map(|process| process.id).collect::<Vec<_>>() {
            self.process(id).into_iter().for_each(|index| self.restart_process(index, None));
        }
    }

    pub(super) fn end_processes_of(&mut self, group: u64) {
        while let Some(index) = self.processes.iter().position(|of| of.group == group || of.home == group) {
            self.end_process(index);
        }
    }

    /// A process ends, and its program is started again with new memory. Its pid goes to another
    /// process that is started again at the same time, if there is one.
    pub fn restart_process(&mut self, index: usize, other: Option<usize>) {
        let pid = self.processes[index].id.pid;
        // The one with the higher index first: the other one keeps its place.
        let mut ended = vec![(index, None)];
        ended.extend(other.filter(|other| *other != index).map(|other| (other, Some(pid))));
        ended.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        let ended: Vec<_> = ended.into_iter().map(|(index, pid)| (self.end_process(index), pid)).collect();
        for (process, pid) in ended {
            let Some(home) = self.find_number(process.home) else { continue };
            let (now, group) = (self.now, &mut self.groups[home]);
            let youngest = group.youngest();
            for block in &mut group.blocks[process.blocks.clone()] {
                (block.generation, block.accessed, block.used, block.is_deactivated) =
                    (Some(youngest), true, now, false);
            }
            group.is_dirty = true;
            self.machine_is_dirty = true;
            self.start_process(home, process.blocks, process.program, pid);
        }
    }

    /// A process is moved to another group. Its memory stays charged where it was.
    pub fn move_process(&mut self, index: usize, to: usize) {
        let number = self.groups[to].number;
        let process = &mut self.processes[index];
        (process.group, process.moved, process.is_dirty) = (number, self.now, true);
    }

    /// A process goes back to the group of its memory.
    pub fn move_back(&mut self, index: usize) {
        let process = &mut self.processes[index];
        (process.group, process.moved, process.is_dirty) = (process.home, self.now, true);
    }

    /// The process uses this many thousandths of a CPU from now on.
    pub fn set_process_load(&mut self, index: usize, load: u64) {
        let process = &mut self.processes[index];
        if process.load == 0 && load > 0 {
            process.began_use = self.now;
        }
        process.load = load;
    }

    pub(super) fn run_processes(&mut self, time: Nanos) {
        for process in self.processes.iter_mut().filter(|process| process.load > 0) {
            process.used += time * process.load / 1000;
            process.last_used = self.now + time;
            process.is_dirty = true;
        }
    }

    /// A hint about these addresses of a process.
    pub fn advise(&mut self, process: usize, ranges: &[Range<u64>], advice: Advice) -> Hinted {
        let (now, mut free, available) = (self.now, self.swap_free(), self.available());
        let mut hinted = Hinted::default();
        let Some(home) = self.find_number(self.processes[process].home) else { return hinted };
        let group = &mut self.groups[home];
        let (oldest, youngest) = (group.oldest, group.youngest());
        let place = |address: u64| usize::try_from((address - START) / BLOCK).expect("small");
        // The model moves whole blocks, so it does nothing to one that a range has in part.
        for place in ranges.iter().flat_map(|range| place(range.start + BLOCK - 1)..place(range.end)) {
            let block = &mut group.blocks[place];
            match (advice, block.generation) {
                (Advice::Cold, Some(_)) => {
                    (block.generation, block.accessed, block.is_deactivated) = (Some(oldest), false, true);
                }
                (Advice::PageOut, Some(_)) if free >= BLOCK => {
                    free -= BLOCK;
                    swap_out(block, now, &mut hinted.evicted);
                }
                (Advice::WillNeed, None) if available > hinted.back + BLOCK => {
                    hinted.back += BLOCK;
                    block.generation = Some(youngest);
                }
                _ => {}
            }
        }
        self.pswpin += hinted.back / 4096;
        self.note_evicted(home, hinted.evicted);
        self.show_process(process);
        hinted
    }

    /// The processes' memory may have changed: writes their files.
    pub(super) fn show_processes(&mut self, home: u64) {
        for index in (0..self.processes.len()).filter(|index| self.processes[*index].home == home).collect::<Vec<_>>() {
            self.processes[index].is_dirty = true;
        }
    }

    pub(super) fn show_dirty_processes(&mut self) {
        for index in 0..self.processes.len() {
            if self.processes[index].is_dirty {
                self.show_process(index);
            }
        }
    }

    fn show_process(&mut self, index: usize) {
        let Some(home) = self.find_number(self.processes[index].home) else { return };
        let group = self.group_of(self.processes[index].group).map(|group| group.path.clone()).unwrap_or_default();
        let process = &mut self.processes[index];
        process.is_dirty = false;
        let blocks = &self.groups[home].blocks[process.blocks.clone()];
        for (place, block) in blocks.iter().enumerate() {
            let present = Some(block.generation.is_some());
            if process.shown[place] != present {
                process.shown[place] = present;
                let entry = if present == Some(true) { PRESENT } else { SWAPPED };
                let at = address(process.blocks.start + place) / 4096 * 8;
                let entries = entry.to_ne_bytes().repeat(usize::try_from(PAGES).expect("few"));
                process.pagemap.write_all_at(&entries, at).expect("written");
            }
        }
        let resident = blocks.iter().filter(|block| block.generation.is_some()).count() as u64 * BLOCK;
        let swapped = blocks.len() as u64 * BLOCK - resident;
        let ProcessId { pid, start } = process.id;
        let name = process.program.rsplit('/').next().unwrap_or_default();
        let ticks = process.used / (SECOND / 100);
        let pages = resident / 4096;
        let stat = format!("{pid} ({name}) S 1 1 1 0 -1 4194304 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {start} 0 {pages}\n");
        let mut status = format!("Name:\t{name}\nUid:\t0\t0\t0\t0\n");
        for (field, bytes) in [("VmLck", 0), ("VmRSS", resident), ("RssAnon", resident), ("VmSwap", swapped)] {
            let _ = writeln!(status, "{field}:\t{:8} kB", bytes / 1024);
        }
        self.write(&format!("proc/{pid}/stat"), &stat);
        self.write(&format!("proc/{pid}/status"), &status);
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::/{group}\n"));
    }
}

fn address(block: usize) -> u64 {
    START + block as u64 * BLOCK
}
