//! Decisions, as a pure function: [`Config`], [`State`] and [`Signals`] in, a [`Decision`] out.
//!
//! No file, clock, thread or random source: the crate is `no_std`, so the compiler keeps them out,
//! and a recorded day can be decided again with another configuration.
//!
//! * [`decide`]: once a second. Is the machine idle, which group gains most, must a sweep end?
//! * [`next`]: when a group is done, which one now?
//! * [`stop::Watch`]: fifty times a second while a sweep runs. Has somebody begun to work?
//! * [`forecast::forecast`]: how large would a hibernation image be now?
//! * [`rank::rank`]: every few seconds. Which processes in the background are hinted away, and how?
//! * [`pace::Pace`]: between two writes to the kernel. How much next, or wait, or end?
//! * [`age::Ages`]: how much of a group was not used for how long?
//! * [`schedule::Schedule`]: once a second. Is it time to look at that, and is there CPU time for it?
//! * [`advise::advise`]: what limits could a group live with, from what it held and used over days?
//! * [`numa::advise`]: where is what a group uses, on a machine with several nodes, and where would it be better?
//! * [`zram::Known`]: is zram swap better switched off while an image is made small?
//! * [`trial::Trial`]: can a group live with less memory, and with how much less?
#![no_std]
extern crate alloc;

pub mod advise;
pub mod age;
mod budget;
mod config;
mod decide;
pub mod forecast;
mod idle;
pub mod numa;
pub mod pace;
mod purpose;
pub mod rank;
mod reason;
pub mod schedule;
mod signals;
pub mod statement;
pub mod stop;
pub mod trial;
pub mod zram;

pub use budget::Writes;
pub use config::{Class, Config, Goal, Guard, Hibernate, Hints, History, Idle, IdleRule, Mode, Stop, Sweep};
pub use decide::{Decision, State, decide, judge, next, swap_floor};
pub use purpose::Purpose;
pub use reason::{Reason, short};
pub use signals::{ByAge, CpuIdle, End, Finished, Group, Machine, Memory, Old, Signals, Swap};
