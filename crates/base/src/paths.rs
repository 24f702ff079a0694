//! Where omr keeps its things, below the root.

use std::path::{Path, PathBuf};

/// What must survive a restart: the ledger, the write budget, the journal of limits.
pub fn state_dir(root: &Path) -> PathBuf {
    root.join("var/lib/omr")
}

/// Which zram swap is off until a preparation ends, in the state directory.
pub fn zram(state_dir: &Path) -> PathBuf {
    state_dir.join("zram.json")
}

/// What image_size was before it was raised, in the state directory.
pub fn image_size(state_dir: &Path) -> PathBuf {
    state_dir.join("image_size.json")
}

/// What groups held and used, over weeks.
pub fn history(root: &Path) -> PathBuf {
    state_dir(root).join("history")
}

/// What belongs to this boot: the socket and the lock.
pub fn runtime_dir(root: &Path) -> PathBuf {
    root.join("run/omr")
}

/// The control socket.
pub fn socket(root: &Path) -> PathBuf {
    runtime_dir(root).join("omr.sock")
}

/// Which pages were in memory, for `omr warm`.
pub fn warm_record(root: &Path) -> PathBuf {
    state_dir(root).join("warm")
}

/// Held while `omr warm` brings memory back.
pub fn warm_lock(root: &Path) -> PathBuf {
    runtime_dir(root).join("warm.lock")
}

/// What somebody has said of groups and processes.
pub fn statements(root: &Path) -> PathBuf {
    runtime_dir(root).join("statements.json")
}

/// Held while omr uses DAMON.
pub fn damon_lock(root: &Path) -> PathBuf {
    runtime_dir(root).join("damon.lock")
}
