//! The page as one file, with the data of a window.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use omr_base::paths;
use omr_charts::{Charts, Group, Now, Window, explain, moment};
use omr_control::client::Client;
use omr_control::status::Status;
use omr_kernel::clock;
use omr_policy::Objective;
use serde::Serialize;

use crate::{page, records, words};

/// The most groups with charts, beyond the machine and the group that is asked for.
const MOST_GROUPS: usize = 30;
/// The columns of the charts: 4 MB for 30 groups.
const COLUMNS: usize = 120;

/// A report to be made.
#[derive(Clone, Debug)]
pub struct Report {
    /// The group that gets charts in any case; empty: the machine.
    pub group: String,
    /// The end, since 1970; `None`: now.
    pub at: Option<Duration>,
    /// The length of the charts.
    pub span: Duration,
    /// The version of the program.
    pub version: &'static str,
    /// What the configuration demands of thresholds.
    pub objective: Objective,
}

#[derive(Serialize)]
struct Data<'a> {
    made: u64,
    host: String,
    version: &'a str,
    group: &'a str,
    window: Window,
    groups: Vec<Group>,
    charts: BTreeMap<String, Charts>,
    explain: BTreeMap<String, Vec<String>>,
    status: Option<&'a Status>,
    missing: Option<String>,
}

/// Returns the report as HTML.
pub fn report(root: &Path, report: &Report) -> Result<String> {
    let wall = clock::read_wall();
    let mut daemon = Client::new(paths::socket(root));
    let status = report.at.is_none().then(|| words(daemon.status()));
    let mut missing: Vec<String> = status.iter().filter_map(|status| status.as_ref().err().cloned()).collect();
    let status = status.and_then(Result::ok);
    let window = Window::ending(report.at.unwrap_or(wall), report.span, COLUMNS);
    let (groups, no_samples) = records::groups(root, report.at.unwrap_or(wall), status.as_ref());
    missing.extend(no_samples);
    let wanted = wanted(&groups, &report.group);
    let asked: Vec<(&str, Now)> =
        wanted.iter().map(|group| (*group, Now::new(status.as_ref(), group, &report.objective))).collect();
    let mut charts = BTreeMap::new();
    for mut of in omr_charts::read_all(root, &asked, window)? {
        of.set_now(status.as_ref());
        charts.insert(of.group.clone(), of);
    }
    let mut explained = BTreeMap::new();
    for group in ["", report.group.as_str()] {
        let lines = match (&report.at, &status) {
            (Some(_), _) => words(moment(root, group, window.from..window.to, &[])),
            (None, Some(_)) => words(daemon.explain(group).map(|explanation| explain::lines(&explanation))),
            (None, None) => continue,
        };
        // What is missing is said where people look for it.
        explained.insert(group.to_owned(), lines.unwrap_or_else(|why| vec![why]));
    }
    let data = Data {
        made: wall.as_secs(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        version: report.version,
        group: &report.group,
        window,
        groups,
        charts,
        explain: explained,
        status: status.as_ref(),
        missing: (!missing.is_empty()).then(|| missing.join("; ")),
    };
    page::with_data(&serde_json::to_string(&data)?).map_err(|why| anyhow!(why))
}

/// The machine, this group, and the largest ones.
fn wanted<'a>(groups: &'a [Group], group: &'a str) -> Vec<&'a str> {
    let mut largest: Vec<&Group> = groups.iter().filter(|of| !of.path.is_empty() && of.path != group).collect();
    largest.sort_by_key(|of| std::cmp::Reverse(of.memory));
    let first = [""].into_iter().chain((!group.is_empty()).then_some(group));
    first.chain(largest.into_iter().take(MOST_GROUPS).map(|of| of.path.as_str())).collect()
}
