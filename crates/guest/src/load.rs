//! Loads that hold memory: `fill` leaves the memory alone and can verify it, `stress` keeps
//! rewriting it.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::mm::{Advice, madvise};
use serde_json::json;

use crate::amount::Amount;
use crate::pattern::{PAGE, Pattern};
use crate::signals::Signals;
use crate::touch::{Order, faults};
use crate::{clock, pattern};

#[derive(clap::Args)]
pub(crate) struct FillArgs {
    /// Memory to fill, e.g. 512M or 85% of MemTotal
    amount: Amount,
    /// Seed of the contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Share of each page that is zero
    #[arg(long, default_value_t = 0, value_name = "PERCENT")]
    compressible: u8,
    /// Share of the memory that is written again every second
    #[arg(long, default_value_t = 0, value_name = "PERCENT")]
    hot: u8,
    /// Tells the kernel this order of use, by madvise(2)
    #[arg(long)]
    advise: Option<Order>,
    /// A file to fill and read as well, so that it is in the page cache
    #[arg(long, requires = "file_amount")]
    file: Option<PathBuf>,
    /// Size of the file
    #[arg(long)]
    file_amount: Option<Amount>,
}

#[derive(clap::Args)]
pub(crate) struct StressArgs {
    /// Memory to fill, e.g. 512M or 60% of MemTotal
    amount: Amount,
    /// Memory that is rewritten every second
    #[arg(long, default_value = "16M")]
    rate: Amount,
}

pub(crate) fn fill(args: &FillArgs) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let pattern = Pattern::new(args.seed, args.compressible);
    let start = Instant::now();
    if let (Some(path), Some(amount)) = (&args.file, args.file_amount) {
        fill_file(path, amount.bytes()?, pattern).with_context(|| path.display().to_string())?;
    }
    let mut words = pattern.fill(usize::try_from(args.amount.bytes()? / 8)?);
    if let Some(order) = args.advise {
        advise(&words, order)?;
    }
    println!("{}", json!({"ready": true, "bytes": words.len() * 8, "seconds": start.elapsed().as_secs_f64()}));

    let hot = words.len() / 100 * usize::from(args.hot.min(100));
    let turn = (hot > 0).then_some(Duration::from_secs(1));
    let mut major_faults = 0;
    loop {
        match signals.wait(turn)? {
            Some(libc::SIGUSR1) => {
                let start = Instant::now();
                let mut errors = pattern.errors(&words);
                if let Some(path) = &args.file {
                    errors += file_errors(path, pattern).with_context(|| path.display().to_string())?;
                }
                let seconds = start.elapsed().as_secs_f64();
                println!("{}", json!({"verified": words.len() * 8, "errors": errors, "seconds": seconds}));
            }
            Some(_) => {
                // Each page is touched on its own, so this is the number of pages that were
                // reclaimed.
                println!("{}", json!({"ended": true, "hot_faults": major_faults}));
                return Ok(());
            }
            None => {
                let (before, _) = faults()?;
                touch(&mut words[..hot]);
                major_faults += faults()?.0 - before;
            }
        }
    }
}

/// Tells the kernel the order in which all pages of these words are used.
fn advise(words: &[u64], order: Order) -> Result<()> {
    let advice = match order {
        Order::Sequential => Advice::Sequential,
        Order::Random => Advice::Random,
    };
    let inside = words.as_ptr() as usize % (PAGE * 8);
    let start = words.as_ptr().wrapping_byte_sub(inside).cast_mut().cast();
    // SAFETY: memory of this process, from the start of a page on; the advice keeps its contents.
    unsafe { madvise(start, size_of_val(words) + inside, advice) }.context("madvise")
}

/// Reads and writes one word of every page. The contents stay the same.
pub(crate) fn touch(words: &mut [u64]) {
    for word in words.iter_mut().step_by(PAGE) {
        *word = black_box(*word);
    }
}

fn fill_file(path: &PathBuf, bytes: u64, pattern: Pattern) -> Result<()> {
    let mut file = File::create(path)?;
    let page = file_page(pattern);
    for _ in 0..bytes / page.len() as u64 {
        file.write_all(&page)?;
    }
    file.sync_all()?;
    let mut file = File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    while file.read(&mut chunk)? > 0 {}
    Ok(())
}

/// The contents of every page of the file.
fn file_page(pattern: Pattern) -> Vec<u8> {
    (0..PAGE).flat_map(|index| pattern.word(index).to_le_bytes()).collect()
}

/// Number of words of the file that differ from the written ones.
fn file_errors(path: &PathBuf, pattern: Pattern) -> Result<usize> {
    let expected = file_page(pattern);
    let mut file = File::open(path)?;
    let mut page = vec![0; expected.len()];
    let mut errors = 0;
    for _ in 0..file.metadata()?.len() / page.len() as u64 {
        file.read_exact(&mut page)?;
        errors += page.chunks(8).zip(expected.chunks(8)).filter(|(read, written)| read != written).count();
    }
    Ok(errors)
}

pub(crate) fn stress(args: &StressArgs) -> Result<()> {
    const TURNS_PER_SECOND: u64 = 10;
    let start = Instant::now();
    let mut words = Pattern::new(1, 0).fill(usize::try_from(args.amount.bytes()? / 8)?);
    println!("{}", json!({"ready": true, "bytes": words.len() * 8, "seconds": start.elapsed().as_secs_f64()}));

    let per_turn = usize::try_from(args.rate.bytes()? / 8 / TURNS_PER_SECOND)?;
    let mut next = 0;
    loop {
        for _ in 0..per_turn.min(words.len()) {
            words[next] = pattern::mix(words[next]);
            next = (next + 1) % words.len();
        }
        clock::sleep(Duration::from_millis(1000 / TURNS_PER_SECOND));
    }
}
