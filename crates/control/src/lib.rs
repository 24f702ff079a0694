//! The daemon's control socket: its protocol, a client, and the types of the answers.

#![deny(clippy::indexing_slicing)]

pub mod client;
pub mod counters;
pub mod protocol;
pub mod status;
