//! Compares the time of a batch of hints with that of bare system calls about the same memory, in
//! turn: `cargo run --release -p omr-actuate --example hint [MIB [MAPPINGS]]`. Needs root and that
//! much free memory.

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use omr_actuate::madvise::{Batch, CHUNK, Hint, MOST_RANGES};
use omr_actuate::{Actuator as _, Advice, Live};
use omr_kernel::maps::Layout;
use omr_kernel::pagemap::Pagemap;
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use omr_kernel::{Kernel, Result};
use omr_units::Bytes;

const PAGE: usize = 4096;
const ROUNDS: usize = 11;
/// Bytes of one call, as in `omr hint --cold`.
const CALL: Bytes = Bytes::mib(8);

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mib = arguments.next().transpose()?.unwrap_or(4096);
    let count = arguments.next().transpose()?.unwrap_or(20_000);
    let bytes = (mib << 20) / count / PAGE * PAGE;
    let (mut parent, mut child) = UnixStream::pair()?;
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(parent);
        // SAFETY: a plain system call; the child ends with its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let areas = map(count, bytes)?;
        loop {
            areas.iter().for_each(|area| touch(area.clone()));
            child.write_all(&[0])?;
            child.read_exact(&mut [0])?;
        }
    }
    drop(child);
    let kernel = Kernel::open(Path::new("/"))?;
    let process = Process::open(&kernel, u32::try_from(pid)?)?;
    let mut used_again = || -> std::io::Result<()> { parent.read_exact(&mut [0]) };
    used_again()?;
    let ranges = anonymous(&kernel, &process)?.1;
    let (mut by_batch, mut by_calls) = (Vec::new(), Vec::new());
    for round in 0..2 * ROUNDS {
        // Two rounds of each kind in turn.
        let is_batch = round.div_ceil(2) % 2 == 1;
        let began = Instant::now();
        let done = if is_batch { batch(&kernel, &process)? } else { bare(&process, &ranges)? };
        let took = began.elapsed();
        // A page that is being migrated does not count as present at this moment.
        assert!(done.0 >= (bytes * count) as u64 / 100 * 99, "{done} of {mib} MiB");
        if is_batch { &mut by_batch } else { &mut by_calls }.push(took);
        parent.write_all(&[0])?;
        parent.read_exact(&mut [0])?;
    }
    let ratios: Vec<f64> =
        by_batch.iter().zip(&by_calls).map(|(a, b)| 100.0 * (a.as_secs_f64() / b.as_secs_f64() - 1.0)).collect();
    let (batch, calls, ratio) = (median(by_batch), median(by_calls), median_of(ratios.clone()));
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    println!(
        "{mib} MiB in {count} mappings: bare calls {calls:?}, batch {batch:?}, {ratio:.1} % more [{least:.1} .. {most:.1}]"
    );
    Ok(())
}

/// The part of `omr hint --cold` that is in this crate: reads the mappings and their resident
/// pages, gives the hint, and reads the changes.
fn batch(kernel: &Kernel, process: &Process) -> Result<Bytes> {
    let (mut layout, ranges) = anonymous(kernel, process)?;
    let hints = ranges.as_slice().iter().map(|range| Hint { range: range.clone(), advice: Advice::Cold }).collect();
    let results = Batch::new(process, &mut layout, hints, CHUNK).in_calls_of(CALL).run(&mut Live, |_| true)?;
    Ok(results.iter().map(|result| result.done.bytes()).sum())
}

/// The same hint by as few system calls as possible.
fn bare(process: &Process, ranges: &Ranges) -> Result<Bytes> {
    let mut done = Bytes::ZERO;
    for ranges in ranges.as_slice().chunks(MOST_RANGES) {
        done += Live.advise(process, Advice::Cold, ranges)?.bytes;
    }
    Ok(done)
}

/// The mappings, and the anonymous pages that are in memory.
fn anonymous(kernel: &Kernel, process: &Process) -> Result<(Layout, Ranges)> {
    let layout = Layout::read(process.dir())?;
    let private = layout.mappings().iter().filter(|mapping| mapping.backing == omr_kernel::maps::Backing::Anonymous);
    let private: Ranges = private.map(|mapping| mapping.range.clone()).collect();
    let (present, _) = Pagemap::open(process.dir(), kernel.page())?.residency(&private)?;
    Ok((layout, present))
}

/// Makes `count` mappings of `bytes` bytes, with a hole after each so that no two are merged.
fn map(count: usize, bytes: usize) -> std::io::Result<Vec<Range<usize>>> {
    (0..count)
        .map(|_| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping in a free place; only this code unmaps its last page.
            let start = unsafe {
                let start = libc::mmap(ptr::null_mut(), bytes + PAGE, access, flags, -1, 0);
                if start == libc::MAP_FAILED {
                    return Err(std::io::Error::last_os_error());
                }
                libc::munmap(start.byte_add(bytes), PAGE);
                start as usize
            };
            Ok(start..start + bytes)
        })
        .collect()
}

/// Writes to every page.
fn touch(area: Range<usize>) {
    for page in area.step_by(PAGE) {
        // SAFETY: the word lies in a mapping of this process that nothing else uses.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(page).write_volatile(1) };
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn median_of(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
