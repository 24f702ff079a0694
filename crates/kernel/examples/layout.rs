//! Compares the time to read a process's mappings by `PROCMAP_QUERY` and as text, in turn:
//! `cargo run --release -p omr-kernel --example layout [MAPPINGS]`.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use omr_kernel::Kernel;
use omr_kernel::maps::Layout;
use omr_kernel::process::Process;

const PAGE: usize = 4096;
const ROUNDS: usize = 21;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let file = std::fs::File::open(std::env::current_exe()?)?;
    for number in 0..count {
        // Usually a quarter of a program's mappings are files. A hole after each keeps two from
        // being merged.
        let (flags, file, protection) = match number % 4 {
            0 => (libc::MAP_PRIVATE, file.as_raw_fd(), libc::PROT_READ),
            _ => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, libc::PROT_READ | libc::PROT_WRITE),
        };
        // SAFETY: new mappings in free places; only this code unmaps the second page of each.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), 2 * PAGE, protection, flags, file, 0);
            if start == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error().into());
            }
            libc::munmap(start.byte_add(PAGE), PAGE);
        }
    }
    // Reading changes the reader's own mappings, so an idle copy of this process is read.
    // SAFETY: this process has one thread, and the copy calls only prctl() and pause().
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain system calls; the copy waits until it is killed, at the latest with its
        // parent.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    let process = Process::open(&Kernel::open(Path::new("/"))?, u32::try_from(child)?)?;
    let (mut by_query, mut by_text) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (query, text) = (timed(|| Layout::read(process.dir())), timed(|| Layout::read_text(process.dir())));
        assert!(query.1?.mappings() == text.1?.mappings(), "they disagree");
        by_query.push(query.0);
        by_text.push(text.0);
    }
    let mut ratios: Vec<f64> =
        by_text.iter().zip(&by_query).map(|(text, query)| text.as_secs_f64() / query.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    by_query.sort();
    by_text.sort();
    println!(
        "{count} mappings: PROCMAP_QUERY {:?}, text {:?}, {:.2} x as fast [{:.2} .. {:.2}] in {ROUNDS} rounds",
        by_query[ROUNDS / 2],
        by_text[ROUNDS / 2],
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
    );
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}
