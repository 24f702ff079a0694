//! Reclaims memory from groups.

pub mod backend;
mod errors;
pub mod generations;
pub mod job;
pub mod limit_journal;
mod memcg;
pub mod method;
mod passed;
pub mod regions;
mod report;
mod target;
pub mod writeback;

pub use self::errors::is_gone;
pub use self::job::{job, swap_context, swap_floor_of};
pub use self::method::{Method, Wish};
pub use self::report::Report;
pub use self::target::Target;
pub use crate::session::Progress;
