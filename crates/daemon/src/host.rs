//! The machine that the daemon runs on, and its own place in it. Nothing here changes while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use omr_base::paths;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, process};
use omr_units::GroupId;

/// Where the daemon is.
pub struct Host {
    /// The root directory below which all files are opened.
    pub root: PathBuf,
    /// The kernel's files.
    pub kernel: Arc<Kernel>,
    /// The directory of what must survive a restart.
    pub state_dir: PathBuf,
    /// The daemon's own group, below the mount; empty where it cannot be told.
    pub own_group: PathBuf,
    /// The identity of that group; `None` when other processes are in it as well.
    pub own_id: Option<GroupId>,
}

impl Host {
    /// The host whose root directory is `root`.
    pub fn new(root: &Path, kernel: Arc<Kernel>) -> Self {
        let own_group = process::read_own_group(&kernel).ok().flatten().unwrap_or_default();
        let own_group = own_group.strip_prefix("/").map(Path::to_path_buf).unwrap_or(own_group);
        Host {
            root: root.into(),
            own_id: own_id(&kernel, &own_group),
            own_group,
            state_dir: paths::state_dir(root),
            kernel,
        }
    }

    /// Whether the daemon's CPU time is part of a group that it shares with other processes.
    pub fn shares_its_group(&self) -> bool {
        self.own_id.is_none() && !self.own_group.as_os_str().is_empty()
    }
}

/// The daemon's group, when it has one for itself.
fn own_id(kernel: &Kernel, own_group: &Path) -> Option<GroupId> {
    let group = Group::open(kernel.cgroup().ok()?, own_group).ok().filter(|group| !group.is_root())?;
    let processes = group.dir().read_string("cgroup.procs").ok()?;
    (processes.lines().count() == 1).then(|| group.id())
}
