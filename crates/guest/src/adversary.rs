//! A user without rights who makes as much as the kernel allows, to be in omr's way.
//!
//! Each part runs as that user. It prints `{"ready": true, ...}` with the proof that the attack is
//! on, goes on until SIGTERM, and prints `{"done": N}` where it does something again and again.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FlockOperation, Mode, OFlags, XattrFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use serde_json::{Value, json};

use crate::amount::{Amount, meminfo};
use crate::pattern::Pattern;
use crate::signals::Signals;

/// The attribute by which a user asks for more care of a group.
const CLASS: &str = "user.omr.class";
/// A directory of this name adds 201 bytes to a path.
const NAME: &str = concat!(
    "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
    "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Connections that a flood keeps open.
const KEPT: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Makes groups one below the other until the path is longer than PATH_MAX, says that the
    /// deepest is in the foreground, and holds memory there
    Deep {
        /// Directory of a group of this user
        below: PathBuf,
        /// Memory in the deepest group
        #[arg(long, default_value = "8M")]
        memory: Amount,
    },
    /// Makes many groups, with names that rules for the background know
    Wide {
        /// Directory of a group of this user
        below: PathBuf,
        /// Number of groups
        #[arg(long)]
        groups: usize,
        /// Stops when less memory than this is available
        #[arg(long, default_value = "64M")]
        leave: Amount,
    },
    /// Changes an attribute of a group again and again
    Storm {
        /// Directory of a group of this user
        group: PathBuf,
        /// Changes per second
        #[arg(long, default_value_t = 200)]
        rate: u32,
    },
    /// Floods omr's control socket
    Flood {
        kind: Flood,
        /// Times per second; 0: without a pause
        #[arg(long, default_value_t = 50)]
        rate: u32,
        /// Socket of omr's daemon
        #[arg(long, default_value = "/run/omr/omr.sock")]
        socket: PathBuf,
    },
    /// Reserves address space, without memory
    Reserve {
        /// Size in TiB
        #[arg(long, default_value_t = 64)]
        tib: usize,
    },
    /// Calls itself omr, and tries to hold omr's locks
    Names {
        /// Directory of the two directories that have the locks
        #[arg(long, default_value = "/run")]
        locks: PathBuf,
    },
    /// Takes all inotify watches that a user may have
    Watches {
        /// Directory with enough files to watch
        below: PathBuf,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Flood {
    /// Connects, and disconnects at once
    Connect,
    /// Sends half of a request
    Half,
    /// Asks, and does not read the answer
    Unread,
    /// Sends a line that is no request, and reads the refusal
    Nonsense,
    /// Sends one byte at a time
    Dribble,
    /// Asks for the reason of a process, for which the daemon looks at all processes
    Ask,
    /// Asks to be told the status for ever, and does not read it
    Watch,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM])?;
    match &args.part {
        Part::Deep { below, memory } => deep(&signals, below, *memory),
        Part::Wide { below, groups, leave } => wide(&signals, below, *groups, leave.bytes()?),
        Part::Storm { group, rate } => storm(&signals, group, *rate),
        Part::Flood { kind, rate, socket } => flood(&signals, *kind, *rate, socket),
        Part::Reserve { tib } => reserve(&signals, *tib),
        Part::Names { locks } => names(&signals, locks),
        Part::Watches { below } => watches(&signals, below),
    }
}

/// Prints the proof, and holds what was made.
fn hold(signals: &Signals, proof: Value) -> Result<()> {
    println!("{proof}");
    while signals.wait(None)?.is_none() {}
    Ok(())
}

/// Does something `rate` times a second until SIGTERM. What fails is not counted.
fn repeat(signals: &Signals, rate: u32, mut once: impl FnMut(u64) -> Result<()>) -> Result<()> {
    println!("{}", json!({"ready": true}));
    let period = if rate == 0 { Duration::ZERO } else { Duration::from_secs(1) / rate };
    let (began, mut next) = (Instant::now(), Instant::now());
    let (mut done, mut failed, mut last) = (0_u64, 0_u64, String::new());
    loop {
        match once(done + failed) {
            Ok(()) => done += 1,
            Err(error) => (failed, last) = (failed + 1, format!("{error:#}")),
        }
        next += period;
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            next = Instant::now();
        }
        if signals.wait(Some(left))?.is_some() {
            let seconds = began.elapsed().as_secs_f64();
            println!("{}", json!({"done": done, "failed": failed, "last_error": last, "seconds": seconds}));
            return Ok(());
        }
    }
}

fn deep(signals: &Signals, below: &Path, memory: Amount) -> Result<()> {
    let mut group = rustix::fs::open(below, DIRECTORY, Mode::empty()).context("the group")?;
    let mut path = below.to_path_buf();
    while path.as_os_str().len() <= usize::try_from(libc::PATH_MAX)? + NAME.len() {
        control(&group, "cgroup.subtree_control", "+memory").context("memory of each group")?;
        rustix::fs::mkdirat(&group, NAME, Mode::from_raw_mode(0o755)).context("a group")?;
        group = rustix::fs::openat(&group, NAME, DIRECTORY, Mode::empty())?;
        path.push(NAME);
    }
    rustix::fs::fsetxattr(&group, CLASS, b"foreground", XattrFlags::empty()).context("the class")?;
    control(&group, "cgroup.procs", "0").context("enter the deepest group")?;
    let words = Pattern::new(1, 0).fill(usize::try_from(memory.bytes()? / 8)?);
    let opened = File::open(&path).err().and_then(|error| error.raw_os_error());
    let length = path.as_os_str().len();
    hold(signals, json!({"ready": true, "length": length, "open_errno": opened}))?;
    drop(words);
    Ok(())
}

