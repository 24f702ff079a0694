//! The paths of omr's own files, below the root directory.
//!
//! There are two pairs of directories. One belongs to the daemon, which may run as a user of its own
//! and listens to users: root reads it with care, and writes there only what the daemon may change.
//! The other one belongs to root: the daemon reads it and cannot write it, so root can rely on it.

use std::path::{Path, PathBuf};

/// The daemon's directory of files that must survive a reboot: ledger, write budget, limit journal.
pub fn state_dir(root: &Path) -> PathBuf {
    root.join("var/lib/omr")
}

/// Root's directory of files that must survive a reboot.
pub fn root_state_dir(root: &Path) -> PathBuf {
    root.join("var/lib/omr-root")
}

/// The list of zram swap devices that are off until a preparation ends.
pub fn zram(root: &Path) -> PathBuf {
    root_state_dir(root).join("zram.json")
}

/// The value of image_size before omr raised it.
pub fn image_size(root: &Path) -> PathBuf {
    root_state_dir(root).join("image_size.json")
}

/// The directory of the history: samples of groups over weeks.
pub fn history(root: &Path) -> PathBuf {
    state_dir(root).join("history")
}

/// The daemon's directory of files that belong to this boot: the socket, its lock, the statements.
pub fn runtime_dir(root: &Path) -> PathBuf {
    root.join("run/omr")
}

/// Root's directory of files that belong to this boot: root's locks, sockets of root's services, and
/// the administrator's drop-ins.
pub fn root_runtime_dir(root: &Path) -> PathBuf {
    root.join("run/omr-root")
}

/// The control socket.
pub fn socket(root: &Path) -> PathBuf {
    runtime_dir(root).join("omr.sock")
}

/// The socket of `omr-give-back.socket`.
pub fn give_back_socket(root: &Path) -> PathBuf {
    root_runtime_dir(root).join("give-back.sock")
}

/// The socket of `omr-compact.socket`.
pub fn compact_socket(root: &Path) -> PathBuf {
    root_runtime_dir(root).join("compact.sock")
}

/// The record of pages that were in memory, for `omr warm`.
pub fn warm_record(root: &Path) -> PathBuf {
    root_state_dir(root).join("warm")
}

/// The lock that `omr warm` holds while it brings memory back.
pub fn warm_lock(root: &Path) -> PathBuf {
    root_runtime_dir(root).join("warm.lock")
}

/// The statements about groups and processes.
pub fn statements(root: &Path) -> PathBuf {
    runtime_dir(root).join("statements.json")
}

/// The lock that omr holds while it uses DAMON.
pub fn damon_lock(root: &Path) -> PathBuf {
    root_runtime_dir(root).join("damon.lock")
}
