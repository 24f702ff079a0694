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

/// Offers the original patch's file memory.swap.reclaim on a kernel that lacks it.
///
/// DIR becomes a tree of the control groups, each with that file. Write a size (with k, m or g) or
/// "max" to reclaim up to that amount from the group and the groups below it; at the root, from all
/// background groups. A signal to the writer ends the reclaim, and the write still succeeds.
/// Reading gives the bytes that the last write has reclaimed so far. A user who may write
/// memory.reclaim of a group may write this file. guard.swap_floor, memory.min and memory.low hold,
/// at the root, too. Writers of one file take turns.
///
/// The command runs until it gets SIGTERM or DIR is unmounted (umount -l DIR). Unmount DIR before
/// the machine sleeps, as omr-mount.service does: processes that wait for a frozen file system
/// cannot be frozen.
///
/// Exit codes: 0 unmounted; 1 the mount failed; 2 a mistake in the configuration; 3 this kernel has
/// the file itself, or lacks memory.reclaim or FUSE.
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
    let backend = Backend::probe(&kernel, BackendChoice::Reclaim, &group, &mut Live)
        .map_err(|err| Exit::Unsupported.error(format!("{err:#}")))?;
    let dir = free(&kernel, &args.dir)?;

    // This comes before the first thread, so that all threads block these signals.
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
        // ENODEV: another program unmounted it.
        Some(err) if err.raw_os_error() != Some(Errno::NODEV.raw_os_error()) => Err(err).context("/dev/fuse"),
        _ => Ok(Exit::Done),
    }
}

/// Returns the real path of the directory, after a mount that a killed omr left there is removed.
fn free(kernel: &Kernel, dir: &Path) -> Result<PathBuf> {
    let real = std::fs::canonicalize(dir).with_context(|| format!("read {}", dir.display()))?;
    while mounts::find(&mounts::read(kernel)?, &real, KIND.as_bytes()).is_some() {
        if rustix::fs::stat(&real).err() != Some(Errno::NOTCONN) {
            return Err(Exit::Failed.error(format!("{} is mounted already", real.display())));
        }
        log::warn!("{}: unmounting the mount of an omr that was killed", real.display());
        detach(&real).with_context(|| format!("unmount {}", real.display()))?;
    }
    if real.parent().is_none() || !real.is_dir() {
        return Err(Exit::Usage.error(format!("{}: expected a directory below another", real.display())));
    }
    Ok(real)
}

/// Turns the error of a mount into a message with the cause.
fn refused(dir: &Path, err: std::io::Error) -> anyhow::Error {
    match Errno::from_io_error(&err) {
        Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
            Exit::Unsupported.error("this kernel has no FUSE: modprobe fuse, or CONFIG_FUSE_FS")
        }
        Some(Errno::PERM | Errno::ACCESS) => Exit::Failed.error(format!("mount {}: {err}; run as root", dir.display())),
        _ => anyhow::Error::new(err).context(format!("mount {}", dir.display())),
    }
}
