//! What holds for every input.

mod decisions;
mod inputs;
mod pace;
