//! The state of this machine: groups, processes, samples, statements. This crate only reads.

#[cfg(test)]
mod fixture;
pub mod groups;
pub mod inventory;
pub mod processes;
pub mod sample;
pub mod statements;
