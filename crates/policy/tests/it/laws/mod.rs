//! Laws that hold for every input.

mod decisions;
pub mod inputs;
mod pace;
