//! Every write to the kernel: writes to files, and the system calls that act.
//!
//! This crate is apart from `omr-kernel`, which only reads, so that a crate without it in its
//! `[dependencies]` cannot write. Every write goes through an [`Actuator`]. [`Live`] writes to the
//! kernel, [`DryRun`] writes nothing, and [`Transcript`] records the writes. Each module has the
//! writes of one interface; the reads are in the module of the same name in `omr-kernel`.

mod actuator;
mod calls;
mod words;

pub mod clear_refs;
pub mod compaction;
pub mod damon;
pub mod groups;
pub mod hibernate;
pub mod lru_gen;
pub mod madvise;
pub mod probe;
pub mod swap;

pub use actuator::{Actuator, DryRun, Live, Transcript};
pub use words::{Advice, AdviseResult, Outcome, Switch};
