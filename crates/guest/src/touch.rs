//! A program that is used again after a while. It measures the time to use its working set once,
//! and the number of page faults.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde_json::json;

use crate::amount::Amount;
use crate::pattern::{PAGE, Pattern, mix};
use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The working set, e.g. 200M
    amount: Amount,
    /// Order in which pages are touched
    #[arg(long, default_value = "random")]
    order: Order,
    /// Seed of the contents, which cannot be compressed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The order in which pages are used.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Order {
    /// By address: the kernel reads ahead
    Sequential,
    /// At random, like programs with pointers
    Random,
}

/// After each SIGUSR1 prints
/// `{"touched": BYTES, "errors": N, "seconds": S, "major_faults": N, "minor_faults": N}`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let pattern = Pattern::new(args.seed, 0);
    let words = pattern.fill(usize::try_from(args.amount.bytes()? / 8)?);
    let order = order(words.len() / PAGE, args.order);
    println!("{}", json!({"ready": true, "bytes": words.len() * 8}));
    loop {
        match signals.wait(None)? {
            Some(libc::SIGUSR1) => {
                let (major, minor) = faults()?;
                let start = Instant::now();
                // The first word of each page is enough to fault the page in and to check its
                // contents.
                let errors = order.iter().filter(|&&page| {
                    let index = page as usize * PAGE;
                    black_box(words[index]) != pattern.word(index)
                });
                let errors = errors.count();
                let seconds = start.elapsed().as_secs_f64();
                let (major_now, minor_now) = faults()?;
                let (major, minor) = (major_now - major, minor_now - minor);
                println!(
                    "{}",
                    json!({
                        "touched": order.len() * PAGE * 8, "errors": errors, "seconds": seconds,
                        "major_faults": major, "minor_faults": minor,
                    })
                );
            }
            Some(_) => return Ok(()),
            None => {}
        }
    }
}

/// The number of each page, once. The list is read together with the pages, so it is kept small.
fn order(pages: usize, order: Order) -> Vec<u32> {
    let mut pages: Vec<u32> = (0..u32::try_from(pages).unwrap_or(u32::MAX)).collect();
    if matches!(order, Order::Random) {
        pages.sort_by_key(|&page| mix(page.into()));
    }
    pages
}

/// Major and minor faults of this process so far.
pub(crate) fn faults() -> Result<(i64, i64)> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text[text.rfind(')').context("no name")? + 1..].split_whitespace().collect();
    // Fields 12 and 10 of proc(5). The first field after the name is the third in proc(5).
    let field = |number: usize| fields.get(number - 3).context("a short line")?.parse().context("no number");
    Ok((field(12)?, field(10)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_comes_once() {
        for kind in [Order::Sequential, Order::Random] {
            let mut pages = order(1000, kind);
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..1000));
        }
        assert!(!order(1000, Order::Random).is_sorted());
    }
}
