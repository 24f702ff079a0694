//! The model machine: groups whose memory is used by plan, MGLRU, swap, CPU time, and the files
//! that show them. It changes when time passes and when omr writes.

pub mod processes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use omr_kernel::Dir;
use omr_testkit::{FakeRoot, Release};

use self::processes::Process;
use super::Nanos;

/// Memory moves in blocks of this size.
pub const BLOCK: u64 = 1 << 20;
/// Pages of 4 KiB in a block.
const PAGES: u64 = BLOCK / 4096;
/// The memory of the machine.
const MEMORY: u64 = 2 << 30;
/// Memory of the kernel and of everything outside of the groups.
const ELSEWHERE: u64 = 300 << 20;
/// CPUs, in thousandths.
pub const CPUS: u64 = 2000;
pub const SECOND: Nanos = 1_000_000_000;
pub const MINUTE: Nanos = 60 * SECOND;
pub const HOUR: Nanos = 60 * MINUTE;
/// The wall clock at boot, in seconds since 1970.
pub const BOOT: u64 = 1_700_000_000;
/// Generations that the kernel keeps, at most.
const GENERATIONS: u64 = 4;

/// The class of a group, as omr should see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A rule says foreground.
    Foreground,
    /// A rule says protected.
    Protected,
    /// Nobody says anything: background.
    Background,
}

/// A piece of a group's memory.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The generation; `None`: in swap.
    generation: Option<u64>,
    /// It was used since the last aging.
    accessed: bool,
    used: Nanos,
    /// It is used again after this time, more or less; zero: never.
    period: Nanos,
    /// A hint has deactivated it since its last use: its generation says nothing about its age.
    is_deactivated: bool,
}

/// A group.
pub struct Group {
    /// The path below the mount.
    pub path: String,
    pub kind: Kind,
    /// Its number in the kernel's list of generations; another one for a group made anew.
    number: u64,
    /// The inode number of its directory.
    inode: u64,
    pub exists: bool,
    blocks: Vec<Block>,
    /// The oldest generation, and when each was made.
    oldest: u64,
    born: Vec<Nanos>,
    /// Page cache that is not in the lists above, in bytes.
    file: u64,
    /// CPU time: thousandths of a CPU that it uses now, and the sum so far.
    load: u64,
    used: Nanos,
    refaults: u64,
    /// The limit that its owner has set, and the present one.
    pub own_high: Option<u64>,
    pub high: Option<u64>,
    /// Memory that is protected, and since when.
    pub low: (u64, Nanos),
    pub low_before: u64,
    /// Somebody said `omr foreground`, at this time.
    pub said_foreground: Option<Nanos>,
    /// Its size cannot be read since then.
    pub unreadable: Option<Nanos>,
    /// A client keeps it in the foreground, since this time.
    pub kept_foreground: Option<Nanos>,
    is_dirty: bool,
    cpu_is_dirty: bool,
}

impl Group {
    fn in_memory(&self) -> u64 {
        let resident = self.blocks.iter().filter(|block| block.generation.is_some()).count();
        resident as u64 * BLOCK
    }

    /// Bytes that are charged to it.
    pub fn current(&self) -> u64 {
        self.in_memory() + self.file
    }

    /// The number of its blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn swapped(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK - self.in_memory()
    }

    fn youngest(&self) -> u64 {
        self.oldest + self.born.len() as u64 - 1
    }
}

/// The effect of one write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evicted {
    /// Bytes that went to swap.
    pub to_swap: u64,
    /// Page cache that was dropped.
    pub dropped: u64,
    /// The shortest time for which a block was unused that went to swap.
    pub youngest: Option<Nanos>,
}

/// A file that changes often, and its text.
struct Shown {
    file: File,
    text: String,
}

