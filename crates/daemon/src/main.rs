//! The program `omr-daemon`: the daemon and nothing else. `omr daemon` has the same options, checks
//! them, and becomes this program.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use lexopt::{Arg, Parser};
use omr_base::exit::Exit;
use omr_config::Profile;
use omr_daemon::Args;

const HELP: &str = "\
Run the daemon of omr, which reclaims memory while the machine is idle

Usage: omr-daemon [OPTIONS] [GROUP]

Arguments:
  [GROUP]           With a profile: reclaim only from this control group, whatever the rules say

Options:
  --foreground      Log to standard error instead of the journal
  --config FILE     Read this file instead of the configuration of the system
  --compact         Instead of that compact free memory once for the daemon, which is at the other
                    end of standard input
  --give-back       Instead of that serve the daemon, which is at the other end of standard input:
                    keep which pages groups have in memory, and bring them back
  --restore-limits  Instead of that restore the limits that a daemon which was killed has left changed
  --profile NAME    Replace values of the configuration with those of a profile: seed
  --root DIR        Read /proc, /sys and the configuration below this directory
  -h, --help        Print help
  -V, --version     Print version
";

/// The work that the command line asks for.
#[derive(Debug)]
enum Request {
    Help,
    Version,
    Compact { root: PathBuf },
    GiveBack { root: PathBuf },
    RestoreLimits { root: PathBuf },
    Run { root: PathBuf, args: Args },
}

/// An option for what this process does instead of being the daemon, and the request for a root.
type Instead = (&'static str, fn(PathBuf) -> Request);

fn main() -> ExitCode {
    let ended = match parse(Parser::from_env()) {
        Ok(Request::Help) => print(HELP),
        Ok(Request::Version) => print(concat!("omr-daemon ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Request::Compact { root }) => omr_daemon::compact(&root),
        Ok(Request::GiveBack { root }) => omr_daemon::serve_giving_back(&root),
        Ok(Request::RestoreLimits { root }) => omr_daemon::restore_limits(&root),
        Ok(Request::Run { root, args }) => omr_daemon::run(&root, &args),
        Err(err) => {
            eprintln!("omr-daemon: {err:#}; see omr-daemon --help");
            return Exit::of(&err).into();
        }
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(err) => {
            eprintln!("omr: {err:#}");
            Exit::of(&err).into()
        }
    }
}

/// Prints text. A reader that has closed the pipe has read enough.
fn print(text: &str) -> Result<Exit> {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(Exit::Done)
}

/// Parses a command line. Every error has the exit code of a wrong command line.
fn parse(mut parser: Parser) -> Result<Request> {
    let (mut root, mut config, mut profile, mut target) = (None, None, None, None);
    let mut foreground = false;
    let mut instead: Option<Instead> = None;
    while let Some(arg) = parser.next().map_err(wrong)? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(Request::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Request::Version),
            Arg::Long("foreground") => foreground = true,
            Arg::Long("compact") => choose(&mut instead, "--compact", |root| Request::Compact { root })?,
            Arg::Long("give-back") => choose(&mut instead, "--give-back", |root| Request::GiveBack { root })?,
            Arg::Long("restore-limits") => {
                choose(&mut instead, "--restore-limits", |root| Request::RestoreLimits { root })?;
            }
            Arg::Long("config") => set(&mut config, "--config", value(&mut parser, "--config", "a file")?)?,
            Arg::Long("root") => set(&mut root, "--root", value(&mut parser, "--root", "a directory")?)?,
            Arg::Long("profile") => {
                let name = value(&mut parser, "--profile", "seed")?;
                if name != "seed" {
                    return Err(wrong(format!("--profile {}: expected seed", name.display())));
                }
                set(&mut profile, "--profile", Profile::Seed)?;
            }
            Arg::Value(group) if target.is_none() && !group.is_empty() => target = Some(group),
            Arg::Value(group) => {
                return Err(wrong(format!("{:?}: expected one group", group.display().to_string())));
            }
            Arg::Short(_) | Arg::Long(_) => return Err(wrong(arg.unexpected())),
        }
    }
    if target.is_some() && profile.is_none() {
        return Err(wrong("GROUP: expected --profile with it"));
    }
    let root = root.map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let alone = !foreground && config.is_none() && profile.is_none();
    match instead {
        None => {}
        Some((_, request)) if alone => return Ok(request(root)),
        Some((option, _)) => return Err(not_alone(option)),
    }
    let args = Args { foreground, config: config.map(PathBuf::from), profile, target: target.map(PathBuf::from) };
    Ok(Request::Run { root, args })
}

/// The value of an option. `expected` is named in the error if it is missing or empty.
fn value(parser: &mut Parser, option: &str, expected: &str) -> Result<OsString> {
    let value = parser.value().ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| wrong(format!("{option}: expected {expected}")))
}

