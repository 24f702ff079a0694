//! The machine that the daemon runs on, and its own place in it. Nothing here changes while it
//! runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use omr_base::paths;
use omr_engine::warm::Notice;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, process};
use omr_machine::statements::StatementStore;
use omr_units::{GroupId, Monotonic};

/// The machine, and the daemon's group.
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
    /// The identity of the boot; empty where the kernel does not tell.
    pub boot: String,
    /// The time of the boot, since 1970, by the wall clock when the daemon started.
    booted: Duration,
}

impl Host {
    /// The host whose root directory is `root`. After an error that passes systemd starts the daemon
    /// again: it would take this for another boot, or its own group for one to sweep.
    pub fn new(root: &Path, kernel: Arc<Kernel>) -> Result<Self> {
        let own_group = known(process::read_own_group(&kernel))?.flatten().unwrap_or_default();
        let own_group = own_group.strip_prefix("/").map(Path::to_path_buf).unwrap_or(own_group);
        let booted = kernel.clock.wall().saturating_sub(since_boot(&kernel));
        Ok(Host {
            root: root.into(),
            own_id: own_id(&kernel, &own_group)?,
            own_group,
            state_dir: paths::state_dir(root),
            boot: known(kernel.read_boot_id())?.unwrap_or_default(),
            booted,
            kernel,
        })
    }

    /// The time now on the monotonic clock.
    pub fn now(&self) -> Monotonic {
        self.kernel.clock.monotonic()
    }

    /// Seconds since 1970 on the wall clock.
    pub fn wall(&self) -> u64 {
        self.kernel.clock.wall().as_secs()
    }

    /// The time of the boot, in seconds since 1970.
    pub fn booted(&self) -> u64 {
        self.booted.as_secs()
    }

    /// An earlier daemon of this boot took this for the time of the boot.
    pub fn keep_booted(&mut self, seconds: u64) {
        self.booted = Duration::from_secs(seconds);
    }

    /// Hours since 1970, for the write budget. A wall clock that is set during the boot changes
    /// nothing: else a clock that is set forward would give a budget that is not used yet.
    pub fn hour(&self) -> u64 {
        (self.booted + since_boot(&self.kernel)).as_secs() / 3600
    }

    /// The lock that `omr warm` holds while it brings memory back.
    pub fn warm_lock(&self) -> Notice {
        Notice::new(&paths::warm_lock(&self.root))
    }

    /// The statements of this boot.
    pub fn load_statements(&self) -> Result<StatementStore> {
        StatementStore::load(&paths::statements(&self.root), &self.boot)
    }

    /// Returns true if the daemon shares its group, and so its CPU time, with other processes.
    pub fn shares_its_group(&self) -> bool {
        self.own_id.is_none() && !self.own_group.as_os_str().is_empty()
    }
}

/// The time since boot, asleep or not.
fn since_boot(kernel: &Kernel) -> Duration {
    Duration::from_nanos(kernel.clock.monotonic().0).saturating_add(kernel.clock.asleep())
}

/// The daemon's group, when it has one for itself.
fn own_id(kernel: &Kernel, own_group: &Path) -> Result<Option<GroupId>> {
    let Ok(root) = kernel.cgroup() else { return Ok(None) };
    let Some(group) = known(Group::open(root, own_group))?.filter(|group| !group.is_root()) else { return Ok(None) };
    let processes = known(group.dir().read_string("cgroup.procs"))?;
    Ok(processes.is_some_and(|processes| processes.lines().count() == 1).then(|| group.id()))
}

/// A value that was read; `None`: it cannot be read. An error that passes stays one.
fn known<T>(read: omr_kernel::Result<T>) -> Result<Option<T>> {
    match read {
        Err(err) if err.is_passing() => Err(err.into()),
        read => Ok(read.ok()),
    }
}
