//! Decisions, as pure functions: [`Config`], [`State`] and [`Signals`] in, a [`Decision`] out.
//!
//! The crate has no file, clock, thread or random source. It is `no_std`, so the compiler keeps
//! them out, and a recorded day can be decided again with another configuration.
//!
//! * [`decide`], once a second: is the machine idle, or quiet, which group gains most, must a sweep
//!   end?
//! * [`need::need`]: how much memory should leave, and who gains from it?
//! * [`away::age`]: from which age on may memory leave while everybody is away?
//! * [`cost::disk_writes`]: how much may be written to swap on disk now?
//! * [`presence::Presence`]: is somebody there, or has everybody been away for long enough?
//! * [`next`], when a sweep of a group has ended: which group is next?
//! * [`busy::BusyWatch`], fifty times a second during a sweep: has foreground work begun?
//! * [`pace::Pace`], between two writes to the kernel: how much next, or wait, or end?
//! * [`rank::rank`], every few seconds: which background processes get a hint, and which hint?
//! * [`schedule::Schedule`], once a second: is it time to age groups, and is there CPU time for it?
//! * [`age::Ages`]: how much memory of a group was unused for how long?
//! * [`forecast::forecast`]: how large would a hibernation image be now?
//! * [`zram::Inputs`]: is zram swap better switched off while an image is made small?
//! * [`advise::advise`]: with which limits could a group live, judging by days of samples?
//! * [`threshold::Threshold`]: from which age on will memory of a group not be missed?
//! * [`probe::Probe`]: how much may be taken where nothing tells the age of memory?
//! * [`regret::Regrets`]: what did sweeps cost the tasks of the swept groups?
//! * [`trial::Trial`]: can a group live with less memory, and with how much less?
//! * [`numa::advise`]: on which nodes is a group's memory, and where would it be better?
#![no_std]
extern crate alloc;

pub mod advise;
pub mod age;
pub mod away;
mod backoff;
mod budget;
pub mod busy;
mod config;
pub mod cost;
mod decide;
pub mod forecast;
mod gates;
mod giving_back;
mod idle;
mod judge;
pub mod need;
pub mod numa;
pub mod pace;
pub mod presence;
pub mod probe;
mod purpose;
pub mod quiet;
pub mod rank;
mod reason;
pub mod regret;
pub mod schedule;
mod signals;
mod state;
pub mod statement;
mod swept;
pub mod threshold;
pub mod trial;
pub mod zram;

pub use backoff::Backoff;
pub use budget::Writes;
pub use config::{
    Class, Config, Goal, Guard, Hibernate, Hints, History, Idle, IdleRule, MinAge, Mode, Objective, Stop, Sweep,
};
pub use decide::{Decision, decide, next, nobody_gains};
pub use gates::swap_floor;
pub use judge::judge;
pub use purpose::Purpose;
pub use reason::{Reason, short};
pub use signals::{ColdAmount, ColdOnly, CpuIdle, End, Finished, Group, Machine, Memory, Signals, Swap, SwapContext};
pub use state::State;
