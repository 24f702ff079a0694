//! Lines of the ledger, in words.

use std::time::Duration;

use omr_base::text::printable;
use omr_history::ledger::Entry;
use omr_policy::short;

/// The time of a line, in seconds since 1970.
pub fn time(entry: &Entry) -> u64 {
    match entry {
        Entry::Sweep(of) => of.time,
        Entry::Prepare(of) => of.time,
        Entry::Hint(of) => of.time,
        Entry::GiveBack(of) => of.time,
        Entry::Regret(of) => of.time,
        Entry::HeldOut(of) => of.time,
        Entry::Holds(of) => of.time,
        Entry::LeftAlone { time, .. } | Entry::Refaults { time, .. } => *time,
    }
}

/// Returns true if a group is the other one or below it; the empty path is the machine.
pub fn is_below(group: &str, above: &str) -> bool {
    match group.strip_prefix(above) {
        Some(rest) => above.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// Returns true if a line tells about this group or about one below it.
pub fn is_of(entry: &Entry, group: &str) -> bool {
    match entry {
        Entry::Sweep(of) => is_below(&of.group, group),
        Entry::Hint(of) => is_below(&of.group, group),
        Entry::Regret(of) => is_below(&of.group, group),
        Entry::LeftAlone { group: of, .. } | Entry::Refaults { group: of, .. } => is_below(of, group),
        Entry::Prepare(_) | Entry::GiveBack(_) => group.is_empty(),
        Entry::HeldOut(_) | Entry::Holds(_) => true,
    }
}

/// Returns a line in words, without its time; `None`: it is no event, but a record of what was held
/// out, or of a time in which nothing was held.
pub fn text(entry: &Entry) -> Option<String> {
    let millis = |ms: u64| short(Duration::from_millis(ms));
    let observed = |observed: bool| if observed { "observed only, " } else { "" };
    Some(match entry {
        Entry::Sweep(swept) => format!(
            "{}: {}{} freed (anon {}, file {}), {} to swap, {}{}{}; {}{}",
            printable(&swept.group),
            observed(swept.observed),
            swept.freed,
            swept.freed_anon,
            swept.freed_file,
            swept.swapped_out,
            if swept.demoted.0 > 0 { format!("{} to slower memory, ", swept.demoted) } else { String::new() },
            millis(swept.wall_ms),
            swept.method.as_ref().map(|by| format!(" by {}", printable(by))).unwrap_or_default(),
            swept.stop_reason,
            swept.stop_ms.map(|ms| format!(", stopped within {}", millis(ms))).unwrap_or_default(),
        ),
        Entry::Prepare(prepared) => format!(
            "prepared for {} ({}): {}{} freed (anon {}, file {}), {} to swap, {}; {}",
            prepared.purpose.name(),
            printable(&prepared.why),
            observed(prepared.observed),
            prepared.freed,
            prepared.freed_anon,
            prepared.freed_file,
            prepared.swapped_out,
            millis(prepared.wall_ms),
            prepared.stop_reason,
        ),
        Entry::Hint(hint) => format!(
            "{} ({}): {}hint {} about {}, {} freed, {} to swap, {}; {}",
            hint.id.pid,
            printable(&hint.name),
            observed(hint.observed),
            hint.step.name(),
            hint.advised,
            hint.freed,
            hint.swapped_out,
            millis(hint.wall_ms),
            hint.stop_reason,
        ),
        Entry::GiveBack(given) => format!(
            "gave back {} of {} that {} had lost while everybody was away, {} read from swap, {}; {}",
            given.asked.min(given.taken),
            given.taken,
            if given.groups == 1 { "1 group".to_owned() } else { format!("{} groups", given.groups) },
            given.swapped_in,
            millis(given.wall_ms),
            printable(&given.stop_reason),
        ),
        Entry::LeftAlone { group, reason, .. } => format!("{}: not swept: {reason}", printable(group)),
        Entry::Refaults { group, bytes, after, .. } => {
            format!("{}: {bytes} came back within {}", printable(group), short(Duration::from_secs(*after)))
        }
        Entry::Regret(line) => format!(
            "{}: sweeps cost {}{} of waiting and {} of refaults",
            printable(&line.group),
            if line.incomplete { "at least " } else { "" },
            millis(line.waited_ms),
            line.refaulted_bytes,
        ),
        Entry::Holds(line) => {
            let reasons = line.reasons.iter().map(|of| format!("{} {}", millis(of.ms), printable(&of.reason)));
            let reasons: Vec<_> = reasons.collect();
            match reasons.as_slice() {
                [] => return None,
                reasons => format!("of {} held: {}", millis(line.over_ms), reasons.join("; ")),
            }
        }
        Entry::HeldOut(_) => return None,
    })
}

/// Returns the reason why the event began; `None`: none is recorded.
pub fn reason(entry: &Entry) -> Option<&str> {
    match entry {
        Entry::Sweep(swept) => Some(&swept.start_reason),
        Entry::Hint(hint) => Some(&hint.start_reason),
        _ => None,
    }
}
