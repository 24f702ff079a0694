//! `omr mount`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use omr_actuate::Live;
use omr_base::exit::Exit;
use omr_base::logging;
use omr_base::signals::SignalFd;
use omr_config as config;
use omr_config::BackendChoice;
use omr_engine::reclaim::backend::Backend;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, mounts};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::mount::{FILE, KIND, Mirror, Reclaimer, detach};

/// Offers memory.swap.reclaim, the file of the original patch, on a kernel that lacks it.
///
/// DIR becomes a tree of the control groups, each with that file. A size (k, m, g behind it) or "max" written
/// to it reclaims up to that much from the group and those below it, and from all background groups at the
/// root; a signal to the writer ends it, and the write has succeeded. What is read is how many bytes the last
/// write reclaimed, or has so far. Who may write memory.reclaim of a group may write it. Swap is not filled
/// beyond guard.swap_floor, and memory.min and memory.low hold, at the root too. Writers of one file take turns.
///
/// It stays until it is told to end or unmounted (umount -l DIR). Unmount it before the machine sleeps, or
/// use omr-mount.service, which does: processes that wait for a frozen file system cannot be frozen.
///
/// Exit codes: 0 unmounted; 1 it could not be mounted; 2 a mistake in the configuration; 3 this kernel has the
/// file itself, or no memory.reclaim or no FUSE.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An empty directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Log to standard error instead of the journal
    #[arg(long)]
    foreground: bool,

    /// Read this file instead of the configuration of the system
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    logging::start(args.foreground);
    let kernel = Arc::new(Kernel::open(root)?);
    let loaded = config::load_or_refuse(root, args.config.as_deref())?;
    let group = Group::open(kernel.cgroup()?, Path::new(""))?;
    if group.dir().has(FILE) {
        let dir = kernel.cgroup_path().display();
        return Err(Exit::Unsupported.error(format!("this kernel has {FILE} itself, below {dir}")));
    }
    let backend = Backend::probe(BackendChoice::Reclaim, &group, &mut Live)
        .map_err(|err| Exit::Unsupported.error(format!("{err:#}")))?;
    let dir = free(&kernel, &args.dir)?;

    // Before any thread exists, so that all of them have these signals blocked.
    let signals = SignalFd::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    let reclaimer = Reclaimer { kernel: Arc::clone(&kernel), root: root.into(), loaded, backend };
    let mut mirror = Mirror::mount(&dir, kernel, reclaimer).map_err(|err| refused(&dir, err))?;
    log::info!("omr {} offers {FILE} at {}", env!("CARGO_PKG_VERSION"), dir.display());
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let unmounted = loop {
        if signals.read().is_some() {
            break None;
        }
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN), PollFd::new(&mirror, PollFlags::IN)], None);
        if let Err(err) = mirror.serve() {
            break Some(err);
        }
    };
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    drop(mirror);
    match unmounted {
        // ENODEV: by somebody else.
        Some(err) if err.raw_os_error() != Some(Errno::NODEV.raw_os_error()) => Err(err).context("/dev/fuse"),
        _ => Ok(Exit::Done),
    }
}

/// The directory by its real path, without what an omr that was killed has left there.
fn free(kernel: &Kernel, dir: &Path) -> Result<PathBuf> {
    let real = std::fs::canonicalize(dir).with_context(|| format!("look at {}", dir.display()))?;
    while mounts::find(&mounts::read(kernel)?, &real, KIND.as_bytes()).is_some() {
        if rustix::fs::stat(&real).err() != Some(Errno::NOTCONN) {
            return Err(Exit::Failed.error(format!("{} is mounted already", real.display())));
        }
        log::warn!("{}: unmounting what an omr that was killed has left", real.display());
        detach(&real).with_context(|| format!("unmount {}", real.display()))?;
    }
    if real.parent().is_none() || !real.is_dir() {
        return Err(Exit::Usage.error(format!("{}: expected a directory below another", real.display())));
    }
    Ok(real)
}

/// What a mount that failed says about this machine.
fn refused(dir: &Path, err: std::io::Error) -> anyhow::Error {
    match Errno::from_io_error(&err) {
        Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
            Exit::Unsupported.error("this kernel has no FUSE: modprobe fuse, or CONFIG_FUSE_FS")
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            Exit::Failed.error(format!("mount {}: {err}; it takes root", dir.display()))
        }
        _ => anyhow::Error::new(err).context(format!("mount {}", dir.display())),
    }
}
