//! A kernel that is none: it sees each write to `memory.reclaim` and `memory.high` of a fake root
//! and makes the group smaller, before the program looks what came of it.
//!
//! The fake kernel works by file leases: a program that opens a leased file waits until the lease
//! is released. A lease on `memory.reclaim` shows that a write is coming. A lease on
//! `memory.current`, which begins while the writer waits, shows that the write is over. So each
//! write is seen, even on a busy machine.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use omr_testkit::FakeRoot;

use super::{GROUPS, replace, stat};

/// A write to a file of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Path of the group.
    pub group: PathBuf,
    /// Name of the file.
    pub file: &'static str,
    /// The text that was written.
    pub data: String,
}

/// The thread.
#[derive(Debug)]
pub struct FakeKernel {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Written>>>,
}

impl FakeKernel {
    /// Looks after all groups that there are now.
    pub fn start(root: &FakeRoot) -> Self {
        // SAFETY: SIG_IGN is a valid disposition. The kernel sends SIGIO when a lease is broken;
        // the thread looks by itself.
        unsafe { libc_signal_ignore_sigio() };
        let machine = Machine { root: root.path().to_owned(), swap: swap_left(root) };
        let mut groups = Vec::new();
        find_groups(&root.resolve(GROUPS), Path::new(""), &mut groups);
        let mut watches: Vec<Watch> = groups
            .iter()
            .flat_map(|path| ["memory.reclaim", "memory.high"].map(|file| (path, file)))
            .filter_map(|(path, file)| Watch::new(&root.resolve(GROUPS).join(path), path, file))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut machine = machine;
                let mut all = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    for watch in &mut watches {
                        watch.look(&mut machine, &mut all);
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                all
            })
        };
        FakeKernel { stop, thread: Some(thread) }
    }

    /// Ends it; returns all writes it has seen, in order.
    pub fn end(mut self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("not ended yet").join().expect("the fake kernel did not fail")
    }
}

impl Drop for FakeKernel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Machine {
    root: PathBuf,
    /// Free swap, in bytes.
    swap: u64,
}

fn swap_left(root: &FakeRoot) -> u64 {
    let text = root.read("proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("SwapFree:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn find_groups(mount: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(mount.join(below)).expect("the mount") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            let path = below.join(entry.file_name());
            found.push(path.clone());
            find_groups(mount, &path, found);
        }
    }
}

/// A file of a group, and where the game with the leases stands.
struct Watch {
    dir: PathBuf,
    path: PathBuf,
    file: &'static str,
    /// With a lease; `None` while a write goes on.
    request: Option<File>,
    /// While a write goes on: `memory.current` with a lease.
    size: Option<File>,
    /// While `memory.high` is lowered.
    lowered: Option<Lowered>,
}

/// The value of `memory.high` is there for a moment only, so each step has a file of its own.
struct Lowered {
    /// The file with the low value.
    low: File,
    /// The file for whoever reads it then: with a lease, as the value is not known yet.
    shown: Option<File>,
    /// A pipe for the value that is restored.
    restored: Option<File>,
}

impl Watch {
    fn new(dir: &Path, path: &Path, file: &'static str) -> Option<Self> {
        // Only plain files: what leads elsewhere has a kernel of its own.
        let plain = fs::symlink_metadata(dir.join(file)).is_ok_and(|meta| meta.is_file());
        let has_size = dir.join("memory.current").exists();
        let mut watch = Watch { dir: dir.into(), path: path.into(), file, request: None, size: None, lowered: None };
        (plain && has_size && watch.expect_write()).then_some(watch)
    }

    /// Waits for the next write. False when the group is gone.
    fn expect_write(&mut self) -> bool {
        self.request = lease_when_free(&self.dir.join(self.file), false);
        self.request.is_some()
    }

    fn look(&mut self, machine: &mut Machine, all: &mut Vec<Written>) {
        let is_read = |lowered: &Lowered| lowered.shown.as_ref().is_some_and(|file| is_broken(file, libc::F_WRLCK));
        if self.lowered.as_ref().is_some_and(is_read) {
            self.show_low();
        } else if self.request.as_ref().is_some_and(|file| is_broken(file, libc::F_RDLCK)) {
            self.writer_waits();
        } else if self.size.as_ref().is_some_and(|file| is_broken(file, libc::F_WRLCK)) {
            self.writer_is_done(machine, all);
        } else if self.request.is_some() && fs::metadata(self.dir.join(self.file)).is_ok_and(|meta| meta.len() == 0) {
            // Nothing was written that was not seen.
        } else if self.request.is_some() && self.file == "memory.reclaim" {
            // Another thread of the program wanted to know the size just before the write.
            self.request = None;
            self.take_in(machine, all);
            self.expect_write();
        }
    }

