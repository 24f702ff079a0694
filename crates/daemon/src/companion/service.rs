//! The companion's own program: `omr-daemon --give-back`, which systemd starts for a connection.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_config::load_or_refuse;
use omr_engine::Host;
use omr_engine::warm::{self, Remembered};
use omr_kernel::Kernel;
use omr_policy::Mode;
use omr_units::{Bytes, GroupId};

use super::{Lines, Reply, Request, Sums};
use crate::settings::actuator;
use crate::{connection, lock_memory};

/// Serves the daemon, which is at the other end of standard input, until it hangs up.
pub fn serve(root: &Path) -> Result<Exit> {
    omr_base::logging::start(true);
    let stream = connection("--give-back", "omr-give-back.socket")?;
    let kernel = Kernel::open(root)?;
    if !warm::is_possible(&kernel, root) {
        let why = "giving memory back needs CAP_SYS_PTRACE, CAP_SYS_NICE and process_madvise with MADV_WILLNEED";
        return Err(Exit::Unsupported.error(why));
    }
    lock_memory();
    let host = Host { kernel: &kernel, root };
    Service { host, remembered: Remembered::default(), lines: Lines::new(stream)? }.run()?;
    Ok(Exit::Done)
}

struct Service<'a> {
    host: Host<'a>,
    remembered: Remembered,
    lines: Lines,
}

