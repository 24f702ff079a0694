//! Tests of the policy's public functions: cases, laws for every input, and a simulated machine.
#![allow(missing_docs)]

mod advise;
mod age;
mod away;
mod busy;
mod choose;
mod cold;
mod cost;
mod desk;
mod harm;
mod idle;
mod json;
mod laws;
mod need;
mod numa;
mod pace;
mod presence;
mod probe;
mod probed;
mod quiet;
mod rank;
mod refault_guard;
mod regret;
mod schedule;
mod simulation;
mod swap;
mod threshold;
mod trial;
mod write_budget;
