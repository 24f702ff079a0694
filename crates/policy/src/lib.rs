//! Decisions, as a pure function: [`Config`], [`State`] and [`Signals`] in, a [`Decision`] out.
//!
//! No file, clock, thread or random source: the crate is `no_std`, so the compiler keeps them out,
//! and a recorded day can be decided again with another configuration.
#![no_std]
extern crate alloc;

mod config;

pub use config::{Class, Config, Guard, Idle, IdleRule, Mode, Stop, Sweep};
