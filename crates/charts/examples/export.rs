//! Prints what the page of `omr web` shows as JSON, from a history and a status in a file:
//!
//! ```text
//! cargo run -p omr-charts --example week -- DIR
//! cargo run -p omr-charts --example export -- DIR crates/control/src/status/example.json [SECONDS [COLUMNS]]
//! ```
//!
//! The form is that of `omr web --export`.

use std::path::PathBuf;
use std::time::Duration;

use omr_charts::{Charts, Group, Now, Window, list, samples_at};
use omr_control::status::Status;
use omr_kernel::clock;
use omr_policy::Objective;

const MOST_GROUPS: usize = 30;

fn main() {
    let mut words = std::env::args().skip(1);
    let root = PathBuf::from(words.next().expect("a directory"));
    let status = words.next().filter(|file| file != "-").map(|file| std::fs::read(file).expect("a file"));
    let status: Option<Status> = status.map(|text| serde_json::from_slice(&text).expect("a status"));
    let mut number = || words.next().map(|text| text.parse::<u64>().expect("a number"));
    let (span, columns) = (number().unwrap_or(7200), number().unwrap_or(240));
    let now = clock::read_wall();
    let window =
        Window::ending(now, Duration::from_secs(span), usize::try_from(columns).expect("a number of columns"));
    let samples = samples_at(&root, now).expect("a history");
    let groups = list(status.as_ref(), &samples);
    let mut largest: Vec<&Group> = groups.iter().collect();
    largest.sort_by_key(|group| (!group.path.is_empty(), std::cmp::Reverse(group.memory)));
    let charts: serde_json::Map<_, _> = largest
        .into_iter()
        .take(1 + MOST_GROUPS)
        .map(|group| (group.path.clone(), serde_json::json!(charts(&root, &group.path, window, status.as_ref()))))
        .collect();
    let export = serde_json::json!({
        "made": now.as_secs(),
        "host": "example",
        "version": env!("CARGO_PKG_VERSION"),
        "window": window,
        "groups": groups,
        "charts": charts,
        "explain": { "": status.iter().map(|status| status.reason.clone()).collect::<Vec<_>>() },
        "status": status,
        "missing": null,
    });
    println!("{}", export.to_string().replace('<', "\\u003c"));
}

fn charts(root: &std::path::Path, group: &str, window: Window, status: Option<&Status>) -> Charts {
    let now = Now::new(status, group, &Objective::default());
    let mut charts = omr_charts::read(root, group, window, &now).expect("a history");
    charts.set_now(status);
    charts
}
