//! `omr status`, `omr explain`, `omr pause` and `omr resume`.

mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::{paths, when};
use omr_charts::explain::{self, cost};
use omr_control::client::{OTHER_VERSION, ask};
use omr_control::protocol::Request;
use omr_control::status::{Explanation, GroupView, ImageView, Status, SwapView};
use omr_machine::{processes, statements};
use omr_policy::statement::Presence;
use omr_policy::{ColdAmount, Decision, End, Mode, short};
use omr_units::Bytes;

#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Show it again each second, with rows of the last two hours, until ^C; where standard output
    /// is no terminal, print a line each second
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// A control group or a process id (a group whose name is a number: ./N); without one, the
    /// machine
    #[arg(value_name = "GROUP|PID")]
    group: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    /// Pause for this time, e.g. 2h; without it, until omr resume
    #[arg(long = "for", value_parser = when::parse_length, value_name = "TIME")]
    time: Option<Duration>,

    /// Pause until the machine has slept and woken up; if it does not sleep, for five minutes
    ///
    /// The package's hook calls this before every kind of sleep. An earlier pause stays.
    #[arg(long, conflicts_with = "time")]
    until_wake: bool,
}

/// `omr status`.
pub fn status(root: &Path, args: &StatusArgs) -> Result<Exit> {
    if args.watch {
        return watch::run(root, args.json);
    }
    let value = ask(&paths::socket(root), &Request::Status)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(Exit::Done);
    }
    let status: Status = serde_json::from_value(value).context(OTHER_VERSION)?;
    for line in lines(&status) {
        outln!("{line}");
    }
    // Who may not read the history gets the status all the same.
    if omr_charts::is_empty(root).is_ok_and(|is_empty| is_empty) {
        outln!("\n{}", omr_charts::NO_HISTORY);
    }
    outln!("");
    for line in groups(&status) {
        outln!("{line}");
    }
    Ok(Exit::Done)
}

/// Returns the current activity; empty if there is none.
fn activity(status: &Status) -> String {
    match (&status.sweep, &status.decision) {
        (None, _) if let Some(preparing) = &status.preparing => {
            let left = match preparing.left_ms {
                Some(left) => format!("{} left", short(Duration::from_millis(left))),
                None => "no time limit".to_owned(),
            };
            format!("{} freed so far, {left}", preparing.freed)
        }
        (Some(sweep), _) => format!("sweeping {}: {} of {}", printable(&sweep.group), sweep.freed, sweep.asked),
        (None, _) if let Some(giving) = &status.giving_back => {
            format!("giving back: {} of {}", giving.back.min(giving.taken), giving.taken)
        }
        (None, _) if let Some(hinting) = &status.hinting => format!("hinting {}", printable(hinting)),
        (None, Some(Decision::Hold { .. })) => "waiting".to_owned(),
        _ => String::new(),
    }
}

/// Returns the line about what the daemon does now.
fn first(status: &Status) -> String {
    let activity = activity(status);
    let separator = if activity.is_empty() { "" } else { "; " };
    format!("{}{separator}{activity}", status.reason)
}

/// Returns the lines about the machine.
fn lines(status: &Status) -> Vec<String> {
    let mut lines = vec![first(status)];
    match status.mode {
        Mode::Act => {}
        Mode::Observe => lines.push("mode observe: decides and records, but reclaims nothing".to_owned()),
        Mode::Record => lines.push("mode record: ages groups and records, but reclaims nothing".to_owned()),
    }
    lines.extend(about_goal(status));
    lines.extend(about_presence(status));
    lines.extend(today(status));
    lines.extend(status.swap.as_ref().and_then(|swap| swap.no_writes.clone()));
    lines.extend(status.image.as_ref().and_then(about_image));
    for statement in &status.statements {
        let (class, origin) = (statement.word.class().name(), set_by(statement.word));
        lines.push(format!("{}: {class} (set by {origin})", printable(&statement.what)));
    }
    lines
}

/// Returns the table of groups.
fn groups(status: &Status) -> Vec<String> {
    let width =
        status.groups.iter().map(|group| printable(&group.group).chars().count()).max().unwrap_or(0).clamp(5, 60);
    let mut lines =
        vec![format!("  {:<11} {:<width$} {:>9} {:>9} {:>9}  LAST", "CLASS", "GROUP", "NOW", "FREED", "BACK")];
    let bytes = |bytes: Bytes| if bytes.0 == 0 { "-".to_owned() } else { bytes.to_string() };
    for group in status.groups.iter().filter(|group| group.current.is_none_or(|current| current >= Bytes::mib(1))) {
        let last = match group.last {
            _ if group.sweeping => "now".to_owned(),
            _ if group.by_age.as_ref().is_some_and(|by_age| matches!(by_age.cold, ColdAmount::Never { .. })) => {
                "not swept: ages not known".to_owned()
            }
            ago if let Some(out) = probed_out(group) => match ago {
                Some(ago) => format!("{} ago, probed: {out} out", short(ago)),
                None => "probed".to_owned(),
            },
            Some(ago) => swept(ago, group.last_end),
            None if group.by_age.as_ref().is_some_and(|by_age| by_age.cold == ColdAmount::NotYet) => {
                "not swept: ages not known yet".to_owned()
            }
            None if group.class == omr_policy::Class::Background => "-".to_owned(),
            None => "never swept".to_owned(),
        };
        lines.push(format!(
            "  {:<11} {:<width$} {:>9} {:>9} {:>9}  {last}",
            group.class.name(),
            printable(&group.group),
            group.current.map_or_else(|| "?".to_owned(), |current| current.to_string()),
            bytes(group.freed),
            bytes(group.came_back),
        ));
    }
    if status.groups_total > status.groups.len() {
        lines.push(format!("  ({} groups in all)", status.groups_total));
    }
    lines
}

