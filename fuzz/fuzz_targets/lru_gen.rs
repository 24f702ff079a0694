//! For every text of `lru_gen`: see `parse_generations`. The texts are longer than those of
//! kernel_files.
#![no_main]

#[path = "../../crates/kernel/tests/interfaces/parsers.rs"]
mod parsers;

libfuzzer_sys::fuzz_target!(|text: &[u8]| parsers::parse_generations(text));