/// Keeps the value of an option, which may be given once.
fn set<T>(slot: &mut Option<T>, option: &str, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(wrong(format!("{option}: expected once"))),
    }
}

/// Keeps what this process does instead of being the daemon: one thing.
fn choose(slot: &mut Option<Instead>, option: &'static str, request: fn(PathBuf) -> Request) -> Result<()> {
    match slot.replace((option, request)) {
        Some((other, _)) if other != option => Err(not_alone(other)),
        _ => Ok(()),
    }
}

fn not_alone(option: &str) -> anyhow::Error {
    wrong(format!("{option}: expected --root with it at most"))
}

fn wrong(message: impl ToString) -> anyhow::Error {
    Exit::Usage.error(message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Request> {
        parse(Parser::from_args(words))
    }

    #[test]
    fn every_option_is_kept() {
        let words = ["--root", "/r", "--foreground", "--config=/c", "--profile", "seed", "--", "-g"];
        let Ok(Request::Run { root, args }) = parsed(&words) else { panic!("{words:?} is refused") };
        assert_eq!((root, args.foreground, args.profile), ("/r".into(), true, Some(Profile::Seed)));
        assert_eq!((args.config, args.target), (Some("/c".into()), Some("-g".into())));
    }

    #[test]
    fn it_serves_the_daemon_instead_of_being_it() {
        let root = |words| match parsed(words) {
            Ok(Request::GiveBack { root }) => Some(root),
            _ => None,
        };
        assert_eq!(root(&["--give-back"]), Some("/".into()));
        assert_eq!(root(&["--give-back", "--root", "/r"]), Some("/r".into()));
        assert_eq!(root(&["--root", "/r"]), None, "the control");
        let Ok(Request::Compact { root }) = parsed(&["--compact", "--root", "/r"]) else { panic!("it does not") };
        assert_eq!(root, PathBuf::from("/r"));
        let Ok(Request::RestoreLimits { root }) = parsed(&["--restore-limits", "--root", "/r"]) else {
            panic!("it restores nothing")
        };
        assert_eq!(root, PathBuf::from("/r"));
    }

    #[test]
    fn without_options_it_runs_on_this_machine_and_logs_to_the_journal() {
        let Ok(Request::Run { root, args }) = parsed(&[]) else { panic!("no words are refused") };
        assert_eq!((root, args.foreground, args.profile), ("/".into(), false, None));
        assert_eq!((args.config, args.target), (None, None));
    }

    #[test]
    fn a_mistake_names_the_option_and_what_is_expected() {
        for (words, expected) in [
            (&["--forground"][..], "invalid option '--forground'"),
            (&["-x"], "invalid option '-x'"),
            (&["--config"], "--config: expected a file"),
            (&["--config="], "--config: expected a file"),
            (&["--config", "a", "--config", "b"], "--config: expected once"),
            (&["--root"], "--root: expected a directory"),
            (&["--profile"], "--profile: expected seed"),
            (&["--profile", "sed"], "--profile sed: expected seed"),
            (&["bg"], "GROUP: expected --profile with it"),
            (&["--profile", "seed", "a", "b"], "\"b\": expected one group"),
            (&["--profile", "seed", ""], "\"\": expected one group"),
            (&["--give-back", "--foreground"], "--give-back: expected --root with it at most"),
            (&["--give-back", "--restore-limits"], "--give-back: expected --root with it at most"),
            (&["--restore-limits", "--config", "c"], "--restore-limits: expected --root with it at most"),
            (&["--compact", "--foreground"], "--compact: expected --root with it at most"),
            (&["--foreground=no"], "unexpected argument for option '--foreground': \"no\""),
        ] {
            let err = parsed(words).expect_err("a mistake");
            assert_eq!((err.to_string().as_str(), Exit::of(&err)), (expected, Exit::Usage), "{words:?}");
        }
    }
}
