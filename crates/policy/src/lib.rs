//! Decisions, as a pure function: [`Config`], [`State`] and [`Signals`] in, a [`Decision`] out.
//!
//! No file, clock, thread or random source: the crate is `no_std`, so the compiler keeps them out,
//! and a recorded day can be decided again with another configuration.
//!
//! * [`decide`]: once a second. Is the machine idle, which group gains most, must a sweep end?
//! * [`next`]: when a group is done, which one now?
//! * [`stop::Watch`]: fifty times a second while a sweep runs. Has somebody begun to work?
//! * [`forecast::forecast`]: how large would a hibernation image be now?
//! * [`pace::Pace`]: between two writes to the kernel. How much next, or wait, or end?
#![no_std]
extern crate alloc;

mod budget;
mod config;
mod decide;
pub mod forecast;
mod idle;
pub mod pace;
mod reason;
mod signals;
pub mod stop;

pub use budget::Writes;
pub use config::{Class, Config, Goal, Guard, Hibernate, Idle, IdleRule, Mode, Stop, Sweep};
pub use decide::{Decision, State, decide, judge, next, swap_floor};
pub use reason::{Reason, short};
pub use signals::{CpuIdle, End, Finished, Group, Machine, Signals, Swap};
