//! Fake kernels, processes and clocks for unit tests.

mod damon;
mod reclaim;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use omr_actuate::{Actuator, Advice, AdviseResult, Outcome};
use omr_kernel::clock::Clock;
use omr_kernel::clock::simulated::{Simulated, set_clock};
use omr_kernel::process::Process;
use omr_kernel::ranges::length;
use omr_kernel::{Dir, Result};
use omr_testkit::FakeRoot;
use omr_units::{Bytes, Monotonic};

pub use self::damon::FakeDamon;
pub use self::reclaim::{Reclaims, add_group, set_swap};

/// The size of a page on the machines that run these tests.
pub const PAGE: u64 = 4096;
/// The directory of groups in a fake root.
pub const GROUPS: &str = "sys/fs/cgroup";

/// A kernel that passes each write to this function, and that gets no hints.
pub struct Writes<F>(pub F);

impl<F: FnMut(&str) -> Outcome + Send> Actuator for Writes<F> {
    fn write(&mut self, _: &Dir, _: &str, data: &str) -> Result<Outcome> {
        Ok((self.0)(data))
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<AdviseResult> {
        unreachable!("nothing is hinted")
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A kernel that passes each hint to this function: the process, and the ranges of the call. The
/// call does all of them if the outcome is `Done`, and none otherwise. Nothing is written to files.
pub struct Hints<F>(pub F);

impl<F: FnMut(u32, &[Range<u64>]) -> Outcome + Send> Actuator for Hints<F> {
    fn write(&mut self, _: &Dir, _: &str, _: &str) -> Result<Outcome> {
        unreachable!("nothing is written to a file")
    }

    fn advise(&mut self, process: &Process, _: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        let outcome = (self.0)(process.stat().pid, ranges);
        let bytes = if outcome == Outcome::Done { ranges.iter().map(length).sum() } else { Bytes::ZERO };
        Ok(AdviseResult { bytes, outcome })
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A kernel that passes writes to the first one, and hints to the second.
pub struct Both<W, H>(pub W, pub H);

impl<W: Actuator, H: Actuator> Actuator for Both<W, H> {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
        self.0.write(dir, name, data)
    }

    fn advise(&mut self, process: &Process, advice: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        self.1.advise(process, advice, ranges)
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// The time since [`stop_clocks`] for the calling thread: it passes only while somebody sleeps.
/// CPU time is a quarter of it. Dropping it starts the clocks again.
pub struct StoppedClocks(Arc<Passed>);

/// Stops the clocks of the calling thread.
pub fn stop_clocks() -> StoppedClocks {
    let passed = Arc::new(Passed::default());
    set_clock(Some(passed.clone()));
    StoppedClocks(passed)
}

impl StoppedClocks {
    /// The time that has passed.
    pub fn passed(&self) -> Duration {
        self.0.get()
    }

    /// Lets this time pass.
    pub fn pass(&self, time: Duration) {
        self.0.sleep(time);
    }

    /// Calls this function whenever time has passed, with the time since the clocks were stopped.
    pub fn each_time(&self, change: impl Fn(Duration) + Send + 'static) {
        *self.0.change.lock().expect("a function") = Some(Box::new(change));
        self.0.sleep(Duration::ZERO);
    }
}

impl Drop for StoppedClocks {
    fn drop(&mut self) {
        set_clock(None);
    }
}

/// Changes the machine at this time.
type Change = Box<dyn Fn(Duration) + Send>;

#[derive(Default)]
struct Passed {
    time: Mutex<Duration>,
    change: Mutex<Option<Change>>,
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// The machine was started before the clocks were stopped.
const BOOTED: Duration = Duration::from_secs(1000);

impl Passed {
    fn get(&self) -> Duration {
        *self.time.lock().expect("the time")
    }
}

impl Clock for Passed {
    fn monotonic(&self) -> Monotonic {
        Monotonic(0) + BOOTED + self.get()
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.get()
    }

    fn asleep(&self) -> Duration {
        Duration::ZERO
    }

    fn own_cpu(&self) -> Duration {
        self.get() / 4
    }

    fn thread_cpu(&self) -> Duration {
        self.get() / 4
    }
}

impl Simulated for Passed {
    fn sleep(&self, time: Duration) {
        *self.time.lock().expect("the time") += time;
        if let Some(change) = &*self.change.lock().expect("a function") {
            change(self.get());
        }
    }
}

/// A mapping of a fake process.
#[derive(Clone, Copy)]
pub struct Area<'a> {
    /// The first address.
    pub at: u64,
    /// A letter for each page: `p` is in memory, `c` is in memory and another process has the page
    /// mapped, too, `s` is in swap, and any other is in neither.
    pub pages: &'a str,
    /// The inode of its file; 0: anonymous memory.
    pub file: u64,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Its memory was used since accessed bits were last cleared.
    pub used: bool,
    /// `VmFlags` of smaps.
    pub flags: &'a str,
}

/// Private anonymous memory that was used.
pub fn anon(at: u64, pages: &str) -> Area<'_> {
    Area { at, pages, file: 0, shared: false, used: true, flags: "rd wr" }
}

impl Area<'_> {
    /// The addresses.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + self.pages.len() as u64 * PAGE
    }

    /// The line of maps.
    pub fn head(&self) -> String {
        let Range { start, end } = self.range();
        let place = if self.file == 0 { "00:00 0".into() } else { format!("00:01 {} /a", self.file) };
        format!("{start:x}-{end:x} rw-{} 00000000 {place}\n", if self.shared { 's' } else { 'p' })
    }

    fn details(&self) -> String {
        let kib = |is_counted: fn(char) -> bool| self.pages.chars().filter(|page| is_counted(*page)).count() * 4;
        let resident = kib(|page| matches!(page, 'p' | 'c'));
        format!(
            "Rss: {resident} kB\nSwap: {} kB\nReferenced: {} kB\nVmFlags: {}\n",
            kib(|page| page == 's'),
            if self.used { resident } else { 0 },
            self.flags
        )
    }
}

/// Adds a process of this group, or changes its mappings. It has started at ten times its pid.
pub fn set_process(root: &FakeRoot, pid: u32, group: &str, areas: &[Area<'_>]) {
    set_start(root, pid, pid * 10);
    root.write(format!("proc/{pid}/cgroup"), format!("0::/{group}\n"));
    set_mappings(root, pid, areas);
    let resident: usize = areas.iter().map(|area| area.pages.matches(['p', 'c']).count() * 4).sum();
    root.write(format!("proc/{pid}/status"), format!("VmRSS: {resident} kB\n"));
    let list = Path::new(GROUPS).join(group).join("cgroup.procs");
    let text = std::fs::read_to_string(root.resolve(&list)).unwrap_or_default();
    if !text.lines().any(|line| line == pid.to_string()) {
        root.write(&list, format!("{text}{pid}\n"));
    }
}

/// Another process has this pid from now on, if the start is another.
pub fn set_start(root: &FakeRoot, pid: u32, start: u32) {
    let stat = format!("{pid} (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 9 0\n");
    root.write(format!("proc/{pid}/stat"), stat);
}

/// Changes the mappings of a process.
pub fn set_mappings(root: &FakeRoot, pid: u32, areas: &[Area<'_>]) {
    root.write(format!("proc/{pid}/maps"), areas.iter().map(Area::head).collect::<String>());
    let smaps: String = areas.iter().map(|area| area.head() + &area.details()).collect();
    root.write(format!("proc/{pid}/smaps"), smaps);
    let path = format!("proc/{pid}/pagemap");
    root.write(&path, "");
    let pagemap = File::options().write(true).open(root.resolve(path)).expect("a file");
    for (area, number) in areas.iter().flat_map(|area| (0..).map(move |number| (area, number)).take(area.pages.len())) {
        let entry: u64 = match area.pages.as_bytes()[number] {
            b'p' => 1 << 63 | 1 << 56,
            // The frame is known by the letter's place.
            b'c' => 1 << 63 | (number as u64 + 1),
            b's' => 1 << 62,
            _ => continue,
        };
        pagemap.write_all_at(&entry.to_ne_bytes(), area.at / PAGE * 8 + number as u64 * 8).expect("written");
    }
}

/// Replaces the line of a file that begins with this key.
pub fn set_line(root: &FakeRoot, path: &str, key: &str, value: &str) {
    let text = root.read(path);
    assert!(text.lines().any(|line| line.starts_with(key)), "{path} has no {key}");
    let line = |line: &str| if line.starts_with(key) { format!("{key} {value}\n") } else { format!("{line}\n") };
    root.write(path, text.lines().map(line).collect::<String>());
}

/// The pages of these addresses that were in memory are in swap now.
pub fn page_out(root: &FakeRoot, pid: u32, range: &Range<u64>) {
    let path = root.resolve(format!("proc/{pid}/pagemap"));
    let pagemap = File::options().read(true).write(true).open(path).expect("a file");
    for page in range.start / PAGE..range.end / PAGE {
        let mut entry = [0; 8];
        if pagemap.read_exact_at(&mut entry, page * 8).is_ok() && u64::from_ne_bytes(entry) >> 63 == 1 {
            pagemap.write_all_at(&(1u64 << 62).to_ne_bytes(), page * 8).expect("written");
        }
    }
}

/// The file behind a shared mapping of a process has this many pages. Only a root in memory has files
/// in tmpfs.
pub fn set_shared_file(root: &FakeRoot, pid: u32, area: &Area<'_>, pages: usize) {
    let Range { start, end } = area.range();
    root.write(format!("proc/{pid}/map_files/{start:x}-{end:x}"), vec![1; pages * 4096]);
}
