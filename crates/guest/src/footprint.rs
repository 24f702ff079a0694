//! A program that serves requests from the hot part of its memory, and holds a cold part that it
//! does not use. From a phase change on it needs a part of the cold memory as well.
//!
//! A request reads a fixed number of pages in turn, in random order, so it takes as long before the
//! change as after it. A raw sample has 20 bytes, little endian: time at which the request was due
//! (u64), delay (u32), service time (u32), all in nanoseconds, and major faults meanwhile (u32).

use std::fs;
use std::hint::black_box;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::amount::Amount;
use crate::clock;
use crate::latency::saturate;
use crate::pattern::{PAGE, Pattern, mix};
use crate::regions::{Kind, map};
use crate::signals::Signals;

/// Pages of one piece. The memory that becomes hot lies in pieces all over the cold part, so it
/// includes memory that was reclaimed first and memory that was reclaimed last.
const PIECE: usize = 256;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Memory that requests read from the start
    #[arg(long, default_value = "40M")]
    hot: Amount,
    /// Memory that is filled and left alone
    #[arg(long, default_value = "400M")]
    cold: Amount,
    /// Part of the cold memory that requests read as well from the phase change on
    #[arg(long, default_value = "100M")]
    wakes: Amount,
    /// Time between two requests
    #[arg(long, value_parser = clock::parse_span, default_value = "10ms")]
    period: Duration,
    /// Pages that a request reads
    #[arg(long, default_value_t = 512)]
    pages: usize,
    /// Share of each page that is zero
    #[arg(long, default_value_t = 50, value_name = "PERCENT")]
    compressible: u8,
    /// File for the raw samples
    #[arg(long)]
    raw: PathBuf,
}

/// SIGUSR1 is the phase change: the program prints
/// `{"changed_ns": N, "cold_out": BYTES, "hot_out": BYTES}`, the memory that was in swap at this
/// moment. SIGTERM ends the program: it writes the samples and prints
/// `{"samples": N, "errors": N}`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let pattern = Pattern::new(3, args.compressible);
    let pages = |amount: Amount| anyhow::Ok(usize::try_from(amount.bytes()?)? / (PAGE * 8));
    let (hot, cold, wakes) = (pages(args.hot)?, pages(args.cold)?, pages(args.wakes)?);
    ensure!(hot > 0 && args.pages > 0, "requests read nothing: --hot and --pages must be more than 0");
    ensure!(wakes <= cold, "--wakes must be at most --cold");
    let words = map((hot + cold) * PAGE * 8, Kind::Anon)?;
    for (index, word) in words.iter_mut().enumerate() {
        *word = pattern.word(index);
    }
    println!("{}", json!({"ready": true, "cold_since_ns": clock::monotonic()}));

    let mut order = shuffled((0..hot).collect());
    let mut next = 0;
    let mut errors = 0;
    let mut samples: Vec<u8> = Vec::with_capacity(1 << 20);
    let period = u64::try_from(args.period.as_nanos())?;
    let mut due = clock::monotonic() + period;
    loop {
        match signals.wait(Some(Duration::from_nanos(due.saturating_sub(clock::monotonic()))))? {
            Some(libc::SIGUSR1) => {
                let out = out_of_memory(words)?;
                order = shuffled((0..hot).chain(waking(cold, wakes).map(|page| hot + page)).collect());
                next = 0;
                let changed = clock::monotonic();
                let bytes = |pages: &[bool]| pages.iter().filter(|&&out| out).count() * PAGE * 8;
                println!(
                    "{}",
                    json!({"changed_ns": changed, "cold_out": bytes(&out[hot..]), "hot_out": bytes(&out[..hot])})
                );
                due = changed + period;
                continue;
            }
            Some(_) => break,
            None => {}
        }
        let woke = clock::monotonic();
        if woke < due {
            continue;
        }
        let faults = major_faults()?;
        for _ in 0..args.pages {
            // The last word of a page is never zero.
            let index = order[next] * PAGE + PAGE - 1;
            errors += usize::from(black_box(words[index]) != pattern.word(index));
            next = (next + 1) % order.len();
        }
        let done = clock::monotonic();
        let faults = u32::try_from(major_faults()? - faults)?;
        samples.extend(due.to_le_bytes());
        for value in [saturate(woke - due), saturate(done - woke), faults] {
            samples.extend(value.to_le_bytes());
        }
        // A request that was due meanwhile is lost. Its cost is in the sample before.
        due += period * ((done - due) / period + 1);
    }
    fs::write(&args.raw, &samples).with_context(|| args.raw.display().to_string())?;
    println!("{}", json!({"samples": samples.len() / 20, "errors": errors}));
    Ok(())
}

/// The pages that become hot among `cold` pages: pieces at even distances, about `wakes` pages in
/// all.
fn waking(cold: usize, wakes: usize) -> impl Iterator<Item = usize> {
    (0..cold).filter(move |page| {
        let piece = page / PIECE;
        // True if the number of hot pieces grows with this piece.
        (piece + 1) * wakes / cold > piece * wakes / cold
    })
}

fn shuffled(mut pages: Vec<usize>) -> Vec<usize> {
    pages.sort_by_key(|&page| mix(page as u64));
    pages
}

/// For each page whether it is in swap: bit 62, Documentation/admin-guide/mm/pagemap.rst.
fn out_of_memory(words: &[u64]) -> Result<Vec<bool>> {
    let mut file = fs::File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
    let first = words.as_ptr().addr() / (PAGE * 8);
    file.seek(SeekFrom::Start(first as u64 * 8))?;
    let mut entries = vec![0; words.len() / PAGE * 8];
    file.read_exact(&mut entries)?;
    Ok(entries.chunks_exact(8).map(|entry| entry[7] & 0x40 != 0).collect())
}

/// Major faults of this process so far.
fn major_faults() -> Result<i64> {
    let mut usage = MaybeUninit::uninit();
    // SAFETY: getrusage fills in the whole structure unless it fails.
    let usage = unsafe {
        ensure!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) == 0, std::io::Error::last_os_error());
        usage.assume_init()
    };
    Ok(usage.ru_majflt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_to_wake_are_spread_over_the_cold_part() {
        let woken: Vec<usize> = waking(100 * PIECE, 25 * PIECE).collect();
        assert_eq!(woken.len(), 25 * PIECE);
        for quarter in 0..4 {
            let part = 25 * PIECE * quarter..25 * PIECE * (quarter + 1);
            assert!(woken.iter().filter(|page| part.contains(page)).count().abs_diff(25 * PIECE / 4) <= PIECE);
        }
        assert_eq!(waking(1000, 0).count(), 0);
        assert_eq!(waking(1000, 1000).count(), 1000);
    }

    #[test]
    fn memory_in_use_is_not_in_swap() {
        let words = map(64 * PAGE * 8, Kind::Anon).unwrap();
        words.fill(1);
        assert_eq!(out_of_memory(words).unwrap(), [false; 64]);
    }
}
