//! Tests of the program as a whole: each runs `omr` with files of a fake machine.

mod advise;
mod ages;
mod bad_input;
mod common;
mod config;
mod crash;
mod daemon;
mod daemon_prepare;
mod doctor;
mod follow;
mod golden;
mod help;
mod hint;
mod history;
mod hold;
mod invariants;
mod metrics;
mod pictures;
mod processes;
mod reclaim;
mod run;
mod top;
mod user;
mod warm;
mod watch;
mod web;
