//! Metrics: what the daemon's status and the history of groups tell, as text for Prometheus.
//!
//! * An unknown value has no line; it is never 0.
//! * Counters are of the daemon and begin with it, but for promotions, which are summed up from the
//!   history since midnight (UTC). Sums of the ledger would fall whenever its oldest file goes, and
//!   Prometheus takes a sum that falls for one that began again.
//! * The number of groups is bounded ([`Options::groups`]).

#![deny(clippy::indexing_slicing)]

pub mod families;
mod groups;
mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use omr_base::paths;
use omr_charts::{COLD, promotion_rate};
use omr_control::counters::{Counters, STOPS_MS};
use omr_control::status::{GroupView, Status};
use omr_history::{self as history, AGES, Idle, Sample};
use omr_policy::age::Bounds;
use omr_policy::threshold::Step;
use omr_units::Bytes;

use families as of;
use groups::{Groups, OTHER};
pub use writer::{Format, Writer};

/// The largest number of groups with metrics of their own: the history has no more.
pub const MOST_GROUPS: usize = history::MOST_GROUPS;
/// Samples that are older say nothing about now.
const OLDEST: Duration = Duration::from_secs(3 * 3600);
const DAY: u64 = 86_400;

/// What to write.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of groups with metrics of their own, the largest ones; the others are one group.
    pub groups: usize,
    /// The format.
    pub format: Format,
}

impl Default for Options {
    fn default() -> Self {
        Options { groups: 20, format: Format::OpenMetrics }
    }
}

/// What the history tells.
#[derive(Debug, Default)]
pub struct Records {
    /// The samples of the last round; empty: the last round was hours ago.
    pub last: Vec<Sample>,
    /// The time of the last round, since 1970; `None`: there is none.
    pub sampled: Option<Duration>,
    /// Promotions since midnight (UTC) by path, for each of [`AGES`].
    pub promotions: BTreeMap<String, [Bounds; AGES.len()]>,
    /// The parts of the history that could not be read, in words.
    pub unreadable: Vec<String>,
}

impl Records {
    /// Reads the history. `now` is the wall clock, since 1970. A missing history counts as empty.
    pub fn read(root: &Path, now: Duration) -> Self {
        let mut records = Records::default();
        let midnight = Duration::from_secs(now.as_secs() / DAY * DAY);
        let times = midnight.min(now.saturating_sub(OLDEST))..now.saturating_add(Duration::from_secs(1));
        let dir = paths::history(root);
        let mut samples = match history::read(&dir, times.clone(), |_| true) {
            Ok(samples) => samples,
            Err(err) => {
                records.unreadable.push(format!("{err:#}"));
                return records;
            }
        };
        for sample in samples.by_ref() {
            if sample.time >= midnight
                && let Some(promotions) = &sample.promotions
            {
                let path = sample.group.to_string_lossy().into_owned();
                let sums = records.promotions.entry(path).or_default();
                for (sum, bounds) in sums.iter_mut().zip(promotions.bounds) {
                    *sum += bounds;
                }
            }
            // A later round takes the place of the one before, also where the clock was set back.
            if records.last.first().is_some_and(|first| first.time != sample.time) {
                records.last.clear();
            }
            records.last.push(sample);
        }
        records.unreadable.extend(samples.skipped().iter().map(ToString::to_string));
        records.sampled = records.last.first().map(|sample| sample.time);
        if records.sampled.is_none_or(|time| time < now.saturating_sub(OLDEST)) {
            records.last.clear();
        }
        if records.sampled.is_none() {
            // The last round was yesterday or earlier.
            let machine = |path: &Path| path.as_os_str().is_empty();
            let earlier = history::read(&dir, Duration::ZERO..times.start, machine);
            records.sampled = earlier.ok().and_then(|samples| samples.last()).map(|sample| sample.time);
        }
        records
    }
}

/// Reads the history below this root, and returns the metrics as text. `status`: `None`: the daemon
/// does not answer. `now` is the wall clock, since 1970.
pub fn read(root: &Path, status: Option<&Status>, now: Duration, options: Options) -> String {
    text(status, &Records::read(root, now), now, options)
}

