//! Samples of the machine for the policy: counters at one moment, and rates between two moments.

pub mod cost;
pub mod cpu;
pub mod observation;
pub mod snapshot;
