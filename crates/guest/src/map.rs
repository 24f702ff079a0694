//! A program with memory of many kinds, as a target of hints: private memory in any number of
//! mappings, shared memory, locked memory, and memory that is mapped and unmapped all the time.

use std::hint::black_box;
use std::ptr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mlock, mmap, mmap_anonymous, mprotect, munmap};
use serde_json::json;

use crate::amount::Amount;
use crate::pattern::{PAGE, Pattern};
use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Private memory, e.g. 64M
    amount: Amount,
    /// Additional shared memory
    #[arg(long, default_value = "0")]
    shared: Amount,
    /// The shared memory is filled by a child process that has ended
    #[arg(long)]
    by_child: bool,
    /// Share of the shared memory that is read every second
    #[arg(long, default_value_t = 0, value_name = "PERCENT")]
    hot: u8,
    /// Additional locked private memory
    #[arg(long, default_value = "0")]
    locked: Amount,
    /// Additional pages of hugetlbfs; the machine must have enough of them
    #[arg(long, default_value = "0")]
    huge_pages: Amount,
    /// Also maps memory of a device: 64 KiB below 1 MiB, where a PC has its firmware
    #[arg(long)]
    device: bool,
    /// Mappings of the private memory; every other one is read-only. Fewer if the kernel does not
    /// allow more
    #[arg(long, default_value_t = 1)]
    mappings: usize,
    /// Maps, uses and unmaps 8 MiB all the time, in a thread
    #[arg(long)]
    churn: bool,
}

/// Bytes of a page of [`Pattern`].
const BYTES: usize = PAGE * 8;
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Prints the address of the private memory:
/// `{"ready": true, "bytes": N, "start": ADDRESS, "mappings": N}`. After each SIGUSR1 it verifies
/// all memory.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let pattern = Pattern::new(1, 0);
    let private = map(args.amount.bytes()?, MapFlags::PRIVATE, pattern)?;
    let shared = if args.by_child {
        map_by_child(args.shared.bytes()?, pattern)?
    } else {
        map(args.shared.bytes()?, MapFlags::SHARED, pattern)?
    };
    let locked = map(args.locked.bytes()?, MapFlags::PRIVATE, pattern)?;
    let huge = map(args.huge_pages.bytes()?, MapFlags::PRIVATE | MapFlags::HUGETLB, pattern)?;
    let device = if args.device { map_firmware()? } else { 0 };
    if !locked.is_empty() {
        // SAFETY: the slice is memory of this process.
        unsafe { mlock(locked.as_ptr().cast_mut().cast(), size_of_val(locked)) }?;
    }
    let mut mappings = 1;
    let pages = (private.len() / PAGE).div_ceil(args.mappings.max(1)).max(1);
    for part in private.chunks(pages * PAGE).skip(1).step_by(2) {
        // SAFETY: whole pages of the mapping, which are no longer written to.
        let protected = unsafe { mprotect(part.as_ptr().cast_mut().cast(), size_of_val(part), MprotectFlags::READ) };
        if protected.is_err() {
            break;
        }
        mappings += 2;
    }
    if args.churn {
        thread::spawn(churn);
    }
    let start = private.as_ptr() as usize;
    println!(
        "{}",
        json!({"ready": true, "bytes": size_of_val(private), "start": start, "mappings": mappings, "device": device})
    );
    let hot = &shared[..shared.len() / 100 * usize::from(args.hot.min(100))];
    let turn = (!hot.is_empty()).then_some(Duration::from_secs(1));
    loop {
        match signals.wait(turn)? {
            Some(libc::SIGUSR1) => {
                let all = [private, shared, locked, huge];
                let errors: usize = all.into_iter().map(|words| pattern.errors(words)).sum();
                println!("{}", json!({"verified": size_of_val(private), "errors": errors}));
            }
            Some(_) => return Ok(()),
            None => hot.iter().step_by(PAGE).for_each(|word| _ = black_box(*word)),
        }
    }
}

/// Maps new shared memory, and has a child process fill it, so that it is in no page table then.
fn map_by_child(bytes: u64, pattern: Pattern) -> Result<&'static [u64]> {
    let memory = map_empty(bytes, MapFlags::SHARED)?;
    // SAFETY: this process has one thread; the child fills the memory and ends.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            fill(memory, pattern);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = -1;
            // SAFETY: waits for the child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            if status != 0 { bail!("the child ended with status {status}") } else { Ok(memory) }
        }
    }
}

/// Maps new memory and fills it.
fn map(bytes: u64, flags: MapFlags, pattern: Pattern) -> Result<&'static [u64]> {
    let memory = map_empty(bytes, flags)?;
    fill(memory, pattern);
    Ok(memory)
}

fn fill(memory: &mut [u64], pattern: Pattern) {
    memory.iter_mut().enumerate().for_each(|(index, word)| *word = pattern.word(index));
}

fn map_empty(bytes: u64, flags: MapFlags) -> Result<&'static mut [u64]> {
    let words = usize::try_from(bytes)? / BYTES * PAGE;
    if words == 0 {
        return Ok(&mut []);
    }
    // SAFETY: a new mapping; existing memory is not touched.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), words * 8, READ_WRITE, flags) }?;
    if start.is_null() {
        bail!("mapped at 0");
    }
    // SAFETY: the mapping has this many words, is never unmapped, and only the caller writes to it.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast::<u64>(), words) })
}

/// Makes a private mapping of the firmware, which is not system memory. Returns its address.
fn map_firmware() -> Result<usize> {
    const PLACE: u64 = 0xf_0000;
    const LENGTH: usize = 64 << 10;
    let memory = std::fs::File::open("/dev/mem").context("open /dev/mem")?;
    // SAFETY: a new mapping that nothing uses; existing memory is not touched.
    let start = unsafe { mmap(ptr::null_mut(), LENGTH, ProtFlags::READ, MapFlags::PRIVATE, &memory, PLACE) };
    Ok(start.context("map /dev/mem")? as usize)
}

/// Maps, uses and unmaps memory, without end.
fn churn() {
    const LENGTH: usize = 8 << 20;
    // Each mapping is at another address, far from all other memory. At the same address it would
    // look unchanged.
    const PLACES: usize = 0x10_0000_0000;
    let mut turn = 0_u64;
    for number in (0..4096).cycle() {
        let place = ptr::without_provenance_mut(PLACES + number * LENGTH);
        // SAFETY: a new mapping, at this address if it is free; existing memory is not touched.
        let Ok(start) = (unsafe { mmap_anonymous(place, LENGTH, READ_WRITE, MapFlags::PRIVATE) }) else { continue };
        for page in 0..LENGTH / BYTES {
            turn = turn.wrapping_add(1);
            // SAFETY: inside of the mapping made above, which only this thread uses.
            unsafe { black_box(start.cast::<u64>().add(page * PAGE)).write_volatile(turn) };
        }
        // SAFETY: the mapping made above, which is no longer used.
        let _ = unsafe { munmap(start, LENGTH) };
    }
}