/// Returns the metrics as text.
pub fn text(status: Option<&Status>, records: &Records, now: Duration, options: Options) -> String {
    let mut out = Writer::new(options.format);
    out.add(&of::UP, &[], u8::from(status.is_some()));
    if let Some(status) = status
        && let Some(policy) = &status.policy
    {
        let labels = [("hash", policy.hash.as_str()), ("version", &status.version), ("mode", status.mode.name())];
        out.add(&of::POLICY, &labels, 1);
    }
    out.add(&of::READABLE, &[], u8::from(records.unreadable.is_empty()));
    let sampled = records.sampled.map(|time| now.saturating_sub(time).as_secs());
    out.add_known(&of::SAMPLE_AGE, &[], sampled);
    let counters = status.and_then(|status| status.counters.as_ref());
    out.add_known(&of::CPU, &[], counters.map(|counters| counters.cpu.as_secs_f64()));
    of_groups(&mut out, status, records, options.groups);
    if let Some(policy) = status.and_then(|status| status.policy.as_ref()) {
        out.add(&of::LIMIT, &[], millionths(u64::from(policy.promotions.0)));
    }
    if let Some(counters) = counters {
        of_decisions(&mut out, counters);
        of_taken(&mut out, counters);
    }
    if let Some(status) = status {
        out.add(&of::HELD_OUT, &[], status.held_out_bytes.0);
    }
    if let Some(counters) = counters {
        of_cost(&mut out, counters);
    }
    if let Some(status) = status {
        of_now(&mut out, status);
    }
    out.finish()
}

/// Two values with the label `bound`.
fn bounds(out: &mut Writer, family: &of::Family, labels: &[(&str, &str)], value: Option<(u64, u64)>) {
    let Some((least, most)) = value else { return };
    for (bound, value) in [("least", least), ("most", most)] {
        let labels: Vec<_> = labels.iter().copied().chain([("bound", bound)]).collect();
        out.add(family, &labels, value);
    }
}

type Size = fn(&Sample) -> Option<Bytes>;

fn of_groups(out: &mut Writer, status: Option<&Status>, records: &Records, most: usize) {
    let groups = Groups::new(&records.last, most);
    let sizes: [(&of::Family, Size); 3] = [
        (&of::MEMORY, |sample| Some(sample.current)),
        (&of::PAGE_CACHE, |sample| Some(sample.file - sample.shmem)),
        (&of::SWAP, |sample| sample.swap),
    ];
    for (family, value) in sizes {
        for (label, sample) in &groups.shown {
            out.add_known(family, &[("group", label)], value(sample).map(|value| value.0));
        }
        let sum = sum(groups.others.iter().map(|sample| value(sample)), |a, b| a + b);
        out.add_known(family, &[("group", OTHER)], sum.map(|sum| sum.0));
    }
    let used = |sample: &Sample, age| used_within(sample.idle.as_ref()?, age);
    let others_used = |age| sum(groups.others.iter().map(|sample| used(sample, age)), plus);
    let known = |sample: &Sample| sample.idle.as_ref().map(|idle| Bounds { least: idle.memory, most: idle.memory });
    let labelled = || groups.shown.iter().map(|(label, sample)| (label.as_str(), *sample));
    for (label, sample) in labelled().map(|(label, sample)| (label, Some(sample))).chain([(OTHER, None)]) {
        for age in AGES {
            let value = sample.map_or_else(|| others_used(age), |sample| used(sample, age));
            bounds(out, &of::AGES, &[("group", label), ("le", &age.as_secs().to_string())], pair(value));
        }
        let all = sample.map_or_else(|| sum(groups.others.iter().map(|sample| known(sample)), plus), known);
        bounds(out, &of::AGES, &[("group", label), ("le", "+Inf")], pair(all));
    }
    for (label, sample) in labelled() {
        bounds(out, &of::WORKING_SET, &[("group", label)], pair(used(sample, COLD)));
    }
    bounds(out, &of::WORKING_SET, &[("group", OTHER)], pair(others_used(COLD)));
    for (label, sample) in labelled() {
        let since = sample.since.as_ref().filter(|since| !since.over.is_zero());
        let share = since.and_then(|since| Some(since.stalled?.as_secs_f64() / since.over.as_secs_f64()));
        out.add_known(&of::STALL, &[("group", label)], share);
    }
    let views = status.map(|status| status.groups.as_slice()).unwrap_or_default();
    let thresholds: Vec<_> = labelled().map(|(label, sample)| (label, sample, threshold(views, sample))).collect();
    for (label, _, age) in &thresholds {
        out.add_known(&of::THRESHOLD, &[("group", label)], age.map(|age| age.as_secs_f64()));
    }
    for (label, sample) in labelled() {
        let Some(sums) = records.promotions.get(&*sample.group.to_string_lossy()) else { continue };
        for (age, sum) in AGES.into_iter().zip(sums) {
            bounds(out, &of::PROMOTIONS, &[("group", label), ("ge", &age.as_secs().to_string())], pair(Some(*sum)));
        }
    }
    for (label, sample, age) in &thresholds {
        // The history knows the promotions at the ages of the grid.
        let rate = age.and_then(|age| promotion_rate(sample, Step::not_above(age).age()));
        for (bound, value) in rate.into_iter().flat_map(|rate| [("least", rate.least), ("most", rate.most)]) {
            out.add(&of::RATE, &[("group", label), ("bound", bound)], millionths(value));
        }
    }
}