/// When the last sweep of a group ended, and why, unless it took all that it should.
fn swept(ago: Duration, end: Option<End>) -> String {
    match end {
        None | Some(End::Complete) => format!("{} ago", short(ago)),
        Some(end) => format!("{} ago: {}", short(ago), end.words()),
    }
}

/// Memory that probes took of a group without ages; `None`: the group is not probed.
fn probed_out(group: &GroupView) -> Option<Bytes> {
    match group.by_age.as_ref()?.cold {
        ColdAmount::Probed { out, .. } => Some(out),
        _ => None,
    }
}

/// Returns the lines about today.
fn today(status: &Status) -> [String; 2] {
    let today = &status.today;
    let back = today.came_back.share_of(today.freed).map(|share| format!(" ({share})")).unwrap_or_default();
    let written = swap_written(status.swap.as_ref(), today.swapped_out);
    let done = format!(
        "today: {} sweep{}, {} freed, {} came back{back}{written}, own CPU {}",
        today.sweeps,
        if today.sweeps == 1 { "" } else { "s" },
        today.freed,
        today.came_back,
        short(Duration::from_millis(today.cpu_ms)),
    );
    let cost = cost(today.waited_ms, today.refaulted_bytes, today.regret_incomplete);
    let average = today.held_out_average_bytes;
    let held_out = format!("held out: {} now; today {average} on average, {cost}", status.held_out_bytes);
    [done, held_out]
}

/// Describes what was written to swap, and of which budget. `today`: by sweeps since midnight.
fn swap_written(swap: Option<&SwapView>, today: Bytes) -> String {
    let Some(swap) = swap else { return ", no swap".to_owned() };
    let Some(budget) = swap.budget else { return format!(", swap written {today} (no budget)") };
    let medium = swap.medium.map(|medium| format!(" ({medium})")).unwrap_or_default();
    format!(", swap written {} of {budget}{medium}", swap.written)
}

/// Returns a line about a goal that depends on the machine's need, unless the first line says it.
fn about_goal(status: &Status) -> Option<String> {
    let goal = status.goal.as_ref()?;
    let words = goal.words.as_ref().filter(|words| **words != status.reason)?;
    Some(format!("goal {}: {words}", goal.goal.name()))
}

/// Returns a line about who is there, if the goal asks.
fn about_presence(status: &Status) -> Option<String> {
    Some(format!("presence: {}", status.goal.as_ref()?.presence_words.as_ref()?))
}

/// Returns the commands that can make this statement.
fn set_by(presence: Presence) -> &'static str {
    match presence {
        Presence::Background => "omr background",
        Presence::Foreground => "omr foreground or omr follow",
        Presence::Present => "omr follow",
    }
}

/// Returns a line about hibernation. If the machine cannot hibernate, there is a line only if it
/// should be able to.
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

/// `omr explain`.
pub fn explain(root: &Path, args: &ExplainArgs) -> Result<Exit> {
    let request = match &args.group {
        Some(target) if let Some(pid) = processes::pid(target) => Request::ExplainProcess { pid: pid? },
        group => Request::Explain { group: group.as_deref().map(statements::group_name) },
    };
    let value = ask(&paths::socket(root), &request)?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(Exit::Done);
    }
    let explanation: Explanation = serde_json::from_value(value).context(OTHER_VERSION)?;
    for line in explain::lines(&explanation) {
        outln!("{line}");
    }
    Ok(Exit::Done)
}

/// `omr pause`.
pub fn pause(root: &Path, args: &PauseArgs) -> Result<Exit> {
    if args.until_wake {
        ask(&paths::socket(root), &Request::FallAsleep)?;
        return Ok(Exit::Done);
    }
    // Rounded up: half a second is still a pause.
    let seconds = args.time.map(|time| time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)));
    ask(&paths::socket(root), &Request::Pause { seconds })?;
    Ok(Exit::Done)
}

/// `omr resume`.
pub fn resume(root: &Path) -> Result<Exit> {
    ask(&paths::socket(root), &Request::Resume)?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use omr_policy::cost::Medium;
    use omr_units::Budget;

    use super::*;

    #[test]
    fn a_group_whose_sweep_ended_early_says_why() {
        let mut status: Status =
            serde_json::from_str(include_str!("../../../control/src/status/example.json")).expect("a status");
        let mut last = |end| {
            let group = status.groups.first_mut().expect("a group");
            (group.last, group.last_end) = (Some(Duration::from_secs(180)), end);
            groups(&status).swap_remove(1).rsplit("  ").next().map(str::to_owned).expect("a column")
        };
        assert_eq!(last(Some(End::Futile)), "3 min ago: nothing more to free");
        assert_eq!(last(Some(End::Complete)), "3 min ago");
        assert_eq!(last(None), "3 min ago", "of an older daemon");
    }

    #[test]
    fn what_was_written_to_swap_names_its_budget() {
        let zram = SwapView {
            total: Bytes::mib(512),
            free: Bytes::mib(256),
            floor: Bytes::mib(51),
            on_disk: false,
            written: Bytes::mib(7),
            budget: None,
            medium: None,
            no_writes: None,
        };
        let disk = SwapView {
            on_disk: true,
            budget: Some(Budget { bytes: Bytes::mib(512), hours: 24 }),
            medium: Some(Medium::Card),
            ..zram.clone()
        };
        let today = Bytes::mib(3);
        assert_eq!(swap_written(Some(&disk), today), ", swap written 7.00 MiB of 512 MiB/day (memory card)");
        assert_eq!(swap_written(Some(&zram), today), ", swap written 3.00 MiB (no budget)");
        assert_eq!(swap_written(None, today), ", no swap");
    }
}
