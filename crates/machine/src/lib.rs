//! What there is on this machine, and what omr may touch of it. Reads only.

pub mod groups;
pub mod inventory;
pub mod processes;
pub mod sample;
pub mod statements;