    /// Somebody waits for leave to open the file for writing, and cannot have `memory.current`
    /// open.
    fn writer_waits(&mut self) {
        self.size = lease_when_free(&self.dir.join("memory.current"), true);
        let request = self.request.take();
        if self.file == "memory.high"
            && let Some(request) = request
        {
            let next = self.dir.join("memory.high.next");
            fs::write(&next, "").expect("written");
            let shown = lease_when_free(&next, true);
            fs::rename(&next, self.dir.join(self.file)).expect("renamed");
            let low = request.try_clone().expect("a descriptor");
            self.lowered = Some(Lowered { low, shown, restored: None });
            unlock(&request);
            return;
        }
        // Closed: the writer goes on.
        drop(request);
    }

    /// Somebody reads the lowered limit, and will then restore it.
    fn show_low(&mut self) {
        let Some(lowered) = &mut self.lowered else { return };
        let Some(mut shown) = lowered.shown.take() else { return };
        writeln!(shown, "{}", limit(&mut lowered.low)).expect("written");
        let pipe = self.dir.join("memory.high.pipe");
        make_pipe(&pipe);
        lowered.restored = Some(OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&pipe).expect("a pipe"));
        fs::rename(&pipe, self.dir.join(self.file)).expect("renamed");
        // Closed: the reader goes on.
        drop(shown);
    }

    /// Somebody wants to know the group's size.
    fn writer_is_done(&mut self, machine: &mut Machine, all: &mut Vec<Written>) {
        if let Some(Lowered { mut low, restored: pipe, .. }) = self.lowered.take() {
            let digits: String = limit(&mut low).chars().take_while(char::is_ascii_digit).collect();
            let mut restored = String::new();
            if let Some(mut pipe) = pipe {
                pipe.read_to_string(&mut restored).expect("the limit");
            }
            if restored.is_empty() {
                // The first open was interrupted, so what was written is the old limit.
                restored = limit(&mut low);
            }
            replace(&self.dir.join(self.file), &format!("{restored}\n"));
            let want = digits.parse::<u64>().map_or(0, |low| self.number().saturating_sub(low));
            for data in [digits, restored] {
                all.push(Written { group: self.path.clone(), file: self.file, data });
            }
            self.free(machine, want, false);
        } else {
            self.take_in(machine, all);
        }
        self.expect_write();
        // Closed: the reader goes on.
        self.size = None;
    }

    /// The text that was written to `memory.reclaim`; an interrupted open has written nothing.
    fn take_in(&mut self, machine: &mut Machine, all: &mut Vec<Written>) {
        let text = fs::read_to_string(self.dir.join(self.file)).unwrap_or_default();
        if text.is_empty() {
            return;
        }
        let _ = OpenOptions::new().write(true).truncate(true).open(self.dir.join(self.file));
        let mut words = text.split_whitespace();
        let want = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let file_only = words.next() == Some("swappiness=0");
        all.push(Written { group: self.path.clone(), file: self.file, data: text });
        self.free(machine, want, file_only);
    }

    fn number(&self) -> u64 {
        read_number(&self.dir.join("memory.current"), self.size.as_ref())
    }

    /// Takes page cache first, then what fits into swap; from what the group holds itself.
    fn free(&mut self, machine: &mut Machine, want: u64, file_only: bool) {
        let text = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let (anon, file) = (field("anon "), field("file "));
        let from_file = want.min(file);
        let out = if file_only { 0 } else { (want - from_file).min(anon).min(machine.swap) };
        let freed = from_file + out;
        machine.swap -= out;
        machine.swapped(out);
        if freed == 0 {
            return;
        }
        machine.freed(freed);
        replace(&self.dir.join("memory.stat"), &stat(anon - out, file - from_file));
        let left = self.number() - freed;
        if self.size.is_none() {
            replace(&self.dir.join("memory.current"), &format!("{left}\n"));
        }
        if let Some(size) = &mut self.size {
            let text = format!("{left}\n");
            let written = size.rewind().and_then(|()| size.write_all(text.as_bytes()));
            written.and_then(|()| size.set_len(text.len() as u64)).expect("memory.current");
        }
        let mount = machine.root.join(GROUPS);
        for above in self.path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let path = mount.join(above).join("memory.current");
            if path.exists() {
                replace(&path, &format!("{}\n", read_number(&path, None).saturating_sub(freed)));
            }
        }
    }
}

