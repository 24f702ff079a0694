//! Figures from the daemon's history: for `omr wss --at`, and for `omr wss` while a daemon runs.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::{paths, when};
use omr_history as history;
use omr_history::{AGES, Cost, Sample};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_policy::age::Bounds;
use omr_policy::short;
use omr_units::{Bytes, millis};
use serde::Serialize;

use super::{Args, Figures, GroupFigures, Idle, NodeFigures, WINDOW};

/// The largest distance of a sample from the requested time. Samples are ten minutes apart by
/// default.
const NEAR: Duration = Duration::from_secs(3600);
/// The largest age of the daemon's last figures. Its agings are at most five minutes apart.
const FRESH: Duration = Duration::from_secs(900);

/// The output.
#[derive(Debug, Serialize)]
struct Summary {
    group: String,
    /// The time at which the daemon recorded the sample.
    time: String,
    /// The time from the last aging to the sample; `None`: no aging.
    ages_ms_ago: Option<u64>,
    window_seconds: f64,
    #[serde(flatten)]
    figures: Figures,
    /// The cost of measuring all groups since the previous samples.
    cost: Option<AgingCost>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeFigures>,
    groups: Vec<GroupFigures>,
}

#[derive(Debug, Serialize)]
struct AgingCost {
    agings: u64,
    cpu_ms: u64,
    /// The time that the cost is for; `None`: the daemon had just started.
    over_ms: Option<u64>,
}

/// Prints the figures of this time.
pub fn print_at(root: &Path, args: &Args, time: Duration) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let window = args.window.unwrap_or(WINDOW);
    if !AGES.contains(&window) {
        let known: Vec<String> = AGES.iter().map(|&age| short(age).to_string()).collect();
        return Err(Exit::Usage.error(format!(
            "--window {}: the history only has the ages {}",
            humantime::format_duration(window),
            known.join(", ")
        )));
    }
    let path = kernel.group_path(args.group.as_deref().unwrap_or_else(|| Path::new("/")));
    let now = clock::read_wall();
    let around = time.saturating_sub(NEAR)..time.saturating_add(NEAR);
    let (round, skipped) = nearest_round(root, path, around, |sample| sample.time.abs_diff(time))?;
    if round.is_empty() {
        skipped.iter().for_each(|skipped| eprintln!("omr: {skipped}"));
        return Err(Exit::Failed.error(format!(
            "no figures of {} within an hour of {}{}",
            name(path),
            when::text(time),
            known_times(root, path)?
        )));
    }
    print(&round, path, window, args, now)?;
    Ok(Exit::Done)
}

/// Prints the daemon's last figures of this group. Returns false if there are none, or only old
/// ones.
pub fn print_latest(kernel: &Kernel, root: &Path, args: &Args, top: &Group) -> Result<bool> {
    let now = clock::read_wall();
    let boot = kernel.read_boot_id().unwrap_or_default();
    let Ok((round, _)) =
        nearest_round(root, top.path(), now.saturating_sub(FRESH)..now, |sample| now.abs_diff(sample.time))
    else {
        return Ok(false);
    };
    let is_good = |sample: &Sample| {
        let seen = sample.idle.as_ref().map(|idle| now.saturating_sub(sample.time).saturating_add(idle.ago));
        *sample.boot == *boot && sample.id == top.id() && seen.is_some_and(|seen| seen <= FRESH)
    };
    let sample = round.iter().find(|sample| *sample.group == *top.path());
    // The history has no nodes on a machine with one node. A new measurement shows its only node.
    let has_nodes = |sample: &&Sample| !args.per_node || !sample.nodes.is_empty();
    if !sample.filter(has_nodes).is_some_and(is_good) {
        return Ok(false);
    }
    print(&round, top.path(), WINDOW, args, now)?;
    Ok(true)
}

