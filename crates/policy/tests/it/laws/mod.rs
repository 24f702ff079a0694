//! Laws that hold for every input.

mod decisions;
mod inputs;
mod pace;