impl Machine {
    /// `bytes` were written to swap.
    fn swapped(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        for (file, key, change) in [("proc/vmstat", "pswpout", bytes / page()), ("proc/meminfo", "SwapFree:", 0)] {
            let path = self.root.join(file);
            let text = fs::read_to_string(&path).expect("a file of the machine");
            let lines: Vec<String> = text
                .lines()
                .map(|line| match line.strip_prefix(key) {
                    Some(rest) if change > 0 => {
                        format!("{key} {}", rest.trim().parse::<u64>().expect("a number") + change)
                    }
                    Some(_) => format!("{key} {} kB", self.swap >> 10),
                    None => line.to_owned(),
                })
                .collect();
            replace(&path, &(lines.join("\n") + "\n"));
        }
    }
}

impl Machine {
    /// `bytes` are free now: in the zone that has most free already.
    fn freed(&self, bytes: u64) {
        let path = self.root.join("proc/zoneinfo");
        let Ok(text) = fs::read_to_string(&path) else { return };
        let free = |line: &str| line.trim_start().strip_prefix("pages free").and_then(|n| n.trim().parse::<u64>().ok());
        let Some(most) = text.lines().filter_map(free).max() else { return };
        let lines: Vec<String> = text
            .lines()
            .map(|line| match free(line) {
                Some(pages) if pages == most => format!("  pages free     {}", pages + bytes / page()),
                _ => line.to_owned(),
            })
            .collect();
        replace(&path, &(lines.join("\n") + "\n"));
    }
}

/// The limit in this file. Digits written over "max\n" may leave its end.
fn limit(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("a limit");
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() { text.trim().to_owned() } else { digits }
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

fn read_number(path: &Path, open: Option<&File>) -> u64 {
    let mut text = String::new();
    let result = match open {
        // Opening it again would break the lease that this thread holds, and wait for itself.
        Some(mut file) => file.rewind().and_then(|()| file.read_to_string(&mut text)),
        None => File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    };
    result.ok().and_then(|_| text.trim().parse().ok()).unwrap_or(0)
}

const NONBLOCK: i32 = libc::O_NONBLOCK;

fn make_pipe(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    // SAFETY: a valid C string.
    let made = unsafe { libc::mkfifo(path.as_ptr(), 0o600) };
    assert_eq!(made, 0, "mkfifo: {}", std::io::Error::last_os_error());
}

unsafe fn libc_signal_ignore_sigio() {
    // SAFETY: see the caller.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// Opens a file and takes a lease on it: whoever opens it for writing, or with `all` at all, waits
/// until it is closed here. Waits until nobody has it open; `None` when it is gone.
fn lease_when_free(path: &Path, all: bool) -> Option<File> {
    for _ in 0..100_000 {
        let mut options = OpenOptions::new();
        // Without waiting for another lease, which is this thread's own.
        let file = match options.read(true).write(all).custom_flags(NONBLOCK).open(path) {
            Ok(file) => file,
            Err(err) if err.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            Err(_) => return None,
        };
        let kind = if all { libc::F_WRLCK } else { libc::F_RDLCK };
        // SAFETY: fcntl on an open descriptor with a number as its argument.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } == 0 {
            return Some(file);
        }
        let err = std::io::Error::last_os_error();
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN), "a lease on {}: {err}", path.display());
        drop(file);
        std::thread::sleep(Duration::from_micros(100));
    }
    panic!("{} is open elsewhere all the time", path.display());
}

fn unlock(file: &File) {
    // SAFETY: as above.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// True if a process waits for the lease to be released.
fn is_broken(file: &File, kind: i32) -> bool {
    // SAFETY: as above. F_GETLEASE tells the kind that the lease has to be turned into.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) != kind }
}
