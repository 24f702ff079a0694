//! The agent: reads request frames from a serial port, and answers with reply frames.
//!
//! Each request has an id and runs in its own thread, so that a long request delays no other. The
//! agent keeps the last replies. If a request comes again, because its reply was lost on the line,
//! the agent sends the reply again and does not perform the request again.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};

use crate::{clock, frame};

/// The id of the first reply, which has no request: the agent has started.
const HELLO: u64 = 0;

/// Number of replies that are kept for requests that come twice.
const REPLIES_KEPT: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The serial port, e.g. /dev/ttyS1
    port: PathBuf,
    /// Directory for the output of started commands
    #[arg(long, default_value = "/run/agent")]
    output: PathBuf,
}

#[derive(Deserialize)]
struct Request {
    id: u64,
    #[serde(flatten)]
    operation: Operation,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Operation {
    /// Tells that the agent runs.
    Ping,
    /// Starts a command; its output goes to two files.
    Spawn { argv: Vec<String>, group: Option<String> },
    /// Waits for the end of a started command.
    Wait { pid: u32 },
    /// Starts a command, waits for its end and reads both outputs.
    Run { argv: Vec<String>, group: Option<String> },
    /// Sends a signal to any process.
    Kill { pid: i32, signal: i32 },
    /// Reads a whole file.
    Read { path: PathBuf },
    /// Makes one write(2) to a file. The file is created only with `create`.
    Write {
        path: PathBuf,
        #[serde(with = "frame")]
        data: Vec<u8>,
        #[serde(default)]
        create: bool,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Alive {
        monotonic_ns: u64,
    },
    Started {
        pid: u32,
        stdout: PathBuf,
        stderr: PathBuf,
    },
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
    },
    Ran {
        code: Option<i32>,
        signal: Option<i32>,
        #[serde(with = "frame")]
        stdout: Vec<u8>,
        #[serde(with = "frame")]
        stderr: Vec<u8>,
    },
    Data {
        #[serde(with = "frame")]
        data: Vec<u8>,
    },
    Written {
        bytes: usize,
    },
    Done {},
}

#[derive(Serialize)]
struct Reply {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ok: Option<Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
}

struct Agent {
    port: Mutex<File>,
    /// The reply frame of each request id. `None`: the request still runs.
    replies: Mutex<BTreeMap<u64, Option<String>>>,
    children: Mutex<HashMap<u32, Child>>,
    output: PathBuf,
    started: AtomicU32,
}

/// Serves requests until the machine is switched off.
pub(crate) fn serve(args: &Args) -> Result<()> {
    fs::create_dir_all(&args.output).with_context(|| args.output.display().to_string())?;
    let port = open(&args.port)?;
    let agent = Arc::new(Agent {
        port: Mutex::new(port.try_clone()?),
        replies: Mutex::default(),
        children: Mutex::default(),
        output: args.output.clone(),
        started: AtomicU32::new(0),
    });
    agent.reply(HELLO, Ok(Answer::Alive { monotonic_ns: clock::monotonic() }));
    let mut lines = BufReader::new(port);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            // The other end is gone, or the port failed for a moment. The host comes back after a
            // resume.
            Ok(0) | Err(_) => clock::sleep(Duration::from_millis(50)),
            Ok(_) => {
                let request = String::from_utf8_lossy(&line);
                if let Some(json) = frame::decode(request.trim_end()) {
                    Arc::clone(&agent).receive(json);
                }
            }
        }
    }
}

fn open(port: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(port)
        .with_context(|| port.display().to_string())?;
    let mut modes = tcgetattr(&file).with_context(|| port.display().to_string())?;
    modes.make_raw();
    tcsetattr(&file, OptionalActions::Now, &modes).with_context(|| port.display().to_string())?;
    Ok(file)
}

