//! `omr follow`: tells the daemon what others know of who is in the foreground.
//!
//! A process of its own, without any privilege. One thread for each source asks it again whenever something has
//! happened there; one keeps a connection to the daemon and goes on saying what they found. What is said ends with
//! that connection, and what a source said with the source: nothing stays in the foreground because of a dead helper.

mod gamemode;
mod logind;
mod sway;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use omr_base::text::printable;
use omr_control::client::Link;
use omr_control::protocol::Request;
use omr_kernel::Kernel;
use omr_kernel::process::Process;
use omr_machine::processes;
use omr_policy::statement::{Presence, Statement, Subject};

/// The daemon is told again after this time, since it takes silence for absence after 10 s.
const REFRESH: Duration = Duration::from_secs(3);
/// After a failure a source is tried again this much later ...
const BACKOFF: Duration = Duration::from_secs(1);
/// ... twice as much after each further one, up to this.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// More is not told: a request to the daemon has its limit.
const MOST: usize = 100;

/// Who knows something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Source {
    /// logind: the users whose session is active, neither idle nor locked, are present
    Logind,
    /// GameMode: the games that are registered
    Gamemode,
    /// sway: the application with the focus
    Sway,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::Logind => "logind",
            Source::Gamemode => "gamemode",
            Source::Sway => "sway",
        }
    }

    /// Tells what is known, again and again, until that fails or nobody listens.
    fn follow(self, kernel: &Kernel, tell: Tell<'_>) -> Result<()> {
        match self {
            Source::Logind => logind::follow(tell),
            Source::Gamemode => gamemode::follow(kernel, tell),
            Source::Sway => sway::follow(kernel, tell),
        }
    }
}

/// All that a source knows now; false: nobody listens any more.
type Tell<'a> = &'a mut dyn FnMut(BTreeSet<Statement>) -> bool;

/// Where statements go.
pub trait Desk: Send {
    /// All that is true now, and nothing else.
    fn hold(&mut self, statements: &BTreeSet<Statement>) -> Result<()>;
}

/// The daemon. Connected to when there is something to say, and again after a failure.
pub struct Daemon {
    socket: PathBuf,
    link: Option<Link>,
    /// Of so many statements the daemon said that they were about what belongs to others.
    refused: u64,
}

impl Daemon {
    /// At this socket.
    pub fn new(socket: PathBuf) -> Daemon {
        Daemon { socket, link: None, refused: 0 }
    }
}

impl Desk for Daemon {
    fn hold(&mut self, statements: &BTreeSet<Statement>) -> Result<()> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => Link::open(&self.socket)?,
        };
        let statements = statements.iter().take(MOST).cloned().collect();
        let refused = link.ask(&Request::Hold { statements })?.as_u64().unwrap_or(0);
        if refused > self.refused {
            log::warn!("{refused} of them belong to others, of which only root and the service may say something");
        }
        self.refused = refused;
        self.link = Some(link);
        Ok(())
    }
}

/// Follows and tells until the process ends.
pub fn follow(root: &Path, sources: &[Source], desk: &mut dyn Desk) -> Result<()> {
    let (sender, seen) = channel();
    for (index, source) in sources.iter().copied().enumerate() {
        let (sender, kernel) = (sender.clone(), Kernel::open(root)?);
        std::thread::Builder::new()
            .name("omr-source".into())
            .stack_size(512 << 10)
            .spawn(move || follow_on(index, source, &kernel, &sender))
            .context("start a thread")?;
    }
    drop(sender);
    let mut known = vec![BTreeSet::new(); sources.len()];
    let mut told = BTreeSet::new();
    let (mut failing, mut due) = (false, Instant::now());
    loop {
        match seen.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok((index, statements)) => known[index] = statements,
            Err(RecvTimeoutError::Timeout) => {}
            // They never end.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let all: BTreeSet<Statement> = known.iter().flatten().cloned().collect();
        if all == told && Instant::now() < due {
            continue;
        }
        due = Instant::now() + REFRESH;
        match desk.hold(&all) {
            Ok(()) => {
                tell_changes(&told, &all);
                told = all;
                failing = false;
            }
            Err(err) => {
                // Once, and not every few seconds.
                let level = if failing { log::Level::Debug } else { log::Level::Warn };
                log::log!(level, "{err:#}");
                told.clear();
                failing = true;
            }
        }
    }
}

/// Follows again and again. A failure is said once, and nothing is known until it is over.
fn follow_on(index: usize, source: Source, kernel: &Kernel, seen: &Sender<(usize, BTreeSet<Statement>)>) {
    let mut backoff = None;
    loop {
        let mut told = false;
        let ended = source.follow(kernel, &mut |statements| {
            if !told && backoff.take().is_some() {
                log::info!("{}: answers again", source.name());
            }
            told = true;
            seen.send((index, statements)).is_ok()
        });
        let Err(err) = ended else { return };
        let level = if backoff.is_none() { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "{}: {}", source.name(), printable(&format!("{err:#}")));
        if seen.send((index, BTreeSet::new())).is_err() {
            return;
        }
        let wait = backoff.map_or(BACKOFF, |last: Duration| (last * 2).min(BACKOFF_MAX));
        backoff = Some(wait);
        std::thread::sleep(wait);
    }
}

fn tell_changes(before: &BTreeSet<Statement>, now: &BTreeSet<Statement>) {
    for (what, changed) in [("", now.difference(before)), ("no more: ", before.difference(now))] {
        for Statement { presence: word, subject: of } in changed {
            match (of, word) {
                (Subject::Process(id), _) => log::info!("{what}process {} is in the foreground", id.pid),
                (Subject::Group(group), Presence::Present) => {
                    log::info!("{what}{} is at the machine", printable(group))
                }
                (Subject::Group(group), _) => log::info!("{what}{} is in the foreground", printable(group)),
            }
        }
    }
}

/// That processes are in the foreground. Those that have ended are left out; each is who has the id now.
fn in_foreground(kernel: &Kernel, pids: impl IntoIterator<Item = u32>) -> BTreeSet<Statement> {
    let process = |pid| Process::open(kernel, pid).ok().map(|process| processes::id(&process));
    let statement = |id| Statement { presence: Presence::Foreground, subject: Subject::Process(id) };
    pids.into_iter().filter_map(process).map(statement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails every second time.
    struct Moody(Vec<Option<BTreeSet<Statement>>>, std::sync::mpsc::Sender<usize>);

    impl Desk for Moody {
        fn hold(&mut self, statements: &BTreeSet<Statement>) -> Result<()> {
            let fails = self.0.len().is_multiple_of(2);
            self.0.push((!fails).then(|| statements.clone()));
            let _ = self.1.send(statements.len());
            if fails { Err(anyhow::anyhow!("not now")) } else { Ok(()) }
        }
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_told_again() {
        let (sender, told) = channel();
        std::thread::spawn(move || {
            // A source that cannot be reached knows nothing, and that is said as well.
            let _ = follow(Path::new("/"), &[Source::Sway], &mut Moody(Vec::new(), sender));
        });
        for _ in 0..3 {
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(0));
        }
    }
}