/// Writes to a file of a group.
fn control(group: &OwnedFd, file: &str, text: &str) -> Result<()> {
    let file = rustix::fs::openat(group, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes())?;
    Ok(())
}

/// Groups of three: one that a rule for `background.slice` concerns, one beside it, and their
/// parent. A hundred of them are below one group.
fn wide(signals: &Signals, below: &Path, groups: usize, leave: u64) -> Result<()> {
    let mut made = 0;
    while made < groups && (made % 100 != 0 || meminfo("MemAvailable")? > leave) {
        let (hundred, number) = (made / 300, made / 3);
        let parent = below.join(format!("wide-{hundred}")).join(number.to_string());
        fs::create_dir_all(&parent).with_context(|| format!("group {made}"))?;
        fs::create_dir(parent.join("background.slice")).with_context(|| format!("group {made}"))?;
        fs::create_dir(parent.join("app.scope")).with_context(|| format!("group {made}"))?;
        made += 3;
    }
    hold(signals, json!({"ready": true, "groups": made, "available": meminfo("MemAvailable")?}))
}

fn storm(signals: &Signals, group: &Path, rate: u32) -> Result<()> {
    repeat(signals, rate, |turn| {
        let class = if turn.is_multiple_of(2) { "foreground" } else { "protected" };
        rustix::fs::setxattr(group, CLASS, class.as_bytes(), XattrFlags::empty())?;
        Ok(())
    })
}

fn flood(signals: &Signals, kind: Flood, rate: u32, socket: &Path) -> Result<()> {
    let mut kept: Vec<UnixStream> = Vec::new();
    repeat(signals, rate, |_| {
        if let Flood::Connect | Flood::Half | Flood::Unread | Flood::Watch = kind {
            let mut stream = connect(socket)?;
            match kind {
                Flood::Half => stream.write_all(b"{\"do\":\"stat")?,
                Flood::Unread => stream.write_all(&b"{\"do\":\"processes\"}\n{\"do\":\"status\"}\n".repeat(100))?,
                Flood::Watch => stream.write_all(&b"{\"do\":\"watch\"}\n".repeat(100))?,
                _ => return Ok(()),
            }
            kept.push(stream);
            if kept.len() > KEPT {
                kept.remove(0);
            }
            return Ok(());
        }
        if kept.is_empty() {
            kept.push(connect(socket)?);
        }
        let line: &[u8] = match kind {
            Flood::Dribble => b" ",
            Flood::Ask => b"{\"do\":\"explain-process\",\"pid\":1}\n",
            _ => b"nonsense\n",
        };
        let said = kept[0].write_all(line).and_then(|()| match kind {
            Flood::Dribble => Ok(()),
            _ => heard(&kept[0]),
        });
        if said.is_err() {
            kept.clear();
        }
        Ok(said?)
    })
}

/// Connects. A daemon that does not answer for a second is not waited for.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    Ok(stream)
}

fn heard(stream: &UnixStream) -> io::Result<()> {
    let mut answer = String::new();
    match BufReader::new(stream).read_line(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn reserve(signals: &Signals, tib: usize) -> Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: new mappings that nobody uses; existing memory is not touched.
    let map = || unsafe { mmap_anonymous(ptr::null_mut(), 1 << 40, ProtFlags::empty(), flags) };
    let reserved = (0..tib).take_while(|_| map().is_ok()).count();
    hold(signals, json!({"ready": true, "tib": reserved}))
}

fn names(signals: &Signals, locks: &Path) -> Result<()> {
    rustix::thread::set_name(&CString::new("omr")?)?;
    let lock = |name: &str| {
        let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(locks.join(name));
        let held = file.and_then(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        });
        (held.as_ref().err().and_then(io::Error::raw_os_error), held)
    };
    let tried = ["omr/lock", "omr-root/warm.lock", "omr-root/damon.lock"].map(|name| (name, lock(name)));
    let file = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let errnos: serde_json::Map<String, Value> =
        tried.iter().map(|(name, (errno, _))| (file(name), json!(errno))).collect();
    hold(signals, json!({"ready": true, "name": fs::read_to_string("/proc/self/comm")?.trim(), "locks": errnos}))
}

fn watches(signals: &Signals, below: &Path) -> Result<()> {
    let watcher = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    let (mut watched, mut refused) = (0, None);
    let mut directories = vec![below.to_path_buf()];
    while let Some(directory) = directories.pop().filter(|_| refused.is_none()) {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
            match inotify::add_watch(&watcher, entry.path(), WatchFlags::ATTRIB) {
                Ok(_) => watched += 1,
                // A file that only root may read.
                Err(rustix::io::Errno::ACCESS) => {}
                Err(error) => {
                    refused = Some(error.raw_os_error());
                    break;
                }
            }
        }
    }
    hold(signals, json!({"ready": true, "watches": watched, "errno": refused}))
}