/// Locks a mutex, also after a panic: a request that panics must not end the agent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    fn receive(self: Arc<Self>, json: &str) {
        let Ok(request) = serde_json::from_str::<Request>(json) else {
            let id = serde_json::from_str::<serde_json::Value>(json).ok().and_then(|value| value["id"].as_u64());
            if let Some(id) = id {
                self.reply(id, Err(anyhow::anyhow!("not understood: {json}")));
            }
            return;
        };
        let mut replies = lock(&self.replies);
        match replies.get(&request.id) {
            Some(Some(reply)) => self.send(reply),
            Some(None) => {}
            None => {
                replies.insert(request.id, None);
                while replies.len() > REPLIES_KEPT {
                    replies.pop_first();
                }
                drop(replies);
                thread::spawn(move || {
                    let result = self.perform(request.operation);
                    self.reply(request.id, result);
                });
            }
        }
    }

    fn reply(&self, id: u64, result: Result<Answer>) {
        let reply = match result {
            Ok(answer) => Reply { id, ok: Some(answer), error: None, errno: None },
            Err(error) => {
                let errno = error.root_cause().downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
                Reply { id, ok: None, error: Some(format!("{error:#}")), errno }
            }
        };
        let reply = frame::encode(&serde_json::to_string(&reply).unwrap_or_default());
        self.send(&reply);
        lock(&self.replies).insert(id, Some(reply));
    }

    fn send(&self, reply: &str) {
        // If the reply is lost, the host asks again.
        let _ = lock(&self.port).write_all(reply.as_bytes());
    }

    fn perform(&self, operation: Operation) -> Result<Answer> {
        match operation {
            Operation::Ping => Ok(Answer::Alive { monotonic_ns: clock::monotonic() }),
            Operation::Spawn { argv, group } => {
                let (child, stdout, stderr) = self.start(&argv, group)?;
                let pid = child.id();
                lock(&self.children).insert(pid, child);
                Ok(Answer::Started { pid, stdout, stderr })
            }
            Operation::Wait { pid } => {
                let child = lock(&self.children).remove(&pid);
                let status = child.with_context(|| format!("{pid} is no running command of mine"))?.wait()?;
                Ok(Answer::Ended { code: status.code(), signal: status.signal() })
            }
            Operation::Run { argv, group } => {
                let (mut child, stdout, stderr) = self.start(&argv, group)?;
                let status = child.wait()?;
                let ran = Answer::Ran {
                    code: status.code(),
                    signal: status.signal(),
                    stdout: fs::read(&stdout)?,
                    stderr: fs::read(&stderr)?,
                };
                fs::remove_file(stdout)?;
                fs::remove_file(stderr)?;
                Ok(ran)
            }
            Operation::Kill { pid, signal } => {
                let pid = Pid::from_raw(pid).context("no pid")?;
                let signal = Signal::from_named_raw(signal).context("no signal")?;
                kill_process(pid, signal).map_err(std::io::Error::from)?;
                Ok(Answer::Done {})
            }
            Operation::Read { path } => {
                Ok(Answer::Data { data: fs::read(&path).with_context(|| path.display().to_string())? })
            }
            Operation::Write { path, data, create } => {
                let mut file = OpenOptions::new()
                    .write(true)
                    .create(create)
                    .truncate(create)
                    .open(&path)
                    .with_context(|| path.display().to_string())?;
                Ok(Answer::Written { bytes: file.write(&data).with_context(|| path.display().to_string())? })
            }
        }
    }

    fn start(&self, argv: &[String], group: Option<String>) -> Result<(Child, PathBuf, PathBuf)> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let stdout = self.output.join(format!("{number}.out"));
        let stderr = self.output.join(format!("{number}.err"));
        let (program, rest) = argv.split_first().context("no command")?;
        let mut command = match group {
            Some(group) => {
                let mut command = Command::new("/proc/self/exe");
                command.args(["in", &group, "--", program]);
                command
            }
            None => Command::new(program),
        };
        let child = command
            .args(rest)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .with_context(|| program.clone())?;
        Ok((child, stdout, stderr))
    }
}
