//! The command line of `omr advise`.

use std::path::PathBuf;
use std::time::Duration;

use omr_base::when;
use omr_policy::advise::LEAST_COVERED;
use omr_units::{Bytes, Permyriad};

/// Advises memory limits that groups can live with.
///
/// The advice is from the daemon's history. The request is the memory that 19 of 20 samples used at
/// most, plus 15 %. memory.high is the most that was used, plus 15 %. Memory of unknown age counts
/// as used.
///
/// --verify tries a size: it lowers the group step by step, by reclaim and memory.high, and watches
/// it. If tasks of the group wait for memory, or reclaimed memory comes back, the group gets its
/// limit back at once, and no lower size is tried. memory.high is restored at the end, also after
/// kill -9.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Control groups, with or without a leading /sys/fs/cgroup; without any, all groups in the
    /// history
    ///
    /// * stands for a part of a name, ** for any depth; not with --verify.
    #[arg(value_name = "GROUP")]
    pub(super) groups: Vec<PathBuf>,

    /// Use this much of the history
    #[arg(long, value_name = "TIME", value_parser = parse_window, default_value = "7d", conflicts_with = "verify")]
    pub(super) window: Duration,

    /// Print drop-ins for systemd units
    #[arg(long, conflicts_with_all = ["verify", "json", "kubernetes"])]
    pub(super) systemd: bool,

    /// Print a patch for kubectl: the memory of this container in a pod template
    #[arg(long, value_name = "CONTAINER", value_parser = parse_container, conflicts_with_all = ["verify", "json"])]
    pub(super) kubernetes: Option<String>,

    /// Try sizes with one group: lower its memory step by step as long as the guard holds
    #[arg(long)]
    pub(super) verify: bool,

    /// Show on which NUMA nodes the memory of groups is and how much is used there, with advice
    ///
    /// Measures use for the time given by --look. Without groups: all groups with 16 MiB or more
    /// and no group below them.
    #[arg(long, conflicts_with_all = ["verify", "window", "systemd", "kubernetes"])]
    pub(super) numa: bool,

    /// With --numa: measure for this time
    #[arg(long, value_name = "TIME", requires = "numa", value_parser = parse_look, default_value = "1m")]
    pub(super) look: Duration,

    /// Try only this size, instead of searching for the smallest that passes the guard
    #[arg(long, value_name = "SIZE", requires = "verify", value_parser = parse_size)]
    pub(super) size: Option<Bytes>,

    /// Hold the last size for this time; each size before it for a twentieth of it, at least 5s
    #[arg(long, value_name = "TIME", requires = "verify", value_parser = parse_for, default_value = "10m")]
    pub(super) r#for: Duration,

    /// Make each size lower than the one before by this share
    #[arg(long, value_name = "SHARE", requires = "verify", value_parser = parse_step, default_value = "5%")]
    pub(super) step: Permyriad,

    /// Guard: share of the time in which tasks of the group may wait for memory
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "0.1%")]
    pub(super) psi: Permyriad,

    /// Guard: share of the size that may come back per minute
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "0.2%")]
    pub(super) refaults: Permyriad,

    /// Allow a foreground or protected group
    #[arg(long, requires = "verify")]
    pub(super) ignore_class: bool,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The shortest time for which a size is tried.
pub(super) const SHORTEST: Duration = Duration::from_secs(5);
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
        _ if time < SHORTEST => Err("shorter than 5s, which is too short to tell".into()),
        _ if time > LONGEST => Err("longer than 7days".into()),
        _ => Ok(time),
    }
}

fn parse_look(text: &str) -> Result<Duration, String> {
    let time = when::parse_length_as(text, "1m")?;
    match time {
        _ if time < Duration::from_secs(1) => Err("shorter than 1s, which is too short to tell".into()),
        _ if time > Duration::from_secs(86_400) => Err("longer than 1day".into()),
        _ => Ok(time),
    }
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = when::parse_length_as(text, "7d")?;
    match window {
        _ if window < LEAST_COVERED => Err("shorter than 1h, which is too little for advice".into()),
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
        _ if share < Permyriad::percent(1) => Err("smaller than 1%, which would take too long".into()),
        _ if share > Permyriad::percent(50) => Err("larger than 50%, which would reclaim memory in use".into()),
        _ => Ok(share),
    }
}

/// Parses the name of a container: a DNS label.
fn parse_container(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label =
        (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-');
    if is_label {
        Ok(text.into())
    } else {
        Err("expected the name of a container: a-z, 0-9 and inner -, at most 63 characters".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_a_name_that_kubernetes_takes() {
        for (name, is_one) in
            [("db", true), ("my-db-2", true), ("", false), ("-a", false), ("A", false), ("a.b", false)]
        {
            assert_eq!(parse_container(name).is_ok(), is_one, "{name}");
        }
        assert!(parse_container(&"a".repeat(64)).is_err());
    }
}
