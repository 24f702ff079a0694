//! Memory of known age: regions, each of which is touched at its own period.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use rustix::process::{self, Signal, WaitOptions, set_parent_process_death_signal};
use serde_json::json;

use crate::amount::Amount;
use crate::clock;
use crate::load::touch;
use crate::pattern::{PAGE, Pattern};
use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Regions, e.g. 1s:18M 5m:12M never:20M
    #[arg(required = true)]
    regions: Vec<Region>,
    /// Kind of the memory
    #[arg(long, default_value = "anon")]
    kind: Kind,
    /// For kind file: the file to make and map
    #[arg(long, required_if_eq("kind", "file"))]
    path: Option<PathBuf>,
    /// Seed of the contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Private, in small pages
    Anon,
    /// Private, in huge pages where the kernel has them
    Huge,
    /// Shared, in small pages
    Shared,
    /// Private, in small pages; a child of its own reads each region, and another child starts and
    /// ends every second
    Forked,
    /// Mapped from a file
    File,
}

/// Time from the start of one short-lived child to the next.
const BIRTHS: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Region {
    period: Option<Duration>,
    amount: Amount,
}

impl std::str::FromStr for Region {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (period, amount) = text.split_once(':').context("expected PERIOD:AMOUNT")?;
        let period = if period == "never" { None } else { Some(clock::parse_span(period)?) };
        Ok(Self { period, amount: amount.parse()? })
    }
}

/// A region in memory.
struct Mapped {
    period: Option<Duration>,
    words: &'static mut [u64],
    /// End of the last pass over all pages, `CLOCK_MONOTONIC` in nanoseconds. In memory that the
    /// children share.
    touched: &'static AtomicU64,
}

impl Mapped {
    fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    fn due(&self) -> Option<u64> {
        Some(self.touched() + u64::try_from(self.period?.as_nanos()).ok()?)
    }
}

/// Prints `{"now_ns": N, "regions": [{"bytes": N, "touched_ns": N}, ...]}` after each SIGUSR1.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let pattern = Pattern::new(args.seed, 0);
    let file = args.path.as_ref().map(File::create_new).transpose()?;
    let times = map(args.regions.len() * 8, Kind::Shared)?;
    let mut regions = Vec::new();
    let mut offset = 0;
    for (region, time) in args.regions.iter().zip(times) {
        let bytes = usize::try_from(region.amount.bytes()?)?;
        let words = match &file {
            Some(file) => map_file(file, offset, bytes)?,
            None => map(bytes, args.kind)?,
        };
        offset += bytes;
        for (index, word) in words.iter_mut().enumerate() {
            *word = pattern.word(index);
        }
        // SAFETY: an aligned word that stays mapped, and that is used only as an atomic from here
        // on.
        let touched = unsafe { AtomicU64::from_ptr(time) };
        touched.store(clock::monotonic(), Ordering::Relaxed);
        regions.push(Mapped { period: region.period, words, touched });
    }
    let forked = matches!(args.kind, Kind::Forked);
    if forked {
        for region in regions.iter().filter(|region| region.period.is_some()) {
            fork(|| read(region))?;
        }
    }
    println!("{}", json!({"ready": true, "bytes": regions.iter().map(|region| region.words.len() * 8).sum::<usize>()}));
    loop {
        let now = clock::monotonic();
        let next = regions.iter().filter_map(Mapped::due).min();
        let wait = next.map(|next| Duration::from_nanos(next.saturating_sub(now)));
        match signals.wait(if forked { Some(BIRTHS) } else { wait })? {
            Some(libc::SIGUSR1) => {
                let regions: Vec<_> = regions
                    .iter()
                    .map(|region| json!({"bytes": region.words.len() * 8, "touched_ns": region.touched()}))
                    .collect();
                println!("{}", json!({"now_ns": clock::monotonic(), "regions": regions}));
            }
            Some(_) => return Ok(()),
            None if forked => {
                let child = fork(|| ())?;
                process::waitpid(Some(child), WaitOptions::empty())?;
            }
            None => {
                let now = clock::monotonic();
                for region in regions.iter_mut().filter(|region| region.due().is_some_and(|due| due <= now)) {
                    touch(region.words);
                    region.touched.store(clock::monotonic(), Ordering::Relaxed);
                }
            }
        }
    }
}

/// Starts a child process that runs `child` and ends, at the latest with its parent.
fn fork(child: impl FnOnce()) -> Result<process::Pid> {
    // SAFETY: this program has one thread, so the child may do everything that its parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            let alone = set_parent_process_death_signal(Some(Signal::KILL));
            child();
            // SAFETY: ends this process without running its parent's exit handlers.
            unsafe { libc::_exit(i32::from(alone.is_err())) }
        }
        child => process::Pid::from_raw(child).context("fork"),
    }
}

/// Reads one word of every page whenever the region is due.
fn read(region: &Mapped) {
    while let Some(due) = region.due() {
        clock::sleep_until(due);
        for word in region.words.iter().step_by(PAGE) {
            black_box(*word);
        }
        region.touched.store(clock::monotonic(), Ordering::Relaxed);
    }
}

/// Memory in a mapping of its own, which stays until the program ends.
pub(crate) fn map(bytes: usize, kind: Kind) -> Result<&'static mut [u64]> {
    let sharing = if matches!(kind, Kind::Shared) { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let words = mmap(bytes, sharing | libc::MAP_ANONYMOUS, -1, 0)?;
    let advice = if matches!(kind, Kind::Huge) { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // A kernel without huge pages refuses the advice; its pages are small anyway.
    // SAFETY: a whole mapping of this process; the advice keeps its contents.
    unsafe { libc::madvise(words.as_mut_ptr().cast(), bytes, advice) };
    Ok(words)
}

/// Maps the next part of a file, and extends the file to its end.
fn map_file(file: &File, offset: usize, bytes: usize) -> Result<&'static mut [u64]> {
    file.set_len((offset + bytes) as u64)?;
    mmap(bytes, libc::MAP_SHARED, file.as_raw_fd(), offset)
}

fn mmap(bytes: usize, flags: i32, file: RawFd, offset: usize) -> Result<&'static mut [u64]> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses. It is never unmapped, and its
    // file is never shortened. Any bytes are valid words.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, libc::off_t::try_from(offset)?);
        if start == libc::MAP_FAILED {
            bail!("mmap of {bytes} bytes: {}", io::Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts_mut(start.cast(), bytes / 8))
    }
}
