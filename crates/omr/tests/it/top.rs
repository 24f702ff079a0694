//! `omr top` in a real terminal: tmux has it. Without tmux these tests are skipped.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use omr_history::{AGES, Idle, Sample, Since, Store};
use omr_kernel::process::{Process, ProcessStat};
use omr_kernel::{Kernel, clock};
use omr_policy::age::{Bounds, Promotions};
use omr_testkit::FakeRoot;
use omr_units::{Bytes, GroupId};
use tempfile::TempDir;

use crate::common::running::{Daemon, wait_until};
use crate::common::{machine, omr, text, with_history};

/// A terminal in which a shell runs a command, and then waits.
pub struct Terminal {
    dir: TempDir,
}

impl Terminal {
    /// Starts the command; `None`: there is no tmux here.
    pub fn start(size: (u16, u16), command: &str) -> Option<Self> {
        let terminal = Terminal { dir: tempfile::tempdir().expect("a directory") };
        if Command::new("tmux").arg("-V").output().is_err() {
            println!("SKIP: no tmux here (lab/setup tests installs it)");
            return None;
        }
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let dir = terminal.dir.path().display();
        let run = format!("sh -c 'echo $$ > {dir}/pid; exec {command}'");
        let script = format!("stty -a > {dir}/before; {run}; echo ended with $?; stty -a > {dir}/after; sleep 1000");
        let output = terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, &script]);
        assert!(output.status.success(), "{output:?}");
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(self.dir.path().join("socket")).args(["-f", "/dev/null"]);
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").env_remove("NO_COLOR").env_remove("COLORTERM");
        command.args(words).output().expect("tmux runs")
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        let mut screen = String::new();
        let mut left = 1000;
        wait_until(&format!("{text:?} on the screen"), || {
            screen = self.screen();
            left -= 1;
            assert!(left > 0, "no {text:?} on the screen:\n{screen}");
            screen.contains(text)
        });
        screen
    }

    pub fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// The process of the command.
    pub fn pid(&self) -> libc::pid_t {
        let text = std::fs::read_to_string(self.dir.path().join("pid")).expect("a pid");
        text.trim().parse().expect("a number")
    }

    fn flags(&self) -> String {
        let flags = self.tmux(&["display", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}"]);
        String::from_utf8_lossy(&flags.stdout).trim().to_owned()
    }

    /// The terminal is as it was: settings, screen, mouse and cursor.
    #[track_caller]
    pub fn assert_restored(&self) {
        let read = |name: &str| std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        wait_until("the settings after it", || !read("after").is_empty());
        // The first line has the size, which may be another one.
        let settings = |name: &str| read(name).lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert!(settings("before").len() > 2);
        assert_eq!(settings("after"), settings("before"));
        assert_eq!(self.flags(), "0 0 1");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

pub fn top(root: &FakeRoot, words: &str) -> String {
    format!("{} --root {} top {words}", env!("CARGO_BIN_EXE_omr"), root.path().display())
}

#[test]
fn a_session_shows_now_and_the_past_and_leaves_the_terminal_as_it_was() {
    let root = with_history();
    let daemon = Daemon::start(&root, "");
    let Some(terminal) = Terminal::start((80, 24), &top(&root, "")) else { return };
    let screen = terminal.wait_for("background");
    assert!(screen.contains("app.scope") && screen.contains("64.0 MiB"), "{screen}");
    assert!(!screen.contains("gone.scope"), "it is not there now: {screen}");
    terminal.wait_for("1 What was not used?");
    assert_eq!(terminal.flags(), "1 1 0");
    terminal.keys(&["4"]);
    terminal.wait_for("4 Why did it act, or not?");
    // Forty minutes back: columns of 105 s.
    terminal.keys(&["S-Left", "S-Left", "Left", "Left", "Left"]);
    let screen = terminal.wait_for("gone.scope");
    assert!(screen.contains("40 min ago") && !screen.contains("app.scope"), "{screen}");
    terminal.keys(&["Enter"]);
    let screen = terminal.wait_for("no ages are known");
    assert!(screen.contains("gone.scope: not swept"), "{screen}");
    // The daemon explains what is now.
    terminal.keys(&["n"]);
    terminal.wait_for("/ now");
    let verdict = || terminal.screen().lines().nth(4).unwrap_or_default().to_owned();
    wait_until("the verdict of the daemon", || !["", "asking ..."].contains(&verdict().trim()));
    assert!(!verdict().contains("no ages are known"), "{}", verdict());
    // A terminal sends Escape and the key right behind it as one.
    terminal.keys(&["Escape"]);
    terminal.wait_for("GROUP");
    terminal.keys(&["q"]);
    terminal.wait_for("ended with 0");
    terminal.assert_restored();
    daemon.end();
}

#[test]
fn it_goes_along_with_each_size_of_the_terminal() {
    let root = with_history();
    let Some(terminal) = Terminal::start((120, 40), &top(&root, "--at 30m")) else { return };
    terminal.wait_for("gone.scope");
    for (size, shown) in [(("40", "12"), "COLD"), (("20", "5"), "omr top needs"), (("80", "24"), "STALLED")] {
        terminal.tmux(&["resize-window", "-x", size.0, "-y", size.1]);
        terminal.wait_for(shown);
    }
    terminal.keys(&["C-c"]);
    terminal.wait_for("ended with 0");
    terminal.assert_restored();
}

#[test]
fn a_signal_and_a_panic_leave_the_terminal_as_it_was() {
    let root = machine();
    let Some(terminal) = Terminal::start((80, 24), &top(&root, "")) else { return };
    terminal.wait_for("the daemon is not running");
    // SAFETY: a signal to the program that the shell became.
    unsafe { libc::kill(terminal.pid(), libc::SIGTERM) };
    terminal.wait_for("ended with 0");
    terminal.assert_restored();

    let this = std::env::current_exe().expect("this program");
    let command = format!("{} --ignored --exact --nocapture top::panics_in_the_terminal", this.display());
    let terminal = Terminal::start((80, 24), &command).expect("tmux");
    terminal.wait_for("on purpose");
    terminal.wait_for("ended with 101");
    terminal.assert_restored();
}

#[test]
fn it_ends_with_its_terminal() {
    let root = machine();
    let Some(terminal) = Terminal::start((80, 24), &top(&root, "")) else { return };
    terminal.wait_for("the daemon is not running");
    let stat = format!("/proc/{}/stat", terminal.pid());
    assert!(Path::new(&stat).exists());
    drop(terminal);
    // Whoever inherits it may let it be a zombie.
    let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    wait_until("the end of omr top", || !runs());
}

/// Runs in the terminal of `a_signal_and_a_panic_leave_the_terminal_as_it_was`.
#[test]
#[ignore = "needs a terminal of its own"]
fn panics_in_the_terminal() {
    let _ = omr_top::in_terminal(|terminal| -> anyhow::Result<()> {
        terminal.draw(|frame| frame.set_cursor_position((0, 0)))?;
        panic!("on purpose")
    });
}

#[test]
fn a_daemon_that_hangs_or_is_of_another_version_is_said() {
    for (answer, said) in [
        ("", "the daemon has not answered for"),
        ("{\"ok\":{\"version\":\"9\"}}\n", "another version"),
        ("{\"error\":\"not a request: unknown variant `watch`, expected `status`\"}\n", "systemctl restart omr"),
    ] {
        let root = with_history();
        std::fs::create_dir_all(root.resolve("run/omr")).expect("a directory");
        let listener = UnixListener::bind(root.resolve("run/omr/omr.sock")).expect("a socket");
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for mut client in listener.incoming().map_while(Result::ok) {
                let _ = client.write_all(answer.as_bytes());
                kept.push(client);
            }
        });
        let Some(terminal) = Terminal::start((100, 24), &top(&root, "")) else { return };
        terminal.wait_for(said);
        terminal.keys(&["?"]);
        terminal.wait_for("select a group");
        terminal.keys(&["q"]);
        terminal.wait_for("ended with 0");
        terminal.assert_restored();
    }
}