/// The age from which on memory of the group may be taken: now, or at its last sample.
fn threshold(views: &[GroupView], sample: &Sample) -> Option<Duration> {
    let path = sample.group.to_string_lossy();
    let view = views.iter().find(|view| view.group == path);
    view.map_or(sample.threshold, |view| view.by_age.as_ref().map(|by_age| by_age.min_age))
}

/// Returns the memory that was used within this time; `None`: it was not observed for this long.
fn used_within(idle: &Idle, age: Duration) -> Option<Bounds> {
    let unused = idle.of(age)?;
    let is_observed = unused.least > Bytes::ZERO || unused.most < idle.memory || idle.memory == Bytes::ZERO;
    is_observed.then(|| Bounds { least: idle.memory - unused.most, most: idle.memory - unused.least })
}

/// Returns the sum; `None`: a value is unknown, or there is none.
fn sum<T>(values: impl Iterator<Item = Option<T>>, add: impl Fn(T, T) -> T) -> Option<T> {
    values.reduce(|a, b| Some(add(a?, b?))).flatten()
}

fn plus(a: Bounds, b: Bounds) -> Bounds {
    Bounds { least: a.least + b.least, most: a.most + b.most }
}

fn pair(bounds: Option<Bounds>) -> Option<(u64, u64)> {
    bounds.map(|bounds| (bounds.least.0, bounds.most.0))
}

/// A number of millionths, as a decimal number.
fn millionths(value: u64) -> String {
    format!("{}.{:06}", value / 1_000_000, value % 1_000_000)
}

fn of_decisions(out: &mut Writer, counters: &Counters) {
    let labelled =
        || counters.decisions.iter().map(|of| ([("act", of.act.name()), ("reason", of.reason.as_str())], of));
    labelled().for_each(|(labels, decision)| out.add(&of::DECISIONS, &labels, decision.count));
    labelled().for_each(|(labels, decision)| out.add(&of::DECISION_TIME, &labels, decision.time.as_secs_f64()));
}

fn of_taken(out: &mut Writer, counters: &Counters) {
    for taken in &counters.reclaimed {
        for (kind, bytes) in [("anon", taken.anon), ("file", taken.file), ("demoted", taken.demoted)] {
            out.add(&of::RECLAIMED, &[("kind", kind), ("backend", &taken.method)], bytes.0);
        }
    }
    out.add(&of::CAME_BACK, &[], counters.came_back.0);
}

fn of_cost(out: &mut Writer, counters: &Counters) {
    out.add(&of::REGRET, &[], counters.regret.as_secs_f64());
    let stops = &counters.stops;
    for (bound, count) in STOPS_MS.into_iter().zip(stops.within) {
        let seconds = Duration::from_millis(bound).as_secs_f64();
        out.add_part(&of::STOPS, "_bucket", &[("le", &format!("{seconds:?}"))], count);
    }
    out.add_part(&of::STOPS, "_bucket", &[("le", "+Inf")], stops.count);
    out.add_part(&of::STOPS, "_sum", &[], stops.sum.as_secs_f64());
    out.add_part(&of::STOPS, "_count", &[], stops.count);
    out.add(&of::SWAP_WRITTEN, &[], counters.swap_written.0);
}

fn of_now(out: &mut Writer, status: &Status) {
    if let Some(swap) = &status.swap
        && let Some(budget) = swap.budget
    {
        out.add(&of::BUDGET_WRITTEN, &[], swap.written.0);
        out.add(&of::BUDGET, &[], budget.bytes.0);
    }
    let image = status.image.as_ref();
    let forecast = image.and_then(|image| image.forecast.as_ref());
    out.add_known(&of::IMAGE, &[], forecast.map(|forecast| forecast.image.0));
    let time = image.and_then(|image| image.write_ms_at_most).map(Duration::from_millis);
    out.add_known(&of::IMAGE_TIME, &[], time.map(|time| time.as_secs_f64()));
}

#[cfg(test)]
mod tests;
