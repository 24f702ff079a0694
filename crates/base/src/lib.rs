//! Basics that every part of omr uses: exit codes, paths, files, locks, signals, texts.

#![deny(clippy::indexing_slicing)]

pub mod cancel;
pub mod exit;
pub mod folder;
pub mod lock;
pub mod logging;
pub mod memory;
pub mod paths;
pub mod signals;
pub mod storage;
pub mod text;
pub mod when;