impl Service<'_> {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let line = match self.lines.read() {
                Ok(line) => line.unwrap_or_default(),
                Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(err) => return Err(err),
            };
            // A stop that came after the answer.
            if line.is_empty() {
                continue;
            }
            let reply = match serde_json::from_slice(&line) {
                Ok(request) => self.carry_out(request).unwrap_or_else(|err| Reply::Error(format!("{err:#}"))),
                Err(err) => Reply::Error(format!("not a request: {err}")),
            };
            self.lines.write(&reply)?;
        }
    }

    fn carry_out(&mut self, request: Request) -> Result<Reply> {
        let stop = Flag::of_peer(self.lines.stream.as_fd().try_clone_to_owned()?);
        if self.lines.has_more() {
            stop.set();
        }
        match request {
            Request::Remember { absence, id, path } => {
                self.remembered.add(self.host.kernel, absence, id, &path, &stop)?;
                Ok(Reply::Remembered)
            }
            Request::GiveBack { groups } => self.give_back(&groups, &stop),
        }
    }

    fn give_back(&mut self, groups: &[GroupId], stop: &Flag) -> Result<Reply> {
        let loaded = load_or_refuse(self.host.root, None)?;
        // The daemon does not ask for it in mode "observe".
        let mut actuator = actuator(Mode::Act);
        let lines = &mut self.lines;
        // Whoever does not listen has gone, or is about to: the run ends by itself.
        let mut tell = |asked: Bytes| drop(lines.write(&Reply::Asked(asked)));
        let report = self.remembered.give_back(self.host, &loaded, groups, &mut *actuator, stop, &mut tell)?;
        Ok(Reply::GivenBack(Sums::from(report)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use omr_testkit::{FakeRoot, Release};
    use serde_json::{Value, json};

    use super::*;

    /// What the service answers to these lines before its end.
    fn answers(root: &FakeRoot, lines: &[String]) -> Vec<Value> {
        let (here, mut there) = UnixStream::pair().expect("a connection");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let host = Host { kernel: &kernel, root: root.path() };
        thread::scope(|scope| {
            scope.spawn(move || {
                let lines = Lines::new(here).expect("a stream");
                Service { host, remembered: Remembered::default(), lines }.run()
            });
            let mut answers = Vec::new();
            for line in lines {
                there.write_all(format!("{line}\n").as_bytes()).expect("written");
                let mut answer = Vec::new();
                let mut byte = [0];
                while !line.is_empty() && there.read(&mut byte).is_ok_and(|read| read == 1) && byte != *b"\n" {
                    answer.push(byte[0]);
                }
                if !line.is_empty() {
                    answers.push(serde_json::from_slice(&answer).unwrap_or_default());
                }
            }
            drop(there);
            answers
        })
    }

    fn root() -> (FakeRoot, u64) {
        let root = FakeRoot::captured(Release::V6_12)
            .proc("sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000001\n")
            .file("etc/omr/omr.toml", "")
            .group("a.slice", &[("cgroup.procs", ""), ("memory.current", "0\n")])
            .group("a.slice/b.service", &[("cgroup.procs", ""), ("memory.current", "0\n")]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = kernel.cgroup().expect("groups").sub("a.slice/b.service").expect("a group");
        let id = group.id().expect("an inode").0;
        (root, id)
    }

    fn remember(path: &str, id: u64) -> String {
        json!({"do": "remember", "absence": 1, "id": id, "path": path}).to_string()
    }

    #[test]
    fn it_remembers_a_group_and_brings_it_back_until_the_daemon_hangs_up() {
        let (root, id) = root();
        let give_back = json!({"do": "give-back", "groups": [id]}).to_string();
        let found = answers(&root, &[remember("a.slice/b.service", id), String::new(), give_back]);
        assert_eq!(found[0], "remembered");
        assert_eq!(found[1]["given-back"]["end"], "complete", "{found:?}");
        assert!(root.resolve("run/omr-root/warm.lock").exists(), "it held the lock");
    }

    #[test]
    fn only_groups_below_the_mount_are_read() {
        let (root, id) = root();
        root.write("etc/cgroup.procs", "1\n");
        for path in
            ["", "/", ".", "..", "../../etc", "a.slice/../../../../etc", "/etc", "a.slice", "nowhere", "a\u{0}b"]
        {
            let found = answers(&root, &[remember(path, id)]);
            assert!(found[0]["error"].is_string(), "{path:?}: {found:?}");
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = kernel.cgroup().expect("groups").id().expect("an inode").0;
        assert!(answers(&root, &[remember("", top)])[0]["error"].is_string(), "the root is no group");
        assert_eq!(answers(&root, &[remember("a.slice/b.service", id)])[0], "remembered", "the control");
    }

    #[test]
    fn what_is_no_request_is_refused_and_a_line_without_end_ends_it() {
        let (root, id) = root();
        let good = remember("a.slice/b.service", id);
        let unknown = good.replace("\"absence\"", "\"more\":1,\"absence\"");
        for line in ["{}", "[]", "{\"do\":\"forget\"}", "{\"do\":\"give-back\",\"groups\":[-1]}", &unknown] {
            let found = answers(&root, &[line.to_owned(), good.clone()]);
            assert!(found[0]["error"].as_str().is_some_and(|why| why.starts_with("not a request")), "{found:?}");
            assert_eq!(found[1], "remembered", "the control: it goes on");
        }
        let (here, mut there) = UnixStream::pair().expect("a connection");
        let mut lines = Lines::new(here).expect("a stream");
        thread::scope(|scope| {
            scope.spawn(move || there.write_all(&[b'x'; 80 << 10]));
            assert_eq!(lines.read().expect_err("too long").kind(), io::ErrorKind::InvalidData);
        });
    }

    #[test]
    fn what_comes_with_a_request_ends_it() {
        let (root, id) = root();
        // The group has a process, so that there is something to end.
        root.write("sys/fs/cgroup/a.slice/b.service/cgroup.procs", "4194303\n");
        let good = remember("a.slice/b.service", id);
        assert_eq!(answers(&root, std::slice::from_ref(&good))[0], "remembered", "the control: the process is gone");
        let found = answers(&root, &[format!("{good}\n")]);
        assert!(found[0]["error"].as_str().is_some_and(|why| why.contains("it was ended")), "{found:?}");
    }

    #[test]
    fn no_line_makes_it_panic() {
        let lines = [remember("app.scope", 7), r#"{"do":"give-back","groups":[1,2]}"#.into()];
        omr_testkit::fuzz::feed(&lines, |line| drop(serde_json::from_slice::<Request>(line)));
    }
}
