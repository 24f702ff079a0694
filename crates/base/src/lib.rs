//! What every part of omr needs and none owns.

pub mod cancel;
pub mod exit;
pub mod logging;
pub mod paths;
pub mod signals;
pub mod storage;
pub mod text;
pub mod when;