/// Returns the samples of the group and those below it, from the nearest round that has the group.
fn nearest_round(
    root: &Path,
    path: &Path,
    times: std::ops::Range<Duration>,
    distance: impl Fn(&Sample) -> Duration,
) -> Result<(Vec<Sample>, Vec<history::Skipped>)> {
    let top = path.to_path_buf();
    let mut samples = history::read(&paths::history(root), times, move |group| group.starts_with(&top))?;
    let mut best: Vec<Sample> = Vec::new();
    let mut round: Vec<Sample> = Vec::new();
    // The samples of one round follow each other in the file.
    let mut keep = |round: &mut Vec<Sample>| {
        let has = round.iter().find(|sample| *sample.group == *path);
        let is_nearer = |sample: &Sample| best.first().is_none_or(|best| distance(sample) <= distance(best));
        if has.is_some_and(is_nearer) {
            best = std::mem::take(round);
        }
        round.clear();
    };
    for sample in samples.by_ref() {
        if round.first().is_some_and(|first| first.time != sample.time || first.boot != sample.boot) {
            keep(&mut round);
        }
        round.push(sample);
    }
    keep(&mut round);
    Ok((best, samples.skipped().to_vec()))
}

/// Returns the times of the group's history, as part of a message.
fn known_times(root: &Path, path: &Path) -> Result<String> {
    let wanted = path.to_path_buf();
    let samples = history::read(&paths::history(root), Duration::ZERO..Duration::MAX, move |group| group == wanted)?;
    let mut times = samples.map(|sample| sample.time);
    Ok(match times.next() {
        None => "; it has no history, which a running daemon writes".into(),
        Some(first) => {
            let last = times.last().unwrap_or(first);
            format!("; its history is from {} to {}", when::text(first), when::text(last))
        }
    })
}

fn name(path: &Path) -> String {
    if path.as_os_str().is_empty() { "/".into() } else { printable(&path.to_string_lossy()) }
}

fn figures(sample: &Sample) -> Figures {
    figures_of(sample.anon, sample.file, sample.shmem, sample.idle.as_ref())
}

fn figures_of(anon: Bytes, file: Bytes, shmem: Bytes, idle: Option<&history::Idle>) -> Figures {
    let unknown = anon + shmem;
    let memory = idle.map_or(unknown, |idle| idle.memory);
    // Of an age that is not recorded, anything may be true.
    let unrecorded = Bounds { least: Bytes::ZERO, most: memory };
    let bounds = idle.map_or([None; AGES.len()], |idle| idle.bounds).map(|bounds| bounds.unwrap_or(unrecorded));
    let idle = AGES.iter().zip(bounds).map(|(&time, bounds)| Idle { seconds: time.as_secs_f64(), bounds, time });
    Figures { memory, page_cache: file - shmem, idle: idle.collect() }
}

/// Returns each node, if requested and if there are several.
fn nodes(sample: &Sample, args: &Args) -> Vec<NodeFigures> {
    let nodes = sample.nodes.iter().filter(|_| args.per_node);
    let of = nodes.map(|of| (of.held, figures_of(of.held.anon, of.held.file, of.held.shmem, of.idle.as_ref())));
    of.map(|(held, figures)| NodeFigures { node: held.node, figures }).collect()
}

