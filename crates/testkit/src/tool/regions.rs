//! Memory whose use is known: regions of which each is touched at its own period.

use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use serde_json::json;

use crate::amount::Amount;
use crate::clock;
use crate::load::touch;
use crate::pattern::Pattern;
use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Regions, e.g. 1s:18M 5m:12M never:20M
    #[arg(required = true)]
    regions: Vec<Region>,
    /// What kind of memory
    #[arg(long, default_value = "anon")]
    kind: Kind,
    /// What the contents are made from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Private, in small pages
    Anon,
    /// Private, in huge pages where there are any
    Huge,
    /// Shared, in small pages
    Shared,
}

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
    /// When it was last touched from its first page to its last, `CLOCK_MONOTONIC`.
    touched: u64,
}

impl Mapped {
    fn due(&self) -> Option<u64> {
        Some(self.touched + u64::try_from(self.period?.as_nanos()).ok()?)
    }
}

/// Says after each SIGUSR1 `{"now_ns": N, "regions": [{"bytes": N, "touched_ns": N}, ...]}`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let pattern = Pattern::new(args.seed, 0);
    let mut regions = Vec::new();
    for region in &args.regions {
        let words = map(usize::try_from(region.amount.bytes()?)?, args.kind)?;
        for (index, word) in words.iter_mut().enumerate() {
            *word = pattern.word(index);
        }
        regions.push(Mapped { period: region.period, words, touched: clock::monotonic() });
    }
    println!("{}", json!({"ready": true, "bytes": regions.iter().map(|region| region.words.len() * 8).sum::<usize>()}));
    loop {
        let now = clock::monotonic();
        let next = regions.iter().filter_map(Mapped::due).min();
        let wait = next.map(|next| Duration::from_nanos(next.saturating_sub(now)));
        match signals.wait(wait)? {
            Some(libc::SIGUSR1) => {
                let regions: Vec<_> = regions
                    .iter()
                    .map(|region| json!({"bytes": region.words.len() * 8, "touched_ns": region.touched}))
                    .collect();
                println!("{}", json!({"now_ns": clock::monotonic(), "regions": regions}));
            }
            Some(_) => return Ok(()),
            None => {
                let now = clock::monotonic();
                for region in regions.iter_mut().filter(|region| region.due().is_some_and(|due| due <= now)) {
                    touch(region.words);
                    region.touched = clock::monotonic();
                }
            }
        }
    }
}

/// Memory of its own mapping, for as long as the program runs.
pub(crate) fn map(bytes: usize, kind: Kind) -> Result<&'static mut [u64]> {
    let sharing = if matches!(kind, Kind::Shared) { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let advice = if matches!(kind, Kind::Huge) { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: a new anonymous mapping at an address of the kernel's choice, which nobody unmaps; zeroed words are words.
    unsafe {
        let flags = sharing | libc::MAP_ANONYMOUS;
        let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if start == libc::MAP_FAILED {
            bail!("mmap of {bytes} bytes: {}", std::io::Error::last_os_error());
        }
        // A kernel without huge pages refuses, and has none.
        libc::madvise(start, bytes, advice);
        Ok(std::slice::from_raw_parts_mut(start.cast(), bytes / 8))
    }
}