#[test]
fn without_a_terminal_it_says_what_to_use_instead() {
    let (code, stdout, stderr) = text(&omr(&machine(), &["top"]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("needs a terminal") && stderr.contains("omr status"), "{stderr}");
}

/// Prints what `omr top` costs with a week of history of 200 groups and no daemon.
#[test]
#[ignore = "a measurement: docs/measure/self.md#top"]
fn the_cost_of_a_week_of_200_groups() {
    const WATCHED: Duration = Duration::from_secs(90);
    let root = machine();
    write_week(&root);
    for _ in 0..5 {
        let began = Instant::now();
        let terminal = Terminal::start((120, 40), &top(&root, "--window 7d")).expect("tmux");
        terminal.wait_for("at least");
        println!("first chart after {} ms", began.elapsed().as_millis());
    }
    let terminal = Terminal::start((120, 40), &top(&root, "--window 7d")).expect("tmux");
    terminal.wait_for("at least");
    let process = Process::open(&Kernel::open(Path::new("/")).expect("/proc"), terminal.pid().unsigned_abs());
    let process = process.expect("the program");
    let cpu = || ProcessStat::read(process.dir()).expect("its CPU time").cpu();
    let before = cpu();
    std::thread::sleep(WATCHED);
    println!("{:.2} % of a CPU", 100.0 * (cpu() - before).as_secs_f64() / WATCHED.as_secs_f64());
    let status = process.dir().read_string("status").expect("its status");
    status
        .lines()
        .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"))
        .for_each(|line| println!("{line}"));
}

/// A week of history of the machine and 199 groups, as the daemon writes it every ten minutes.
pub fn write_week(root: &FakeRoot) {
    const EVERY: Duration = Duration::from_secs(600);
    let mut store = Store::new(&root.resolve("var/lib/omr/history"), "b", Bytes::mib(64));
    let now = clock::read_wall();
    for round in (0..1008u32).rev() {
        let sample = |group: u64| {
            let path = if group == 0 { String::new() } else { format!("user.slice/app-{group}.scope") };
            let memory = Bytes::mib(40 + (group * 37 + u64::from(round)) % 400);
            let idle = |age: usize| Some(Bounds { least: Bytes(memory.0 / (age as u64 + 2)), most: memory });
            let promoted = Bounds { least: Bytes::kib(16), most: Bytes::kib(40) };
            Sample {
                swap: Some(Bytes::mib(group)),
                idle: Some(Idle { ago: Duration::ZERO, memory, bounds: std::array::from_fn(idle) }),
                since: Some(Since {
                    over: EVERY,
                    refaults_anon: Some(Bytes::mib(1)),
                    refaults_file: Some(Bytes::mib(1)),
                    swapped_in: None,
                    stalled: Some(Duration::from_millis(group)),
                    stalled_full: None,
                    reclaimed: Some(Bytes::ZERO),
                }),
                promotions: Some(Promotions { over: EVERY, bounds: [promoted; AGES.len()] }),
                ..Sample::of_anon(path, GroupId(group), memory)
            }
        };
        store.add(now - EVERY * round, &(0..200).map(sample).collect::<Vec<_>>());
    }
}