/// The machine.
pub struct Machine {
    pub root: FakeRoot,
    /// The files that change often, by path below the root. They stay open: this takes a third of the
    /// calls of writing them anew.
    shown: HashMap<String, Shown>,
    pub groups: Vec<Group>,
    pub processes: Vec<Process>,
    /// The last process id that was given out.
    pids: u32,
    numbers: u64,
    /// Times at which blocks are used: time, group number, block.
    uses: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    now: Nanos,
    /// CPU time of the slices, with all groups that ever were in them, and of the root.
    slices: BTreeMap<String, Nanos>,
    /// CPU time of all CPUs: busy and idle.
    busy: Nanos,
    idle: Nanos,
    /// Everything outside of the background has used all CPUs since this time.
    pub full_since: Option<Nanos>,
    /// Swap, in bytes; zero: there is none.
    pub swap: u64,
    pub swap_on_disk: bool,
    pswpout: u64,
    pswpin: u64,
    /// The time that tasks have waited for memory.
    stall: Nanos,
    pub has_mglru: bool,
    /// Linux 6.16 and later.
    pub takes_swappiness_max: bool,
    on_battery: Option<(bool, Nanos)>,
    machine_is_dirty: bool,
    random: fastrand::Rng,
    /// Directories of removed groups are kept, as the file system may give their inode numbers to
    /// others.
    removed: u64,
    boots: u64,
}

const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

fn boot_id(number: u64) -> String {
    format!("7d0c9ad0-0000-4000-8000-{number:012}\n")
}

/// The directory of removed groups.
const REMOVED: &str = "removed";

fn inode(root: &FakeRoot, path: &str) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(root.resolve(cgroup(path))).expect("a group").ino()
}

fn cgroup(path: &str) -> PathBuf {
    PathBuf::from("sys/fs/cgroup").join(path)
}

