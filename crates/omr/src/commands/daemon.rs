//! `omr daemon`: checks the command line and becomes the program `omr-daemon`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use omr_base::exit::Exit;

/// A profile, as the command line names it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Profile {
    /// Like the original patch's daemon: once every CPU was 95 % idle for 30 s, reclaim as much as
    /// possible
    Seed,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Log to standard error instead of the journal
    #[arg(long)]
    foreground: bool,

    /// Read this file instead of the configuration of the system
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Replace values of the configuration with those of a profile
    #[arg(long, value_name = "NAME", value_enum)]
    profile: Option<Profile>,

    /// With a profile: reclaim only from this control group, regardless of the rules
    #[arg(value_name = "GROUP", requires = "profile")]
    target: Option<PathBuf>,
}

/// Becomes the daemon's program. Returns only if that fails.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let own = std::env::current_exe().context("find the directory of omr")?;
    let program = find(&own)?;
    let err = Command::new(&program).args(words(root, args)).exec();
    Err(err).with_context(|| format!("start {}", program.display()))
}

/// Finds the daemon's program from the path of this one: in the same directory, as after a build
/// and in the lab's guests, or where it is installed.
fn find(own: &Path) -> Result<PathBuf> {
    let dir = own.parent().unwrap_or(own);
    let installed = dir.parent().unwrap_or(dir).join("libexec/omr/omr-daemon");
    let places = [dir.join("omr-daemon"), installed];
    match places.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => bail!("the daemon's program is neither {} nor {}", places[0].display(), places[1].display()),
    }
}

/// The arguments of `omr-daemon`, which are those of `omr daemon`.
fn words(root: &Path, args: &Args) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if root != Path::new("/") {
        words.extend(["--root".into(), root.into()]);
    }
    if args.foreground {
        words.push("--foreground".into());
    }
    if let Some(config) = &args.config {
        words.extend(["--config".into(), config.into()]);
    }
    if let Some(profile) = args.profile.and_then(|profile| profile.to_possible_value()) {
        words.extend(["--profile".into(), profile.get_name().into()]);
    }
    if let Some(target) = &args.target {
        words.extend(["--".into(), target.into()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_program_is_in_the_same_directory_or_where_it_is_installed() {
        let temporary = tempfile::tempdir().expect("a directory");
        let usr = temporary.path();
        let own = usr.join("bin/omr");
        let (beside, installed) = (usr.join("bin/omr-daemon"), usr.join("libexec/omr/omr-daemon"));
        fs::create_dir_all(usr.join("bin")).and_then(|()| fs::create_dir_all(usr.join("libexec/omr"))).expect("made");

        let err = find(&own).expect_err("no program").to_string();
        assert!(err.contains(&*beside.to_string_lossy()) && err.contains(&*installed.to_string_lossy()), "{err}");
        fs::write(&installed, "").expect("a file");
        assert_eq!(find(&own).expect("a program"), installed);
        fs::write(&beside, "").expect("a file");
        assert_eq!(find(&own).expect("a program"), beside);
    }

    #[test]
    fn all_arguments_are_passed_on() {
        let args = Args {
            foreground: true,
            config: Some("c".into()),
            profile: Some(Profile::Seed),
            target: Some("/sys/fs/cgroup/bg".into()),
        };
        let passed = ["--root", "r", "--foreground", "--config", "c", "--profile", "seed", "--", "/sys/fs/cgroup/bg"];
        assert_eq!(words(Path::new("r"), &args), passed);
        let none = Args { foreground: false, config: None, profile: None, target: None };
        assert!(words(Path::new("/"), &none).is_empty());
    }
}
