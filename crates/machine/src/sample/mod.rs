//! What the policy decides from: counters at one moment, and what two moments tell.

pub mod cpu;
pub mod observation;
pub mod snapshot;
