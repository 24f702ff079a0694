//! `omr status`, `omr explain`, `omr history`, `omr pause` and `omr resume`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_policy::{Decision, Mode, short};
use omr_units::Bytes;

use crate::config::printable;
use crate::daemon::{ControlRequest, Explanation, ImageView, LedgerEntry, Status, ask, read_ledger};
use crate::exit::Exit;
use crate::{paths, stop};

/// The last second of the year 9999, which is as far as dates can be written. A ledger can hold
/// anything once a disk has failed.
const LATEST: u64 = 253_402_300_799;

#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Show it again each second
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// A control group; without one, the machine
    group: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    /// For this long, e.g. 2h; until omr resume without it
    #[arg(long = "for", value_parser = humantime::parse_duration, value_name = "TIME")]
    time: Option<Duration>,

    /// Until the machine has slept and woken up; five minutes at most if it does not sleep
    ///
    /// What the package's hook says before every kind of sleep. A pause that was there before stays.
    #[arg(long, conflicts_with = "time")]
    until_wake: bool,
}

#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    /// Show this many of the last sweeps
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    lines: usize,

    /// Print the ledger's JSON lines
    #[arg(long)]
    json: bool,
}

/// `omr status`.
pub fn status(root: &Path, args: &StatusArgs) -> Result<Exit> {
    if args.watch {
        stop::catch_signals();
    }
    loop {
        let value = ask(&paths::socket(root), &ControlRequest::Status)?;
        if args.watch {
            // Home, and clear to the end: no flicker.
            print!("\x1b[H\x1b[J");
        }
        if args.json {
            outln!("{}", serde_json::to_string_pretty(&value)?);
        } else {
            let status: Status = serde_json::from_value(value).context("the daemon is of another version")?;
            print_status(&status)?;
        }
        if !args.watch {
            return Ok(Exit::Done);
        }
        std::thread::sleep(Duration::from_secs(1));
        if stop::signal().is_some() {
            return Ok(Exit::Done);
        }
    }
}

fn print_status(status: &Status) -> Result<()> {
    let doing = match (&status.sweep, &status.decision) {
        (None, _) if let Some(preparing) = &status.preparing => {
            let left = match preparing.left_ms {
                Some(left) => format!("{} left", short(Duration::from_millis(left))),
                None => "no time limit".to_owned(),
            };
            format!("{} freed so far, {left}", preparing.freed)
        }
        (Some(sweep), _) => format!("sweeping {}: {} of {}", printable(&sweep.group), sweep.freed, sweep.asked),
        (None, Some(Decision::Hold { .. })) => "waiting".to_owned(),
        _ => String::new(),
    };
    let separator = if doing.is_empty() { "" } else { "; " };
    outln!("{}{separator}{doing}", status.reason);
    if status.mode == Mode::Observe {
        outln!("mode observe: decides and records, and reclaims nothing");
    }
    let today = &status.today;
    let back = today.came_back.share_of(today.freed).map(|share| format!(" ({share})")).unwrap_or_default();
    let written = match &status.swap {
        Some(swap) => match swap.budget {
            Some(budget) => format!(", swap written {} of {budget}", swap.written),
            None => String::new(),
        },
        None => ", no swap".to_owned(),
    };
    outln!(
        "today: {} sweep{}, {} freed, {} came back{back}{written}, own CPU {}",
        today.sweeps,
        if today.sweeps == 1 { "" } else { "s" },
        today.freed,
        today.came_back,
        short(Duration::from_millis(today.cpu_ms)),
    );
    if let Some(line) = status.image.as_ref().and_then(about_image) {
        outln!("{line}");
    }
    outln!("");
    let width =
        status.groups.iter().map(|group| printable(&group.group).chars().count()).max().unwrap_or(0).clamp(5, 60);
    outln!("  {:<11} {:<width$} {:>9} {:>9} {:>9}  LAST", "CLASS", "GROUP", "NOW", "FREED", "BACK");
    let bytes = |bytes: Bytes| if bytes.0 == 0 { "-".to_owned() } else { bytes.to_string() };
    for group in status.groups.iter().filter(|group| group.current.is_none_or(|current| current >= Bytes::mib(1))) {
        let last = match group.last {
            _ if group.sweeping => "now".to_owned(),
            Some(ago) => format!("{} ago", short(ago)),
            None if group.class == omr_policy::Class::Background => "-".to_owned(),
            None => "never touched".to_owned(),
        };
        outln!(
            "  {:<11} {:<width$} {:>9} {:>9} {:>9}  {last}",
            group.class.name(),
            printable(&group.group),
            group.current.map_or_else(|| "?".to_owned(), |current| current.to_string()),
            bytes(group.freed),
            bytes(group.came_back),
        );
    }
    if status.groups_total > status.groups.len() {
        outln!("  ({} groups in all)", status.groups_total);
    }
    Ok(())
}

