//! The daemon's end of the connection. The worker waits here, never the loop.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_base::cancel::Flag;
use omr_base::paths;
use omr_engine::warm::Report;
use omr_kernel::clock;
use omr_units::{Bytes, GroupId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{Lines, Reply, Request};

/// The time between two looks at the cancel flag.
const LOOK: Duration = Duration::from_millis(20);
/// The companion is given up after this time without a word.
const PATIENCE: Duration = Duration::from_secs(30);
/// And after this time once it was told to stop: what it does before it looks is short.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// The companion, as the daemon sees it.
#[derive(Debug)]
pub struct Companion {
    socket: PathBuf,
    /// Locked while the worker asks for something.
    link: Mutex<Option<Lines>>,
    /// It failed, so that it is not known any more what groups had in memory.
    is_lost: AtomicBool,
}

impl Companion {
    /// The companion of the machine with this root.
    pub fn new(root: &Path) -> Self {
        Companion { socket: paths::give_back_socket(root), link: Mutex::new(None), is_lost: AtomicBool::new(false) }
    }

    /// Returns true if it can be asked: its socket is there, and it has not failed. Whether systemd
    /// still listens shows when it is asked.
    pub fn is_there(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed) && self.socket.symlink_metadata().is_ok()
    }

    /// Nothing has to be remembered any more: ends it, if the worker asks for nothing. The next one
    /// is a new process.
    pub fn dismiss(&self) {
        if let Ok(mut link) = self.link.try_lock() {
            *link = None;
            self.is_lost.store(false, Ordering::Relaxed);
        }
    }

    /// Keeps which pages of a group are in memory; see [`omr_engine::warm::Remembered::add`].
    pub fn remember(&self, absence: u64, id: GroupId, path: &Path, cancel: &Flag) -> Result<()> {
        let request = Request::Remember { absence, id, path: path.into() };
        match self.ask(&request, cancel, &mut |_| {})? {
            Reply::Remembered => Ok(()),
            reply => Err(self.refused(reply)),
        }
    }

    /// Brings groups back, after which it ends.
    pub fn give_back(&self, groups: &[GroupId], stop: &Flag, progress: &mut dyn FnMut(Bytes)) -> Result<Report> {
        let request = Request::GiveBack { groups: groups.into() };
        let reply = self.ask(&request, stop, progress);
        self.drop_link();
        match reply? {
            Reply::GivenBack(sums) => Ok(sums.into()),
            reply => Err(self.refused(reply)),
        }
    }

    /// An answer that is none to the request, or the reason why nothing was done.
    fn refused(&self, reply: Reply) -> anyhow::Error {
        match reply {
            Reply::Error(why) => anyhow::anyhow!("{why}"),
            reply => {
                self.lose();
                anyhow::anyhow!("omr-give-back gave another answer: {reply:?}")
            }
        }
    }

    fn drop_link(&self) {
        if let Ok(mut link) = self.link.lock() {
            *link = None;
        }
    }

    fn lose(&self) {
        self.drop_link();
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Asks for one thing. On an error nothing is known any more, and it is not asked again before
    /// [`Companion::dismiss`].
    fn ask(&self, request: &Request, cancel: &Flag, progress: &mut dyn FnMut(Bytes)) -> Result<Reply> {
        let reply = self.try_ask(request, cancel, progress);
        if reply.is_err() {
            self.lose();
        }
        reply.context("omr-give-back")
    }

    fn try_ask(&self, request: &Request, cancel: &Flag, progress: &mut dyn FnMut(Bytes)) -> Result<Reply> {
        if self.is_lost.load(Ordering::Relaxed) {
            bail!("it has failed before");
        }
        let Ok(mut link) = self.link.lock() else { bail!("the worker has failed") };
        let lines = match &mut *link {
            Some(lines) => lines,
            // There is nothing to bring back that a new process could know of.
            None if matches!(request, Request::GiveBack { .. }) => bail!("it has ended, and with it what it knew"),
            None => link.insert(dial(&self.socket)?),
        };
        exchange(lines, request, cancel, progress)
    }
}

fn dial(path: &Path) -> Result<Lines> {
    // systemd takes the connection at once, or it is not waited for.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?).with_context(|| format!("connect to {}", path.display()))?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK))?;
    Ok(Lines::new(stream)?)
}

fn exchange(lines: &mut Lines, request: &Request, cancel: &Flag, progress: &mut dyn FnMut(Bytes)) -> Result<Reply> {
    lines.write(request)?;
    let mut until = clock::read_monotonic() + PATIENCE;
    let mut is_stopped = false;
    loop {
        match lines.read()?.map(|line| serde_json::from_slice(&line)).transpose()? {
            Some(Reply::Asked(bytes)) => {
                progress(bytes);
                if !is_stopped {
                    until = clock::read_monotonic() + PATIENCE;
                }
            }
            Some(reply) => return Ok(reply),
            None => {}
        }
        if cancel.is_set() && !is_stopped {
            is_stopped = true;
            until = clock::read_monotonic() + STOP_PATIENCE;
            lines.write_stop()?;
        }
        if clock::read_monotonic() >= until {
            bail!("it does not answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use omr_engine::warm::{End, Use};

    use super::super::Sums;
    use super::*;

    const ID: GroupId = GroupId(7);

    /// A companion that answers with these lines, each to one request, and then hangs up or is
    /// silent. Returns what it was told.
    fn with_service<R>(
        replies: &[&str],
        is_silent: bool,
        work: impl FnOnce(&Companion, &Path) -> R,
    ) -> (R, Vec<String>) {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(paths::root_runtime_dir(dir.path())).expect("made");
        let companion = Companion::new(dir.path());
        assert!(!companion.is_there(), "the control");
        let listener = UnixListener::bind(&companion.socket).expect("listening");
        assert!(companion.is_there());
        thread::scope(|scope| {
            let service = scope.spawn(|| {
                let mut lines = Lines::new(listener.accept().expect("a connection").0).expect("a stream");
                let mut told = Vec::new();
                for reply in replies {
                    let line = lines.read().expect("a request").expect("no timeout");
                    told.push(String::from_utf8(line).expect("text"));
                    std::io::Write::write_all(&mut lines.stream, reply.as_bytes()).expect("written");
                }
                while is_silent && let Ok(Some(line)) = lines.read() {
                    told.push(String::from_utf8(line).expect("text"));
                }
                told
            });
            let result = work(&companion, dir.path());
            companion.dismiss();
            (result, service.join().expect("the end of the connection"))
        })
    }

    #[test]
    fn requests_and_answers_are_lines_of_json() {
        let mut report = Report::nothing(Use::Used);
        (report.swap, report.end, report.wall) = (Bytes::mib(6), End::Headroom, Duration::from_millis(3));
        let sums = serde_json::to_string(&Reply::GivenBack(Sums::from(report))).expect("text");
        let replies = ["\"remembered\"\n", &format!("{{\"asked\":4096}}\n{{\"asked\":8192}}\n{sums}\n")];
        let (asked, told) = with_service(&replies, true, |companion, _| {
            companion.remember(3, ID, Path::new("a.slice/b"), &Flag::default()).expect("remembered");
            let mut asked = Vec::new();
            let report = companion.give_back(&[ID], &Flag::default(), &mut |bytes| asked.push(bytes.0));
            let report = report.expect("a report");
            assert_eq!((report.swap, report.end), (Bytes::mib(6), End::Headroom));
            assert_eq!(report.wall, Duration::from_millis(3));
            asked
        });
        assert_eq!(asked, [4096, 8192]);
        let remember = r#"{"do":"remember","absence":3,"id":7,"path":"a.slice/b"}"#;
        assert_eq!(told, [remember, r#"{"do":"give-back","groups":[7]}"#]);
    }

    #[test]
    fn a_group_that_is_refused_is_not_the_end_of_the_others() {
        let replies = ["{\"error\":\"too many\"}\n", "\"remembered\"\n"];
        let (is_there, _) = with_service(&replies, true, |companion, _| {
            let path = Path::new("a");
            let err = companion.remember(1, ID, path, &Flag::default()).expect_err("refused");
            assert_eq!(err.to_string(), "too many");
            companion.remember(1, ID, path, &Flag::default()).expect("the control");
            companion.is_there()
        });
        assert!(is_there);
    }

    #[test]
    fn one_that_hangs_up_or_talks_nonsense_is_not_asked_again() {
        let long = "x".repeat(100_000);
        for reply in ["", "\"remembered", "nonsense\n", "{\"asked\":1}\n", long.as_str(), "{\"given-back\":{}}\n"] {
            let (_, told) = with_service(&[reply], false, |companion, _| {
                let remember = || companion.remember(1, ID, Path::new("a"), &Flag::default());
                remember().expect_err(reply);
                assert!(!companion.is_there(), "{reply}");
                companion.dismiss();
                assert!(companion.is_there(), "the control: the next absence");
            });
            assert_eq!(told.len(), 1);
        }
        let companion = Companion::new(Path::new("/nowhere"));
        companion.give_back(&[ID], &Flag::default(), &mut |_| {}).expect_err("nothing is known");
    }

    #[test]
    fn a_stop_is_told_and_one_that_hangs_is_left() {
        let stopped = Flag::default();
        stopped.set();
        let (_, told) = with_service(&[""], true, |companion, _| {
            let err = companion.remember(1, ID, Path::new("a"), &stopped).expect_err("no answer");
            assert_eq!(format!("{err:#}"), "omr-give-back: it does not answer");
            assert!(!companion.is_there());
        });
        assert_eq!(told.last().map(String::as_str), Some(""), "an empty line");
    }
}
