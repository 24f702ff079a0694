//! All work that writes to the kernel: reclaim, aging, hints, prefetch (warm), preparations and
//! trials.

pub mod aging;
pub mod hint;
mod holder;
pub mod prepare;
pub mod reclaim;
mod session;
#[cfg(test)]
mod stand_in;
pub mod trial;
pub mod warm;

pub use session::{Host, NewActuator, Progress, Session, cancelled};
