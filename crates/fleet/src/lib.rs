//! Recorded weeks of machines, replayed through the policy of the daemon: how much memory each of
//! many policies would have held out, and what would have come back.
//!
//! A **shard** is the history of one machine as a Parquet file (`omr history --groups --parquet`).
//! A **window** is one sample of one group: the time since the sample before, about ten minutes. A
//! group that has recorded groups below it is left out, because its samples contain theirs.
//!
//! The result of a shard is sums, counts and histograms of integers, so results are merged by
//! addition, and any order, machine and retry gives the same bits.
//!
//! Nothing here reads the kernel or the network, or writes a file.

#![deny(clippy::indexing_slicing)]

pub mod histogram;
pub mod outcome;
pub mod policies;
mod replay;
pub mod shard;
pub mod summary;
pub mod synthesize;
pub mod traces;

pub use outcome::Outcome;
pub use policies::Policies;
pub use replay::replay;
