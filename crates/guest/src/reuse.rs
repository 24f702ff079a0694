//! Memory of which every use is known: blocks that are used at random, by a planted law. A program
//! that reclaims by any fixed age can be judged in hindsight by what this prints.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::amount::Amount;
use crate::clock;
use crate::pattern::{PAGE, Pattern, mix};
use crate::regions::{Kind, map};
use crate::signals::Signals;

/// Words in a block. A block is used as a whole.
const BLOCK: usize = 16 * PAGE;
/// Memory used within this many seconds is the working set.
const WORKING: u32 = 120;
const MINUTE: u32 = 60;

#[derive(clap::Args)]
pub(crate) struct Args {
    law: Law,
    /// Memory in all, e.g. 320M
    amount: Amount,
    /// Time from one move of the hot memory to the next, with the law phases
    #[arg(long, default_value = "20m", value_parser = clock::parse_span, value_name = "TIME")]
    phase: Duration,
    /// Seed of the contents and of all chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Which blocks are used, and how often.
#[derive(Clone, Copy, ValueEnum)]
enum Law {
    /// A third is used: the most popular block 500 times as often as the least popular one, which
    /// is used every 2 minutes
    Zipf,
    /// A fifth is used, each block every 20 s; it becomes another fifth at each move, and the first
    /// one again after three moves
    Phases,
    /// A third is used, each block every 20 s; it moves over all memory, 0.1 % of it each minute
    Drift,
}

impl Law {
    /// The mean time between two uses of a block in this second, in seconds. `None`: it is not
    /// used.
    fn gap(self, block: u32, blocks: u32, second: u32, phase: u32) -> Option<f64> {
        let third = blocks / 3;
        match self {
            Law::Zipf if block >= third => None,
            Law::Zipf => Some((120.0 * f64::from(block + 1) / f64::from(third)).max(0.25)),
            Law::Phases => (block / (blocks / 5).max(1) == second / phase.max(1) % 3).then_some(20.0),
            Law::Drift => {
                let moved = u64::from(third) * u64::from(second) / (1000 * u64::from(MINUTE));
                let behind = (u64::from(block) + u64::from(blocks) - moved % u64::from(blocks)) % u64::from(blocks);
                (behind < u64::from(third)).then_some(20.0)
            }
        }
    }
}

/// What is known of the uses.
struct Uses {
    law: Law,
    phase: u32,
    seed: u64,
    /// The second in which each block was last used.
    last: Vec<u32>,
    /// Blocks that were used again in this minute, after at least each of the ages.
    again: Vec<u32>,
    ages: Vec<u32>,
}

impl Uses {
    fn new(law: Law, blocks: usize, phase: u32, seed: u64) -> Self {
        let ages = ages();
        Self { law, phase, seed, last: vec![0; blocks], again: vec![0; ages.len()], ages }
    }

    /// The blocks that are used in this second.
    fn pass(&mut self, second: u32) -> Vec<usize> {
        let blocks = u32::try_from(self.last.len()).unwrap_or(u32::MAX);
        let mut used = Vec::new();
        for (block, last) in (0..).zip(&mut self.last) {
            let Some(gap) = self.law.gap(block, blocks, second, self.phase) else { continue };
            let chance = 1.0 - (-1.0 / gap).exp();
            // The upper 53 bits are a number from 0 to 1.
            let draw = mix(mix(self.seed ^ u64::from(second)).wrapping_add(u64::from(block))) >> 11;
            if (draw as f64) < chance * (1u64 << 53) as f64 {
                let unused = second - *last;
                let reached = self.ages.partition_point(|&age| age <= unused);
                self.again[..reached].iter_mut().for_each(|count| *count += 1);
                *last = second;
                used.push(block as usize);
            }
        }
        used
    }

    /// Blocks unused for at least this many seconds.
    fn unused(&self, age: u32, second: u32) -> usize {
        self.last.iter().filter(|&&last| second - last >= age).count()
    }

