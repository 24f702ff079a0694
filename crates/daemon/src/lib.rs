//! The daemon: one loop, one worker that reclaims, and one thread that samples how groups use
//! memory.
//!
//! The loop waits for its timer, signals, clients, memory pressure and the threads' reports. Once a
//! second it reads the counters, makes signals of them and asks the policy. While a sweep runs it
//! also looks fifty times a second whether somebody has begun to work.
//!
//! Each part of the daemon owns its data: [`host`] where it runs, [`settings`] its configuration,
//! [`world`] the groups, [`readings`] the counters, [`mind`] the policy's state, [`work`] the
//! worker, [`sweeps`] the running sweep, [`books`] the ledger and figures with the [`disk`] that takes them, [`processes`] the
//! background processes with their [`hints`], [`aging`] the schedule of the aging thread,
//! [`preparing`] the preparation for an event, [`giving_back`] what was taken while everybody was
//! away, with the [`companion`] that has the rights for it. A part returns [`effects`] that concern
//! other parts. [`daemon`] carries them out; [`event_loop`] waits.

#![deny(clippy::indexing_slicing)]

mod aging;
mod aging_thread;
mod books;
mod companion;
mod counters;
mod daemon;
mod disk;
mod effects;
mod event_loop;
mod events;
mod giving_back;
mod held_today;
mod hint_job;
mod hints;
mod holds;
mod host;
mod lock;
#[cfg(test)]
mod loop_tests;
mod mind;
mod news;
mod notify;
mod own_reclaim;
mod preparing;
mod presence;
mod probes;
mod process_views;
mod processes;
mod readings;
mod regret_today;
mod regrets;
mod requests;
mod server;
mod settings;
#[cfg(test)]
mod simulation;
mod statements;
mod sweeps;
mod tally;
#[cfg(test)]
mod test_log;
mod thread;
mod thresholds;
mod timer;
mod views;
mod work;
mod worker;
mod world;

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_base::paths;
use omr_base::signals::SignalFd;
use omr_base::storage::{make_dir_for_members, remove_all_leftovers};
use omr_engine::prepare::{free_page_reporting, zram};
use omr_engine::reclaim::backend;
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_machine::groups::tree::no_group;
use omr_policy::Mode;
use rustix::net::sockopt::socket_peercred;

use self::daemon::Daemon;
use self::disk::Disk;
use self::event_loop::EventLoop;
use self::host::Host;
use self::lock::Lock;
use self::server::Server;
use self::settings::{Settings, actuator, load};
use self::work::Work;

pub use self::companion::serve as serve_giving_back;
pub use self::settings::Args;

/// Runs the daemon until it is told to end.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    omr_base::logging::start(args.foreground);
    // A client that goes away before it has its answer ends with that client.
    // SAFETY: no thread exists yet; SIG_IGN is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    raise_descriptor_limit();
    // Before any thread exists, so that all of them have these signals blocked.
    let signal_fd = SignalFd::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    let kernel = Arc::new(Kernel::open(root)?);
    let loaded = load(root, args, &kernel)?;
    kernel.cgroup()?;
    if let Some(path) = args.target.as_deref().map(|target| kernel.group_path(target)) {
        // A mistyped group never comes.
        Group::open(kernel.cgroup()?, path).map_err(|err| if err.is_gone() { no_group(path) } else { err.into() })?;
    }
    let _lock = Lock::take(&paths::runtime_dir(root))?;
    let host = Host::new(root, kernel)?;
    if let Err(err) = make_dir_for_members(&host.state_dir) {
        log::warn!("create {}: {err}", host.state_dir.display());
    }
    for dir in [&host.state_dir, &paths::runtime_dir(root)] {
        remove_all_leftovers(dir);
    }
    let mut event_loop = start(host, Settings::new(args.clone(), loaded))?;
    omr_base::logging::write_in_background()?;
    lock_memory();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    log::info!("omr {} started", env!("CARGO_PKG_VERSION"));
    let ended = event_loop.run(&signal_fd);
    notify::tell(&sd_notify::NotifyState::Stopping);
    event_loop.end();
    if ended.is_ok() {
        log::info!("omr ended");
    }
    log::logger().flush();
    ended.map(|()| Exit::Done)
}

/// Restores the limits that ended processes of omr left changed. omr.service runs this when the
/// daemon has ended, however it ended.
pub fn restore_limits(root: &Path) -> Result<Exit> {
    omr_base::logging::start(false);
    restore_limits_below(root)?;
    Ok(Exit::Done)
}

/// Compacts all memory once for the daemon, which is at the other end of standard input.
pub fn compact(root: &Path) -> Result<Exit> {
    omr_base::logging::start(true);
    let stream = connection("--compact", "omr-compact.socket")?;
    free_page_reporting::serve(&Kernel::open(root)?, &mut *actuator(Mode::Act), &stream)?;
    Ok(Exit::Done)
}

/// The connection that systemd has passed as standard input, for this option of the command line.
fn connection(option: &str, unit: &str) -> Result<UnixStream> {
    let stream = io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
    if socket_peercred(&stream).is_err() {
        return Err(Exit::Usage.error(format!("{option}: standard input is no socket; see {unit}")));
    }
    Ok(UnixStream::from(stream))
}

fn restore_limits_below(root: &Path) -> Result<()> {
    let kernel = Kernel::open(root)?;
    backend::journal(&kernel, &paths::state_dir(root), &mut *actuator(Mode::Act))?;
    Ok(())
}

/// Starts the threads and opens the socket.
fn start(host: Host, settings: Settings) -> Result<EventLoop> {
    let work = Work::start(&host, &settings)?;
    zram::warn_of_left(&host.kernel, &host.root);
    if !settings.loaded.processes.is_empty() {
        processes::warn_of_missing_rights(&host.kernel);
    }
    let aging = aging_thread::start(&host, settings.aging_actuator())?;
    let disk = Disk::start(&host.state_dir)?;
    let server = Server::listen(&host.root)?;
    EventLoop::new(Daemon::new(host, settings, work, aging, disk)?, server)
}

/// A descriptor stays open for each group whose CPU time is read. The usual soft limit, 1024, is
/// too low for a large machine.
fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(err) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
        log::warn!("the limit of open files stays as it is: {err}");
    }
}

/// Keeps the daemon in memory, so that it cannot be its own victim: what is there now, and each
/// page from the moment it is first used.
fn lock_memory() {
    // SAFETY: mlockall takes flags only and touches no memory of ours.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if result != 0 {
        log::warn!("mlockall: {}; the daemon may be swapped out", std::io::Error::last_os_error());
    }
}
