//! No text of a kernel file makes its parser panic or hang. The first byte of the input chooses the
//! parser.
#![no_main]

#[path = "../../crates/kernel/tests/interfaces/parsers.rs"]
mod parsers;

libfuzzer_sys::fuzz_target!(|input: &[u8]| parsers::parse(input));
