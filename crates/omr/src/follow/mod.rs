//! `omr follow`: tells the daemon what logind, GameMode and sway know about the foreground.
//!
//! It is a process of its own, without any privilege. One thread for each source asks the source
//! again after each of its signals. One thread keeps a connection to the daemon and repeats the
//! statements that follow from the answers. The daemon forgets the statements when that connection
//! ends, and this process forgets those of a source that fails, so that nothing stays in the
//! foreground because of a process that is gone.

mod gamemode;
mod logind;
mod presence;
mod sway;
mod tell;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use omr_base::text::printable;
use omr_control::client::Link;
use omr_control::protocol::Request;
use omr_kernel::Kernel;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_policy::statement::{Presence, Statement, Subject};

use self::tell::{Tell, Told};

/// The statements are repeated after this time, because the daemon drops a client that is silent
/// for 10 s.
const REFRESH: Duration = Duration::from_secs(3);
/// The pause after the first failure of a source. It doubles with each further one.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The most statements that are sent: a request to the daemon has a limit.
const MOST: usize = 100;

/// A source of statements about the foreground.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Source {
    /// logind: the users whose session is active, neither idle nor locked, are present
    Logind,
    /// logind: the sessions that are active, since when they were not used, idle inhibitors, and
    /// with UPower whether the lid, idleness or a critical battery makes the machine hibernate
    Presence,
    /// GameMode: the games that are registered
    Gamemode,
    /// sway: the application with the focus
    Sway,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::Logind => "logind",
            Source::Presence => "presence",
            Source::Gamemode => "gamemode",
            Source::Sway => "sway",
        }
    }

    /// Passes on the statements of this source after each change, until that fails or the receiver
    /// has ended.
    fn follow(self, kernel: &Kernel, root: &Path, tell: Tell<'_>) -> Result<()> {
        match self {
            Source::Logind => logind::follow(tell),
            Source::Presence => presence::follow(kernel, root, tell),
            Source::Gamemode => gamemode::follow(kernel, tell),
            Source::Sway => sway::follow(kernel, tell),
        }
    }
}

/// The receiver of statements.
pub trait StatementReceiver: Send {
    /// Replaces all earlier statements by these.
    fn replace(&mut self, statements: &BTreeSet<Statement>) -> Result<()>;

    /// Replaces the earlier facts about who is there, and the setting by which the machine
    /// hibernates; `None`: that is unknown now.
    fn replace_presence(&mut self, facts: Option<Facts>, hibernates: Option<HibernatesBy>) -> Result<()>;
}

/// Sends statements to the daemon. Connects with the first ones, and again after a failure.
pub struct DaemonReceiver {
    socket: PathBuf,
    link: Option<Link>,
    /// The number of statements in the last request that the daemon refused.
    refused: u64,
    /// The daemon was told who is there, and heeds only signs of somebody.
    may_not_speak: bool,
}

impl DaemonReceiver {
    /// For the daemon at this socket.
    pub fn new(socket: PathBuf) -> DaemonReceiver {
        DaemonReceiver { socket, link: None, refused: 0, may_not_speak: false }
    }
}

impl DaemonReceiver {
    /// Asks the daemon. The connection is kept unless that fails.
    fn ask(&mut self, request: &Request) -> Result<serde_json::Value> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => Link::open(&self.socket)?,
        };
        let answer = link.ask(request)?;
        self.link = Some(link);
        Ok(answer)
    }
}

impl StatementReceiver for DaemonReceiver {
    fn replace(&mut self, statements: &BTreeSet<Statement>) -> Result<()> {
        let statements = statements.iter().take(MOST).cloned().collect();
        let refused = self.ask(&Request::Hold { statements })?.as_u64().unwrap_or(0);
        if refused > self.refused {
            log::warn!("{refused} statements are about others: only root and the service may make those");
        }
        self.refused = refused;
        Ok(())
    }

    fn replace_presence(&mut self, facts: Option<Facts>, hibernates: Option<HibernatesBy>) -> Result<()> {
        let may_speak = self.ask(&Request::Presence { facts, hibernates })?.as_bool() == Some(true);
        if !may_speak && !self.may_not_speak {
            log::warn!("only signs of somebody count: root and the service may say that nobody is there");
        }
        self.may_not_speak = !may_speak;
        Ok(())
    }
}