    /// The line of a minute.
    fn line(&mut self, second: u32) -> Value {
        let unused: Vec<_> = self.ages.iter().map(|&age| self.unused(age, second)).collect();
        let again = std::mem::replace(&mut self.again, vec![0; self.ages.len()]);
        json!({
            "minute": second / MINUTE, "monotonic_ns": clock::monotonic(),
            "working": self.last.len() - self.unused(WORKING, second), "unused": unused, "again": again,
        })
    }
}

/// The ages in seconds: from 30 s to 4 h, each 15 % longer than the one before.
fn ages() -> Vec<u32> {
    std::iter::successors(Some(30), |age| Some(age * 115 / 100)).take_while(|&age| age < 4 * 3600).collect()
}

/// Prints `{"ready": true, "block": BYTES, "blocks": N, "ages_s": [...]}`, and then each minute
/// `{"minute": N, "monotonic_ns": N, "working": N, "unused": [...], "again": [...]}`, in blocks. At
/// SIGTERM it prints `{"ended": true, "errors": N}`: words that were wrong when they were used.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM])?;
    let pattern = Pattern::new(args.seed, 50);
    let blocks = usize::try_from(args.amount.bytes()?)? / (BLOCK * 8);
    let words = map(blocks * BLOCK * 8, Kind::Anon)?;
    words.iter_mut().enumerate().for_each(|(index, word)| *word = pattern.word(index));
    let mut uses = Uses::new(args.law, blocks, u32::try_from(args.phase.as_secs())?, args.seed);
    println!("{}", json!({"ready": true, "block": BLOCK * 8, "blocks": blocks, "ages_s": uses.ages}));
    let (start, mut errors) = (clock::monotonic(), 0);
    for second in 1u32.. {
        let due = start + u64::from(second) * 1_000_000_000;
        while let Some(left) = due.checked_sub(clock::monotonic()) {
            if signals.wait(Some(Duration::from_nanos(left)))?.is_some() {
                println!("{}", json!({"ended": true, "errors": errors}));
                return Ok(());
            }
        }
        for block in uses.pass(second) {
            errors += use_block(words, block, pattern);
        }
        if second % MINUTE == 0 {
            println!("{}", uses.line(second));
        }
    }
    Ok(())
}

/// Reads and writes one word of each page of a block. Returns how many were wrong.
fn use_block(words: &mut [u64], block: usize, pattern: Pattern) -> usize {
    let pages = (block * BLOCK..(block + 1) * BLOCK).step_by(PAGE).map(|page| page + PAGE - 1);
    let mut errors = 0;
    for index in pages {
        errors += usize::from(words[index] != pattern.word(index));
        words[index] = black_box(words[index]);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 3000;

    /// The last line of this many minutes, and the blocks used again after at least 2 min in all.
    fn pass(law: Law, minutes: u32) -> (Value, u64) {
        let mut uses = Uses::new(law, BLOCKS, 1200, 1);
        let old = uses.ages.partition_point(|&age| age < 120);
        let (mut line, mut again) = (Value::Null, 0);
        for second in 1..=minutes * MINUTE {
            uses.pass(second);
            if second % MINUTE == 0 {
                line = uses.line(second);
                again += line["again"][old].as_u64().expect("a number");
            }
        }
        (line, again)
    }

    fn cold(line: &Value, at: usize) -> u64 {
        line["unused"][at].as_u64().expect("a number")
    }

    #[test]
    fn what_no_law_uses_grows_old() {
        for (law, cold_blocks) in [(Law::Zipf, 2000..2010), (Law::Phases, 2400..2410), (Law::Drift, 1980..2000)] {
            let (line, _) = pass(law, 15);
            let ten_minutes = ages().partition_point(|&age| age < 600);
            assert!(cold_blocks.contains(&cold(&line, ten_minutes)), "{line}");
        }
    }

    #[test]
    fn memory_comes_back_where_a_phase_begins() {
        let (_, before) = pass(Law::Phases, 19);
        let (_, after) = pass(Law::Phases, 22);
        assert!(before < 150 && (600..650).contains(&(after - before)), "{before}, {after}");
    }

    #[test]
    fn an_older_age_has_less() {
        let (line, again) = pass(Law::Zipf, 20);
        assert!(again > 0);
        for name in ["unused", "again"] {
            let counts: Vec<_> = line[name].as_array().expect("a list").iter().map(|count| count.as_u64()).collect();
            assert!(counts.is_sorted_by(|younger, older| younger >= older), "{line}");
        }
    }
}
