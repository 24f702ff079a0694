//! Feeds parsers with real inputs that are changed at random.
//!
//! The fuzzers of `fuzz/` are guided by coverage and need a nightly compiler. This one runs
//! wherever the tests do, also for functions that are private.
//!
//! A target does not panic, and holds no more than [`MOST_HELD`] at a time whatever a length field
//! says. What else is true of all inputs is asserted by the target itself.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::memory::most_held;

/// Seconds for each target.
const SECONDS: &str = "OMR_FUZZ_SECONDS";
/// The seed of the changes; without it each run has another one.
const SEED: &str = "OMR_FUZZ_SEED";
/// As many changed inputs at least, however busy the machine is: some of them are still good.
const LEAST_TRIES: u64 = 200;
/// The longest input, in bytes.
const LONGEST: usize = 1 << 16;
/// The most memory that a target may hold at a time, in bytes. An element of JSON has 2 bytes or
/// more and becomes 32, in a list that is copied when it grows: 6 MiB for the longest input.
const MOST_HELD: usize = 8 << 20;

/// Gives `parse` each of these inputs, and then changed ones: for `OMR_FUZZ_SECONDS`, or a quarter
/// of a second, and no less than [`LEAST_TRIES`].
///
/// # Panics
/// If `parse` does, or if it holds too much memory. The seed and the input are printed before.
pub fn feed<S: AsRef<[u8]>>(inputs: &[S], parse: impl Fn(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number(SEED).unwrap_or_else(|| fastrand::u64(..));
    let time = number(SECONDS).map_or(Duration::from_millis(250), Duration::from_secs);
    let inputs: Vec<&[u8]> = inputs.iter().map(AsRef::as_ref).chain([b"".as_slice()]).collect();
    for input in &inputs {
        try_one(&parse, input, seed);
    }
    if number(SECONDS).is_some() {
        // Not captured: a stack that overflows, and a parser that does not end, print nothing.
        let thread = std::thread::current();
        let _ = writeln!(std::io::stderr(), "{SEED}={seed} {}", thread.name().unwrap_or_default());
    }
    let mut random = Rng::with_seed(seed);
    let mut tries = 0u64;
    let began = Instant::now();
    while tries < LEAST_TRIES || began.elapsed() < time {
        let mut input = inputs[random.usize(0..inputs.len())].to_vec();
        for _ in 0..1 << random.u32(0..5) {
            change(&mut input, &inputs, &mut random);
        }
        input.truncate(LONGEST);
        try_one(&parse, &input, seed);
        tries += 1;
    }
    eprintln!("{tries} inputs");
}

fn try_one(parse: &impl Fn(&[u8]), input: &[u8], seed: u64) {
    let checked = || {
        let held = most_held(|| parse(input));
        assert!(held <= MOST_HELD, "it holds {held} bytes at a time");
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(checked)) {
        eprintln!("{SEED}={seed}: it panics with b\"{}\"", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// Makes one change.
fn change(input: &mut Vec<u8>, inputs: &[&[u8]], random: &mut Rng) {
    let place = random.usize(0..=input.len());
    let end = (place + random.usize(0..=16)).min(input.len());
    match random.u32(0..10) {
        0 if place < input.len() => input[place] ^= 1 << random.u32(0..8),
        1 if place < input.len() => input[place] = random.u8(..),
        2 => drop(input.drain(place..end)),
        3 => drop(input.splice(place..place, std::iter::repeat_n(random.u8(..), random.usize(0..64)))),
        4 => input.truncate(place),
        // A piece of itself again, as a line that comes twice.
        5 => {
            let piece = input[place..end].to_vec();
            drop(input.splice(place..place, piece));
        }
        // A piece of another input.
        6 => {
            let other = inputs[random.usize(0..inputs.len())];
            let from = random.usize(0..=other.len());
            let to = (from + random.usize(0..=64)).min(other.len());
            drop(input.splice(place..end, other[from..to].iter().copied()));
        }
        // Numbers at the ends of their ranges.
        7 => {
            let numbers = ["0", "-1", "1e999", "255", "4294967296", "18446744073709551615", "18446744073709551616"];
            drop(input.splice(place..end, numbers[random.usize(0..numbers.len())].bytes()));
        }
        // The same in binary, in the place of a length or a checksum.
        8 => {
            let numbers: [&[u8]; 5] = [&[0; 4], &[0xff; 4], &[0xff, 0xff, 0xff, 0x7f], &[0, 0, 0, 1], &[0xff; 10]];
            let number = numbers[random.usize(0..numbers.len())];
            let end = (place + number.len()).min(input.len());
            drop(input.splice(place..end, number.iter().copied()));
        }
        _ => {
            let words = ["\0", "\n", "\"", "{", "[", "max", "\u{fffd}", "é", "\\u0000", "null", " ", "\r\n"];
            drop(input.splice(place..end, words[random.usize(0..words.len())].bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_a_length_that_is_believed() {
        let parse = |input: &[u8]| {
            let Some(length) = input.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else { return };
            drop(std::hint::black_box(Vec::<u8>::with_capacity(length as usize)));
        };
        let found = catch_unwind(AssertUnwindSafe(|| feed(&[b"\x03\0\0\0abc".as_slice()], parse)));
        let said = found.expect_err("4 GiB").downcast::<String>().expect("words");
        assert!(said.starts_with("it holds "), "{said}");
    }

    #[test]
    fn it_finds_a_panic_that_real_inputs_do_not_have() {
        let parse = |input: &[u8]| assert!(input.iter().filter(|&&byte| byte == b'{').count() < 3);
        let found = catch_unwind(AssertUnwindSafe(|| feed(&[b"{\"a\": 1}".as_slice()], parse)));
        assert!(found.is_err());
        feed(&[b"{\"a\": 1}".as_slice()], |input| assert!(input.len() <= LONGEST));
    }
}
