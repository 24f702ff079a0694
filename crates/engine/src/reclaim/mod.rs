//! Reclaiming memory from groups.

pub mod backend;
pub mod generations;
pub mod job;
pub mod limit_journal;
mod memcg;
pub mod method;
pub mod regions;
mod report;
pub mod writeback;

pub use self::job::{job, swap_context, swap_floor_of};
pub use self::method::{Method, Target, Wish};
pub use self::report::{Report, is_gone};
pub use crate::session::Progress;