/// Follows the sources and passes on what they tell until the process ends.
pub fn follow(root: &Path, sources: &[Source], receiver: &mut dyn StatementReceiver) -> Result<()> {
    let (sender, seen) = channel();
    for (index, source) in sources.iter().copied().enumerate() {
        let (sender, kernel, root) = (sender.clone(), Kernel::open(root)?, root.to_path_buf());
        std::thread::Builder::new()
            .name("omr-source".into())
            .stack_size(512 << 10)
            .spawn(move || follow_again(index, source, &kernel, &root, &sender))
            .context("start a thread")?;
    }
    drop(sender);
    let mut known = vec![Told::default(); sources.len()];
    let mut told = BTreeSet::new();
    let (mut failing, mut due) = (false, Instant::now());
    loop {
        let mut is_news = false;
        match seen.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok((index, news)) => {
                is_news = sources.get(index) == Some(&Source::Presence);
                if let Some(told) = known.get_mut(index) {
                    *told = news;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The senders never end.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let all: BTreeSet<Statement> = known.iter().flat_map(|told| &told.statements).cloned().collect();
        if all == told && !is_news && Instant::now() < due {
            continue;
        }
        due = Instant::now() + REFRESH;
        match pass_on(sources, &known, &all, receiver) {
            Ok(()) => {
                tell_changes(&told, &all);
                told = all;
                failing = false;
            }
            Err(err) => {
                // A warning for the first failure only, and not every few seconds.
                let level = if failing { log::Level::Debug } else { log::Level::Warn };
                log::log!(level, "{err:#}");
                told.clear();
                failing = true;
            }
        }
    }
}

/// Tells the receiver what the sources told: statements, who is there, or both.
fn pass_on(
    sources: &[Source],
    known: &[Told],
    statements: &BTreeSet<Statement>,
    receiver: &mut dyn StatementReceiver,
) -> Result<()> {
    if sources.iter().any(|source| *source != Source::Presence) {
        receiver.replace(statements)?;
    }
    match sources.iter().zip(known).find(|(source, _)| **source == Source::Presence) {
        Some((_, told)) => {
            let looked = told.presence.as_ref();
            receiver.replace_presence(looked.map(tell::Looked::now), looked.and_then(|looked| looked.hibernates))
        }
        None => Ok(()),
    }
}

/// Follows a source, and again after each failure. The first failure is logged as a warning. A
/// source that fails tells nothing.
fn follow_again(index: usize, source: Source, kernel: &Kernel, root: &Path, seen: &Sender<(usize, Told)>) {
    let mut backoff = None;
    loop {
        let mut told = false;
        let ended = source.follow(kernel, root, &mut |news| {
            if !told && backoff.take().is_some() {
                log::info!("{}: answers again", source.name());
            }
            told = true;
            seen.send((index, news)).is_ok()
        });
        let Err(err) = ended else { return };
        let level = if backoff.is_none() { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "{}: {}", source.name(), printable(&format!("{err:#}")));
        if seen.send((index, Told::default())).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails with every second call.
    struct Moody(Vec<Option<BTreeSet<Statement>>>, std::sync::mpsc::Sender<usize>);

    impl StatementReceiver for Moody {
        fn replace(&mut self, statements: &BTreeSet<Statement>) -> Result<()> {
            let fails = self.0.len().is_multiple_of(2);
            self.0.push((!fails).then(|| statements.clone()));
            let _ = self.1.send(statements.len());
            if fails { Err(anyhow::anyhow!("not now")) } else { Ok(()) }
        }

        fn replace_presence(&mut self, _: Option<Facts>, _: Option<HibernatesBy>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_told_again() {
        let (sender, told) = channel();
        std::thread::spawn(move || {
            // A source that cannot be reached has no statements, and none are passed on.
            let _ = follow(Path::new("/"), &[Source::Sway], &mut Moody(Vec::new(), sender));
        });
        for _ in 0..3 {
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(0));
        }
    }
}