/// What hibernation would take now. Of a machine that cannot hibernate nothing is said, unless it should.
fn about_image(image: &ImageView) -> Option<String> {
    if let Some(why) = &image.obstacle {
        return image.is_goal.then(|| format!("cannot hibernate: {why}"));
    }
    let forecast = image.forecast.as_ref()?;
    let time = match image.write_ms_at_most {
        Some(ms) => format!(", at most {} to write", short(Duration::from_millis(ms))),
        None => String::new(),
    };
    Some(match forecast.is_fast() {
        true => format!("ready to hibernate: image of at most {}{time}", forecast.image),
        false => format!(
            "not ready to hibernate: {} in use, {} can be copied at once; image of at most {}{time}",
            forecast.in_use, forecast.fast, forecast.image
        ),
    })
}

/// A group's name as a request can carry it, and as the daemon compares it.
fn lossy(group: PathBuf) -> String {
    group.to_string_lossy().into_owned()
}

/// `omr explain`.
pub fn explain(root: &Path, args: &ExplainArgs) -> Result<Exit> {
    let value = ask(&paths::socket(root), &ControlRequest::Explain { group: args.group.clone().map(lossy) })?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(Exit::Done);
    }
    let explanation: Explanation = serde_json::from_value(value).context("the daemon is of another version")?;
    outln!("{}", printable(&explanation.verdict));
    if let Some(next) = explanation.next {
        outln!("next: {next}");
    }
    if let Some(class) = explanation.class {
        outln!("class: {}", printable(&class));
    }
    if !explanation.guards.is_empty() {
        outln!("guards: {}", explanation.guards.join("; "));
    }
    Ok(Exit::Done)
}

/// `omr pause`.
pub fn pause(root: &Path, args: &PauseArgs) -> Result<Exit> {
    if args.until_wake {
        ask(&paths::socket(root), &ControlRequest::FallAsleep)?;
        return Ok(Exit::Done);
    }
    // Rounded up: a pause of half a second is not none.
    let seconds = args.time.map(|time| time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)));
    ask(&paths::socket(root), &ControlRequest::Pause { seconds })?;
    Ok(Exit::Done)
}

/// `omr resume`.
pub fn resume(root: &Path) -> Result<Exit> {
    ask(&paths::socket(root), &ControlRequest::Resume)?;
    Ok(Exit::Done)
}

/// `omr history`.
pub fn history(root: &Path, args: &HistoryArgs) -> Result<Exit> {
    let mut entries = std::collections::VecDeque::new();
    read_ledger(&paths::state_dir(root), |entry| {
        entries.push_back(entry);
        if entries.len() > args.lines {
            entries.pop_front();
        }
    })?;
    if args.json {
        for entry in &entries {
            outln!("{}", serde_json::to_string(entry)?);
        }
        return Ok(Exit::Done);
    }
    for entry in &entries {
        let time = |seconds: u64| {
            let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds.min(LATEST));
            humantime::format_rfc3339_seconds(time).to_string()
        };
        match entry {
            LedgerEntry::Sweep(swept) => outln!(
                "{}  {}: {}{} freed (anon {}, file {}), {} to swap, {}; {}",
                time(swept.time),
                printable(&swept.group),
                if swept.observed { "observed only, " } else { "" },
                swept.freed,
                swept.freed_anon,
                swept.freed_file,
                swept.swapped_out,
                short(Duration::from_millis(swept.wall_ms)),
                swept.stop_reason,
            ),
            LedgerEntry::Prepare(prepared) => outln!(
                "{}  prepared for {} ({}): {}{} freed (anon {}, file {}), {} to swap, {}; {}",
                time(prepared.time),
                prepared.purpose.name(),
                printable(&prepared.why),
                if prepared.observed { "observed only, " } else { "" },
                prepared.freed,
                prepared.freed_anon,
                prepared.freed_file,
                prepared.swapped_out,
                short(Duration::from_millis(prepared.wall_ms)),
                prepared.stop_reason,
            ),
            LedgerEntry::Refaults { time: at, group, bytes, after, .. } => outln!(
                "{}  {}: {bytes} came back within {}",
                time(*at),
                printable(group),
                short(Duration::from_secs(*after)),
            ),
        }
    }
    Ok(Exit::Done)
}
