//! One module per Linux interface that omr reads. This crate does not write: writes are in
//! `omr-actuate`. A PSI trigger and an inotify watch are the only exceptions; the kernel drops both
//! when their file is closed.
//!
//! Every path is resolved below a [`Kernel`]: three directory descriptors (`/proc`, `/sys` and the
//! cgroup2 mount), opened once under a root that a test may choose. Functions named `read_*` touch
//! the system. Functions named `parse_*` take text and touch nothing.
//!
//! Missing data is `None` or an [`Error`], never a zero: a decision must be able to tell "nothing"
//! from "unknown".

#![deny(clippy::indexing_slicing)]

mod error;
mod root;
mod text;

pub mod block;
pub mod buddyinfo;
pub mod clock;
pub mod crypto;
pub mod damon;
pub mod dmi;
pub mod hibernate;
pub mod inotify;
pub mod kmsg;
pub mod lockdown;
pub mod lru_gen;
pub mod maps;
pub mod medium;
pub mod memcg;
pub mod meminfo;
pub mod mounts;
pub mod numa;
pub mod page_reporting;
pub mod pagemap;
pub mod power_supply;
pub mod probe;
pub mod process;
pub mod psi;
pub mod ranges;
pub mod stat;
pub mod swap;
pub mod vmstat;
pub mod zoneinfo;

pub use error::{Error, Result, is_passing};
pub use root::{Dir, Kernel, parse_version};
