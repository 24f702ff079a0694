//! The paths of omr's own files, below the root directory.

use std::path::{Path, PathBuf};

/// The directory of files that must survive a reboot: ledger, write budget, limit journal.
pub fn state_dir(root: &Path) -> PathBuf {
    root.join("var/lib/omr")
}

/// The list of zram swap devices that are off until a preparation ends.
pub fn zram(state_dir: &Path) -> PathBuf {
    state_dir.join("zram.json")
}

/// The value of image_size before omr raised it.
pub fn image_size(state_dir: &Path) -> PathBuf {
    state_dir.join("image_size.json")
}

/// The directory of the history: samples of groups over weeks.
pub fn history(root: &Path) -> PathBuf {
    state_dir(root).join("history")
}

/// The directory of files that belong to this boot: the socket and the locks.
pub fn runtime_dir(root: &Path) -> PathBuf {
    root.join("run/omr")
}

/// The control socket.
pub fn socket(root: &Path) -> PathBuf {
    runtime_dir(root).join("omr.sock")
}

/// The socket of `omr-give-back.socket`.
pub fn give_back_socket(root: &Path) -> PathBuf {
    runtime_dir(root).join("give-back.sock")
}

/// The record of pages that were in memory, for `omr warm`.
pub fn warm_record(root: &Path) -> PathBuf {
    state_dir(root).join("warm")
}

/// The lock that `omr warm` holds while it brings memory back.
pub fn warm_lock(root: &Path) -> PathBuf {
    runtime_dir(root).join("warm.lock")
}

/// The statements about groups and processes.
pub fn statements(root: &Path) -> PathBuf {
    runtime_dir(root).join("statements.json")
}

/// The lock that omr holds while it uses DAMON.
pub fn damon_lock(root: &Path) -> PathBuf {
    runtime_dir(root).join("damon.lock")
}
