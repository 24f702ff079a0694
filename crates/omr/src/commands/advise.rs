//! `omr advise`: with how much memory a group can live.

mod numa;
mod past;
mod verify;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::when;
use omr_policy::advise::LEAST_COVERED;
use omr_units::{Bytes, Permyriad};

/// Says with how much memory a group can live.
///
/// From the history that the daemon writes: what was used, at most, in 19 of 20 samples and 15 % is what to
/// request; the most that was used and 15 % is memory.high. What is not known counts as used.
///
/// --verify tries it: the group is brought down a step at a time, by reclaim and memory.high, and watched. When its
/// tasks wait for memory, or what was taken comes back, it gets its limit back at once, and nothing lower is tried. What
/// memory.high held before is restored in the end, and after kill -9 as well.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Control groups, with or without /sys/fs/cgroup in front; without any, all that the history has
    ///
    /// * stands for a part of a name, ** for any depth; not with --verify.
    #[arg(value_name = "GROUP")]
    groups: Vec<PathBuf>,

    /// Look back so far
    #[arg(long, value_name = "TIME", value_parser = parse_window, default_value = "7d", conflicts_with = "verify")]
    window: Duration,

    /// Print drop-ins for systemd units
    #[arg(long, conflicts_with_all = ["verify", "json", "kubernetes"])]
    systemd: bool,

    /// Print a patch for kubectl: memory of this container in a pod template
    #[arg(long, value_name = "CONTAINER", value_parser = past::parse_container, conflicts_with_all = ["verify", "json"])]
    kubernetes: Option<String>,

    /// Try it with one group: lower its memory step by step as long as the guard holds
    #[arg(long)]
    verify: bool,

    /// Say on which NUMA nodes the memory of groups is, how much of it is used there, and what would be better
    ///
    /// Looks for as long as --look says at what is used. Without groups, all that have 16 MiB or more and none below them.
    #[arg(long, conflicts_with_all = ["verify", "window", "systemd", "kubernetes"])]
    numa: bool,

    /// With --numa: look for so long
    #[arg(long, value_name = "TIME", requires = "numa", value_parser = parse_look, default_value = "1m")]
    look: Duration,

    /// Find out about this size, instead of the smallest that holds
    #[arg(long, value_name = "SIZE", requires = "verify", value_parser = parse_size)]
    size: Option<Bytes>,

    /// How long the last size is held; each on the way is watched for a twentieth of it, and 5s at least
    #[arg(long, value_name = "TIME", requires = "verify", value_parser = parse_for, default_value = "10m")]
    r#for: Duration,

    /// How much lower each size is than the one before
    #[arg(long, value_name = "SHARE", requires = "verify", value_parser = parse_step, default_value = "5%")]
    step: Permyriad,

    /// Guard: share of the time in which tasks of the group may wait for memory
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "0.1%")]
    psi: Permyriad,

    /// Guard: share of the size that may come back in a minute
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "0.2%")]
    refaults: Permyriad,

    /// Also try it with a foreground or protected group
    #[arg(long, requires = "verify")]
    ignore_class: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(7 * 86_400);
const MONTHS: Duration = Duration::from_secs(90 * 86_400);

fn parse_size(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>().map_err(|err| err.to_string())? {
        Bytes::ZERO => Err("no group can live with nothing; expected a size such as 512M".into()),
        size => Ok(size),
    }
}

fn parse_for(text: &str) -> Result<Duration, String> {
    let time = when::parse_length_as(text, "10m")?;
    match time {
        _ if time < SHORTEST => Err("shorter than 5s: that says nothing".into()),
        _ if time > LONGEST => Err("longer than 7days".into()),
        _ => Ok(time),
    }
}

fn parse_look(text: &str) -> Result<Duration, String> {
    let time = when::parse_length_as(text, "1m")?;
    match time {
        _ if time < Duration::from_secs(1) => Err("shorter than 1s: that says nothing".into()),
        _ if time > Duration::from_secs(86_400) => Err("longer than 1day".into()),
        _ => Ok(time),
    }
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = when::parse_length_as(text, "7d")?;
    match window {
        _ if window < LEAST_COVERED => Err("shorter than 1h: of so little nothing is advised".into()),
        _ if window > MONTHS => Err("longer than 90days".into()),
        _ => Ok(window),
    }
}

fn parse_share(text: &str) -> Result<Permyriad, String> {
    let share = text.parse::<Permyriad>().map_err(|err| err.to_string())?;
    if share > Permyriad::ONE { Err("more than 100%".into()) } else { Ok(share) }
}

fn parse_step(text: &str) -> Result<Permyriad, String> {
    let share = parse_share(text)?;
    match share {
        _ if share < Permyriad::percent(1) => Err("smaller than 1%: that would take for ever".into()),
        _ if share > Permyriad::percent(50) => Err("larger than 50%: that would take what is used".into()),
        _ => Ok(share),
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    if args.numa {
        return numa::run(root, args);
    }
    match args.verify {
        true => verify::run(root, args, one(&args.groups)?),
        false => past::run(root, args),
    }
}

fn one(groups: &[PathBuf]) -> Result<&Path> {
    match groups {
        [group] => Ok(group),
        _ => Err(Exit::Usage.error("--verify tries one group; name it")),
    }
}

/// What limits the group to this: by systemd where it is a unit, which else would set it back.
fn setting(group: &Path, size: Bytes) -> String {
    match unit(group) {
        Some((unit, _)) => {
            let user = if is_users(group) { "--user " } else { "" };
            format!("systemctl {user}set-property {} MemoryHigh={}", printable(&unit), size.0)
        }
        None => format!("write {} to memory.high of {}", size.0, printable(&group.to_string_lossy())),
    }
}

/// Whether a user's own systemd has made the group: it is below `user@1000.service`.
fn is_users(group: &Path) -> bool {
    let above = group.parent().into_iter().flat_map(Path::iter);
    above.filter_map(|part| part.to_str()).any(|part| part.starts_with("user@"))
}

/// The unit of a group, as systemd knows it, and its section. A leading "_" in the name of a group is an
/// escape.
fn unit(group: &Path) -> Option<(String, &'static str)> {
    let name = group.file_name()?.to_str()?;
    let name = name.strip_prefix('_').unwrap_or(name);
    let section = match name.rsplit_once('.')?.1 {
        "service" => "Service",
        "slice" => "Slice",
        "scope" => "Scope",
        _ => return None,
    };
    Some((name.to_owned(), section))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_unit_or_it_is_not() {
        for (path, found) in [
            ("system.slice/db.service", Some(("db.service", "Service"))),
            ("system.slice/_cgroup.slice", Some(("cgroup.slice", "Slice"))),
            ("user.slice/user-1000.slice/session-2.scope", Some(("session-2.scope", "Scope"))),
            ("docker/4f1e", None),
            ("db", None),
        ] {
            let found = found.map(|(unit, section)| (unit.to_owned(), section));
            assert_eq!(unit(Path::new(path)), found);
        }
    }
}
