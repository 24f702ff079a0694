//! The daemon's explanation, in lines.

use std::time::Duration;

use omr_base::text::printable;
use omr_control::status::{Explanation, RegretView};
use omr_policy::short;
use omr_units::Bytes;

/// Returns the lines that `omr explain` prints.
pub fn lines(explanation: &Explanation) -> Vec<String> {
    let mut lines = vec![printable(&explanation.verdict)];
    let regret = explanation.regret.as_ref().and_then(about_regret);
    let named = [
        ("next", &explanation.next),
        ("goal", &explanation.goal),
        ("presence", &explanation.presence),
        ("class", &explanation.class),
        ("regret", &regret),
    ];
    lines.extend(named.into_iter().filter_map(|(name, text)| Some(format!("{name}: {}", printable(text.as_ref()?)))));
    if !explanation.guards.is_empty() {
        lines.push(format!("guards: {}", printable(&explanation.guards.join("; "))));
    }
    lines
}

/// Describes the time that tasks waited, and what came back.
pub fn cost(waited_ms: u64, refaults: Bytes, incomplete: bool) -> String {
    let least = if incomplete { "at least " } else { "" };
    format!("cost {least}{} of waiting and {refaults} of refaults", short(Duration::from_millis(waited_ms)))
}

/// Returns a line about what sweeps of a group have cost, if there was one.
fn about_regret(regret: &RegretView) -> Option<String> {
    let RegretView { held_out_bytes, held_out_average_bytes: average, waited_ms, refaulted_bytes, incomplete } =
        *regret;
    let is_any = incomplete || waited_ms > 0 || held_out_bytes + average + refaulted_bytes > Bytes::ZERO;
    let cost = cost(waited_ms, refaulted_bytes, incomplete);
    is_any.then(|| format!("{held_out_bytes} held out now; today {average} on average, {cost}"))
}