impl Machine {
    /// A machine without groups, with this configuration of omr.
    pub fn new(config: &str, swap: u64, swap_on_disk: bool, has_mglru: bool, random: fastrand::Rng) -> Self {
        let root = FakeRoot::in_memory(Release::V6_12)
            .proc("self/cgroup", "0::/system.slice/omr.service\n")
            .sys("kernel/mm/lru_gen/enabled", if has_mglru { "0x0007\n" } else { "0x0000\n" })
            .file("run/omr/lock", "")
            .file("var/lib/omr/ledger.jsonl", "")
            .file("etc/omr/omr.toml", config);
        root.write(BOOT_ID, boot_id(1));
        root.remove("sys/power");
        for resource in ["cpu", "io"] {
            root.write(format!("proc/pressure/{resource}"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        }
        for (file, text) in [("queue/rotational", "0\n"), ("removable", "0\n"), ("size", "41943040\n")] {
            root.write(format!("sys/class/block/vda/{file}"), text);
        }
        Machine {
            root,
            shown: HashMap::new(),
            groups: Vec::new(),
            processes: Vec::new(),
            pids: 100_000,
            numbers: 1,
            uses: BinaryHeap::new(),
            now: HOUR,
            slices: BTreeMap::from([(String::new(), 0)]),
            busy: 0,
            idle: HOUR * 2,
            full_since: None,
            swap,
            swap_on_disk,
            pswpout: 0,
            pswpin: 0,
            stall: 0,
            has_mglru,
            takes_swappiness_max: false,
            on_battery: None,
            machine_is_dirty: true,
            random,
            removed: 0,
            boots: 1,
        }
    }

    /// The machine boots: all memory is new, and what `/run` had is gone.
    pub fn boot(&mut self) {
        self.boots += 1;
        self.root.write(BOOT_ID, boot_id(self.boots));
        let run = self.root.resolve("run/omr");
        let _ = std::fs::remove_dir_all(&run);
        std::fs::create_dir_all(&run).expect("made");
        self.root.write("run/omr/lock", "");
        for index in (0..self.groups.len()).filter(|index| self.groups[*index].exists).collect::<Vec<_>>() {
            self.set_low(index, 0);
            self.set_high(index, None);
            let (now, group) = (self.now, &mut self.groups[index]);
            group.blocks.iter_mut().for_each(|block| (block.generation, block.accessed) = (Some(1), true));
            (group.oldest, group.born) = (0, vec![now; 2]);
            (group.own_high, group.said_foreground, group.low_before) = (None, None, 0);
            (group.load, group.refaults, group.is_dirty) = (0, 0, true);
        }
        self.restart_all_processes();
        (self.pswpin, self.pswpout, self.stall) = (0, 0, 0);
        self.note_load();
        self.show_all();
    }

    /// Makes a group of this many MiB. Its blocks are used after these times, by share.
    pub fn add_group(&mut self, path: &str, kind: Kind, mib: u64, periods: &[(u64, Nanos)]) {
        let files: Vec<(&str, &str)> = vec![
            ("memory.reclaim", ""),
            ("memory.min", "0\n"),
            ("memory.low", "0\n"),
            ("memory.high", "max\n"),
            ("memory.max", "max\n"),
            ("memory.swap.max", "max\n"),
            ("memory.current", "0\n"),
            ("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
            ("cgroup.procs", ""),
            ("cgroup.controllers", "cpu memory\n"),
            ("cgroup.subtree_control", ""),
        ];
        if let Some(old) = self.groups.iter().position(|group| group.path == path) {
            self.remove_group(old);
            self.groups.remove(old);
        }
        let parent = PathBuf::from(path).parent().map(PathBuf::from).unwrap_or_default();
        let parent_file = self.root.resolve(cgroup("").join(&parent).join("cgroup.subtree_control"));
        std::fs::create_dir_all(parent_file.parent().expect("a directory")).expect("made");
        std::fs::write(parent_file, "cpu memory\n").expect("written");
        for (file, text) in files {
            self.root.write(cgroup(path).join(file), text);
        }
        let slice = path.split('/').next().unwrap_or_default();
        self.slices.entry(slice.to_owned()).or_default();
        self.numbers += 1;
        let number = self.numbers;
        let now = self.now;
        let mut blocks = Vec::new();
        for index in 0..mib {
            let mut place = self.random.u64(0..100);
            let mut period = 0;
            for (share, time) in periods {
                if place < *share {
                    period = *time;
                    break;
                }
                place -= share;
            }
            let index = usize::try_from(index).expect("small");
            blocks.push(Block { generation: Some(1), accessed: true, used: now, period, is_deactivated: false });
            if period > 0 {
                self.uses.push(Reverse((now + self.random.u64(0..2 * period), number, index)));
            }
        }
        self.groups.push(Group {
            path: path.into(),
            kind,
            number,
            inode: inode(&self.root, path),
            exists: true,
            blocks,
            oldest: 0,
            born: vec![now; 2],
            file: mib * BLOCK / 8,
            load: 0,
            used: 0,
            refaults: 0,
            own_high: None,
            high: None,
            low: (0, 0),
            low_before: 0,
            said_foreground: None,
            unreadable: None,
            kept_foreground: None,
            is_dirty: true,
            cpu_is_dirty: true,
        });
        self.machine_is_dirty = true;
        self.note_load();
    }

    /// Removes a group. Whoever has it open sees it go.
    pub fn remove_group(&mut self, index: usize) {
        let group = &mut self.groups[index];
        if !group.exists {
            return;
        }
        let (number, path) = (group.number, group.path.clone());
        self.set_readable(&path, true);
        self.end_processes_of(number);
        let group = &mut self.groups[index];
        group.exists = false;
        group.load = 0;
        group.blocks.clear();
        group.file = 0;
        let dir = self.root.resolve(cgroup(&group.path));
        let shown = format!("sys/fs/cgroup/{}/", group.path);
        self.forget(&shown);
        for file in std::fs::read_dir(&dir).expect("a group") {
            std::fs::remove_file(file.expect("a file").path()).expect("removed");
        }
        self.removed += 1;
        let removed = self.root.resolve(REMOVED);
        std::fs::create_dir_all(&removed).expect("made");
        std::fs::rename(dir, removed.join((self.removed % 64).to_string())).expect("moved");
        self.machine_is_dirty = true;
        self.note_load();
    }

    /// The place of the group whose directory this is; `None`: it is gone.
    pub fn find(&self, dir: &Dir) -> Option<usize> {
        let inode = dir.id().ok()?.0;
        self.groups.iter().position(|group| group.exists && group.inode == inode)
    }

    /// The path of the group whose directory has this inode number.
    pub fn path_of(&self, inode: u64) -> Option<&str> {
        self.groups.iter().find(|group| group.exists && group.inode == inode).map(|group| group.path.as_str())
    }

    /// The place of the group of this number in the list of generations.
    pub fn find_number(&self, number: u64) -> Option<usize> {
        self.groups.iter().position(|group| group.exists && group.number == number)
    }

    /// The group uses this many thousandths of a CPU from now on.
    pub fn set_load(&mut self, index: usize, load: u64) {
        self.groups[index].load = if self.groups[index].exists { load } else { 0 };
        self.note_load();
    }

    fn note_load(&mut self) {
        let foreground: u64 =
            self.groups.iter().filter(|group| group.kind != Kind::Background).map(|group| group.load).sum();
        if foreground < CPUS {
            self.full_since = None;
        } else if self.full_since.is_none() {
            self.full_since = Some(self.now);
        }
    }

    /// Time passes: CPUs are used, and so is memory.
    pub fn pass(&mut self, now: Nanos) {
        let time = now - self.now;
        let wanted: u64 = self.groups.iter().map(|group| group.load).sum();
        for group in self.groups.iter_mut().filter(|group| group.load > 0) {
            // Background groups share the CPU time that the others leave.
            let foreground = group.kind != Kind::Background;
            let share = if foreground || wanted <= CPUS { group.load } else { group.load * CPUS / wanted };
            let used = time * share / 1000;
            group.used += used;
            group.cpu_is_dirty = true;
            let slice = group.path.split('/').next().unwrap_or_default();
            for slice in ["", slice] {
                if let Some(sum) = self.slices.get_mut(slice) {
                    *sum += used;
                }
            }
        }
        let busy = wanted.min(CPUS);
        self.run_processes(time);
        self.busy += time * busy / 1000;
        self.idle += time * (CPUS - busy) / 1000;
        self.now = now;
        self.use_memory();
    }

    fn use_memory(&mut self) {
        while let Some(Reverse((at, number, index))) = self.uses.peek().copied() {
            if at > self.now {
                break;
            }
            self.uses.pop();
            let on_disk = self.swap_on_disk;
            let Some(group) = self.groups.iter_mut().find(|group| group.number == number) else { continue };
            let youngest = group.youngest();
            let Some(block) = group.blocks.get_mut(index) else { continue };
            block.used = at;
            block.accessed = true;
            block.is_deactivated = false;
            if block.generation.is_none() {
                block.generation = Some(youngest);
                group.refaults += PAGES;
                group.is_dirty = true;
                self.pswpin += PAGES;
                self.stall += if on_disk { 25_000_000 } else { 2_000_000 };
                self.machine_is_dirty = true;
            }
            let again = at + block.period / 2 + self.random.u64(0..block.period);
            self.uses.push(Reverse((again, number, index)));
        }
    }

    /// An aging of the group, by the number of its youngest generation.
    pub fn age(&mut self, index: usize, youngest: u64) -> bool {
        let now = self.now;
        let group = &mut self.groups[index];
        if !self.has_mglru || group.youngest() != youngest {
            return false;
        }
        for block in &mut group.blocks {
            if std::mem::take(&mut block.accessed) && block.generation.is_some() {
                block.generation = Some(youngest);
            }
        }
        group.born.push(now);
        if group.born.len() as u64 > GENERATIONS {
            group.born.remove(0);
            group.oldest += 1;
            for block in &mut group.blocks {
                block.generation = block.generation.map(|generation| generation.max(group.oldest));
            }
        }
        true
    }

    /// Evicts up to a generation, at most these bytes. A block that was used since the last aging
    /// stays, and becomes young.
    pub fn evict(&mut self, index: usize, up_to: u64, bytes: u64) -> Option<Evicted> {
        let free = self.swap_free();
        let now = self.now;
        let group = &mut self.groups[index];
        let youngest = group.youngest();
        if up_to + 2 > youngest {
            return None;
        }
        let mut evicted = Evicted::default();
        let mut order: Vec<usize> = (0..group.blocks.len())
            .filter(|place| group.blocks[*place].generation.is_some_and(|generation| generation <= up_to))
            .collect();
        order.sort_by_key(|place| group.blocks[*place].generation);
        for place in order {
            if evicted.to_swap >= bytes || evicted.to_swap + BLOCK > free {
                break;
            }
            let block = &mut group.blocks[place];
            if std::mem::take(&mut block.accessed) {
                block.generation = Some(youngest);
                continue;
            }
            swap_out(block, now, &mut evicted);
        }
        self.note_evicted(index, evicted);
        Some(evicted)
    }

    /// Reclaims from the group: page cache first, then the blocks that were unused for longest.
    pub fn reclaim(&mut self, index: usize, bytes: u64, file_only: bool) -> Evicted {
        let free = self.swap_free();
        let now = self.now;
        let group = &mut self.groups[index];
        let mut evicted = Evicted::default();
        let file = group.file.min(if file_only { bytes } else { bytes / 2 });
        group.file -= file;
        evicted.dropped = file;
        let mut order: Vec<usize> =
            (0..group.blocks.len()).filter(|place| group.blocks[*place].generation.is_some()).collect();
        order.sort_by_key(|place| group.blocks[*place].used);
        for place in order {
            if file_only || file + evicted.to_swap >= bytes || evicted.to_swap + BLOCK > free {
                break;
            }
            swap_out(&mut group.blocks[place], now, &mut evicted);
        }
        self.note_evicted(index, evicted);
        evicted
    }

    fn note_evicted(&mut self, index: usize, evicted: Evicted) {
        self.pswpout += evicted.to_swap / 4096;
        self.groups[index].is_dirty = true;
        self.machine_is_dirty = true;
    }

    pub fn swap_free(&self) -> u64 {
        self.swap.saturating_sub(self.groups.iter().map(Group::swapped).sum())
    }

    /// Removes all swap, or adds it again. Blocks in swap come back to memory.
    pub fn set_swap(&mut self, swap: u64) {
        for group in &mut self.groups {
            let youngest = group.youngest();
            for block in group.blocks.iter_mut().filter(|block| block.generation.is_none()) {
                block.generation = Some(youngest);
            }
            group.is_dirty = true;
        }
        self.swap = swap;
        self.machine_is_dirty = true;
    }

    /// The owner of the group protects this much of its memory.
    pub fn set_low(&mut self, index: usize, low: u64) {
        let group = &mut self.groups[index];
        group.low_before = group.low.0;
        group.low = (low, self.now);
        self.root.write(cgroup(&group.path).join("memory.low"), format!("{low}\n"));
    }

    /// The owner of the group, or omr, sets its limit.
    pub fn set_high(&mut self, index: usize, high: Option<u64>) {
        // The kernel keeps whole pages.
        let high = high.map(|high| high / 4096 * 4096);
        let group = &mut self.groups[index];
        group.high = high;
        let text = high.map_or_else(|| "max\n".to_owned(), |high| format!("{high}\n"));
        self.root.write(cgroup(&group.path).join("memory.high"), text);
    }

    /// The cord is pulled or plugged in.
    pub fn set_battery(&mut self, on_battery: bool) {
        self.on_battery = Some((on_battery, self.now));
        for (file, text) in [
            ("AC/type", "Mains\n"),
            ("AC/online", if on_battery { "0\n" } else { "1\n" }),
            ("BAT0/type", "Battery\n"),
            ("BAT0/status", if on_battery { "Discharging\n" } else { "Charging\n" }),
        ] {
            self.root.write(format!("sys/class/power_supply/{file}"), text);
        }
    }

    /// Since when the machine runs on battery, if it does.
    pub fn on_battery_since(&self) -> Option<Nanos> {
        self.on_battery.filter(|(on_battery, _)| *on_battery).map(|(_, since)| since)
    }

    /// The files of the machine that the daemon has open, and those of them in removed groups.
    pub fn open_files(&self) -> (u64, u64) {
        let (mut files, mut of_removed) = (0, 0);
        let removed = self.root.resolve(REMOVED);
        for fd in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
            let is_ours = |shown: &Shown| fd.file_name().to_str() == Some(shown.file.as_raw_fd().to_string().as_str());
            if self.shown.values().any(is_ours) {
                continue;
            }
            let Ok(target) = std::fs::read_link(fd.path()) else { continue };
            files += u64::from(target.starts_with(self.root.path()));
            of_removed += u64::from(target.starts_with(&removed));
        }
        (files, of_removed)
    }

    /// Available memory.
    fn available(&self) -> u64 {
        let used: u64 = self.groups.iter().map(Group::in_memory).sum();
        MEMORY.saturating_sub(ELSEWHERE + used)
    }

    /// Writes the files that have changed. `generations`: also the list of generations, whose ages
    /// change all the time.
    pub fn show(&mut self, generations: bool) {
        let ticks = |time: Nanos| time / 10_000_000;
        let (busy, idle) = (ticks(self.busy), ticks(self.idle));
        let mut text = format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n");
        for cpu in 0..2 {
            let _ = writeln!(text, "cpu{cpu} {} 0 0 {} 0 0 0 0 0 0", busy / 2, idle / 2);
        }
        self.write("proc/stat", &text);
        let slices = std::mem::take(&mut self.slices);
        for (slice, used) in &slices {
            self.write(&format!("sys/fs/cgroup/{slice}/cpu.stat"), &format!("usage_usec {}\n", used / 1000));
        }
        self.slices = slices;
        if std::mem::take(&mut self.machine_is_dirty) {
            self.show_machine();
        }
        for index in 0..self.groups.len() {
            self.show_group(index);
        }
        self.show_dirty_processes();
        if generations {
            self.show_generations();
        }
    }

    /// Writes all files, as some were missing.
    pub fn show_all(&mut self) {
        self.machine_is_dirty = true;
        self.show(true);
    }

    /// Writes a file, if its text has changed. A directory in its place is a fault of this file, which
    /// stays.
    fn write(&mut self, path: &str, text: &str) {
        if let Some(shown) = self.shown.get_mut(path) {
            if shown.text != text {
                shown.file.write_all_at(text.as_bytes(), 0).expect("written");
                if shown.text.len() > text.len() {
                    shown.file.set_len(text.len() as u64).expect("a length");
                }
                text.clone_into(&mut shown.text);
            }
        } else if let Ok(file) = File::create(self.root.path().join(path)) {
            file.write_all_at(text.as_bytes(), 0).expect("written");
            self.shown.insert(path.to_owned(), Shown { file, text: text.to_owned() });
        }
    }

    /// The size of a group can be read from now on, or not: a directory is in the place of its file.
    /// Returns whether that is a change.
    pub fn set_readable(&mut self, path: &str, is_readable: bool) -> bool {
        let now = self.now;
        let Some(group) = self.groups.iter_mut().find(|group| group.exists && group.path == path) else { return false };
        if group.unreadable.is_none() == is_readable {
            return false;
        }
        group.unreadable = (!is_readable).then_some(now);
        group.is_dirty = true;
        let size = format!("sys/fs/cgroup/{path}/memory.current");
        self.forget(&size);
        let size = self.root.resolve(size);
        let changed = match is_readable {
            true => std::fs::remove_dir(size),
            false => std::fs::remove_file(&size).and_then(|()| std::fs::create_dir(size)),
        };
        changed.expect("changed");
        self.show(true);
        true
    }

    /// Another file, or none, is in the place of these from now on.
    pub fn forget(&mut self, path: &str) {
        self.shown.retain(|shown, _| !shown.starts_with(path));
    }

    fn show_machine(&mut self) {
        let kb = |bytes: u64| bytes / 1024;
        let available = kb(self.available());
        let anon: u64 = self.groups.iter().map(Group::in_memory).sum();
        let text = format!(
            "MemTotal: {} kB\nMemFree: {available} kB\nMemAvailable: {available} kB\nBuffers: 0 kB\nCached: 0 kB\n\
             SwapCached: 0 kB\nSwapTotal: {} kB\nSwapFree: {} kB\nDirty: 0 kB\nWriteback: 0 kB\nAnonPages: {} kB\n\
             Mapped: 0 kB\nShmem: 0 kB\nSlab: 0 kB\nSReclaimable: 0 kB\n",
            kb(MEMORY),
            kb(self.swap),
            kb(self.swap_free()),
            kb(anon),
        );
        self.write("proc/meminfo", &text);
        let device = if self.swap_on_disk { "/dev/vda" } else { "/dev/zram0" };
        let mut text = "Filename Type Size Used Priority\n".to_owned();
        if self.swap > 0 {
            let used = kb(self.swap - self.swap_free());
            let _ = writeln!(text, "{device} partition {} {used} -2", kb(self.swap));
        }
        self.write("proc/swaps", &text);
        let text = format!("pswpin {}\npswpout {}\npgdemote_kswapd 0\npgdemote_direct 0\n", self.pswpin, self.pswpout);
        self.write("proc/vmstat", &text);
        let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n", self.stall / 1000);
        self.write("proc/pressure/memory", &text);
    }

    fn show_group(&mut self, index: usize) {
        let group = &mut self.groups[index];
        if !group.exists {
            return;
        }
        let dir = format!("sys/fs/cgroup/{}", group.path);
        let mut files = Vec::new();
        if std::mem::take(&mut group.cpu_is_dirty) {
            files.push(("cpu.stat", format!("usage_usec {}\n", group.used / 1000)));
        }
        let number = group.number;
        let memory_changed = std::mem::take(&mut group.is_dirty);
        if memory_changed {
            let (anon, file) = (group.in_memory(), group.file);
            files.push(("memory.current", format!("{}\n", anon + file)));
            files.push(("memory.swap.current", format!("{}\n", group.swapped())));
            let text = format!(
                "anon {anon}\nfile {file}\nshmem 0\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\nswapcached 0\n\
                 inactive_anon {anon}\nactive_anon 0\ninactive_file {file}\nactive_file 0\nunevictable 0\n\
                 workingset_refault_anon {}\nworkingset_refault_file 0\n",
                group.refaults
            );
            files.push(("memory.stat", text));
        }
        for (file, text) in files {
            self.write(&format!("{dir}/{file}"), &text);
        }
        if memory_changed {
            self.show_processes(number);
        }
    }

    fn show_generations(&mut self) {
        let mut text = String::from("memcg     1 /\n node     0\n");
        for generation in 0..4 {
            let _ = writeln!(text, " {generation:10} {:10} {:10} {:10} ", self.now / 1_000_000, 0, 0);
        }
        for group in self.groups.iter().filter(|group| group.exists) {
            let _ = writeln!(text, "memcg {:5} /{}\n node     0", group.number, group.path);
            let mut pages = vec![0u64; group.born.len()];
            for generation in group.blocks.iter().filter_map(|block| block.generation) {
                pages[usize::try_from(generation - group.oldest).expect("few generations")] += PAGES;
            }
            for (place, born) in group.born.iter().enumerate() {
                let age = (self.now - born) / 1_000_000;
                let number = group.oldest + place as u64;
                let _ = writeln!(text, " {number:10} {age:10} {:10} {:10} ", pages[place], 0);
            }
        }
        self.write("sys/kernel/debug/lru_gen", &text);
    }
}

fn swap_out(block: &mut Block, now: Nanos, evicted: &mut Evicted) {
    block.generation = None;
    evicted.to_swap += BLOCK;
    if block.is_deactivated {
        return;
    }
    let unused = now - block.used;
    evicted.youngest = Some(evicted.youngest.map_or(unused, |before| before.min(unused)));
}