fn print(round: &[Sample], path: &Path, window: Duration, args: &Args, now: Duration) -> Result<()> {
    // If two groups had the same name in turn, the last one counts.
    let by_group: HashMap<&Rc<Path>, &Sample> = round.iter().map(|sample| (&sample.group, sample)).collect();
    let Some(top) = round.iter().rev().find(|sample| *sample.group == *path) else { return Ok(()) };
    let mut groups: Vec<GroupFigures> = by_group
        .values()
        .filter(|sample| sample.group != top.group)
        .map(|sample| GroupFigures { group: format!("/{}", sample.group.to_string_lossy()), figures: figures(sample) })
        .collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.figures.idle(window).least), group.group.clone()));
    let ages = top.idle.as_ref().map(|idle| idle.ago);
    let over = top.since.as_ref().map(|since| since.over);
    let summary = Summary {
        group: name(path),
        time: when::text(top.time),
        ages_ms_ago: ages.map(millis),
        window_seconds: window.as_secs_f64(),
        figures: figures(top),
        cost: top.cost.map(|Cost { agings, cpu }| AgingCost { agings, cpu_ms: millis(cpu), over_ms: over.map(millis) }),
        nodes: nodes(top, args),
        groups,
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(());
    }
    let mut text = super::summary_lines(&summary.group, &summary.figures, window, ages.is_some());
    if args.per_node && summary.nodes.is_empty() {
        text.push_str("\nno figures of single nodes: the machine had one node, or the history did not separate them\n");
    } else if args.per_node {
        super::write_nodes(&mut text, &summary.nodes, window);
    }
    super::write_groups(&mut text, &summary.groups, window);
    let ago = short(now.saturating_sub(top.time));
    let _ = match ages {
        Some(ages) if ages < Duration::from_secs(5) => {
            write!(text, "\nmeasured by the daemon {ago} ago, at {}", summary.time)
        }
        Some(ages) => write!(
            text,
            "\nrecorded by the daemon {ago} ago, at {}; the last aging was {} before",
            summary.time,
            short(ages)
        ),
        None => {
            write!(text, "\nrecorded by the daemon {ago} ago, at {}, without ages", summary.time)
        }
    };
    if args.at.is_none() {
        text.push_str("; --window 2m measures anew");
    }
    if let Some(Cost { agings, cpu }) = top.cost {
        let over = over.map(|over| format!(" in {}", short(over))).unwrap_or_default();
        let agings = super::counted(agings, "aging");
        let _ = write!(text, "\ncost of measuring all groups{over}: {agings}, CPU {}", short(cpu));
    }
    outln!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use omr_history::Store;

    fn sample(seconds: u64, group: &str, boot: &str) -> Sample {
        Sample {
            time: Duration::from_secs(seconds),
            boot: boot.into(),
            current: Bytes::mib(seconds),
            peak: Bytes::mib(seconds),
            ..Sample::of_anon(group, omr_units::GroupId(seconds), Bytes::mib(1))
        }
    }

    #[test]
    fn the_nearest_round_with_the_group_is_taken_with_all_below_it() {
        let root = tempfile::tempdir().expect("a directory");
        let rounds: [(u64, &str, &[&str]); 4] = [
            (1000, "x", &["", "a", "a/b", "ab"]),
            // A clock that was set back.
            (900, "x", &["", "a", "a/b"]),
            (1600, "y", &["", "b"]),
            (2200, "y", &["", "a"]),
        ];
        for (time, boot, groups) in rounds {
            let samples: Vec<Sample> = groups.iter().map(|group| sample(time, group, boot)).collect();
            let mut store = Store::new(&paths::history(root.path()), boot, Bytes::mib(64));
            store.add(Duration::from_secs(time), &samples);
        }
        let found = |group: &str, time: u64| -> Vec<(u64, String)> {
            let time = Duration::from_secs(time);
            let around = time.saturating_sub(NEAR)..time + NEAR;
            let (round, _) = nearest_round(root.path(), Path::new(group), around, |sample| sample.time.abs_diff(time))
                .expect("a history");
            round.iter().map(|sample| (sample.time.as_secs(), sample.group.to_string_lossy().into_owned())).collect()
        };
        let both = |time| vec![(time, "a".to_owned()), (time, "a/b".to_owned())];
        assert_eq!(found("a", 1010), both(1000));
        assert_eq!(found("a", 0), both(900));
        // The round of 1600 is nearer, but has no such group.
        assert_eq!(found("a", 1550), both(1000));
        assert_eq!(found("a", 1700), [(2200, "a".to_owned())]);
        assert_eq!(found("", 1700).len(), 2);
        assert_eq!(found("c", 1700), []);
        assert_eq!(found("a", 9000), []);
    }
}
