//! What traces of real fleets say about short jobs and the time of the day, as a JSON file of
//! quantiles. `omr-fleet traces` makes one from the traces.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// Made from the packages that the file names.
const PUBLISHED: &str = include_str!("traces.json");

/// More short jobs in a week of a machine, or more of them at a time, are a mistake.
const MOST_JOBS: f64 = 10e6;
const MOST_AT_A_TIME: f64 = 10e3;

/// Short jobs, and how much is used at which time of the day.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// Where the figures are from, with the licence of each source.
    pub sources: Vec<String>,
    /// Short jobs.
    pub batch: Batch,
    /// The day.
    pub day: Day,
}

/// Jobs that end by themselves.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The part of a machine's memory that they have on average, in percent: 0 to 50.
    pub memory_percent: f64,
    /// The memory of one, in percent of a machine's.
    pub size_percent: Quantiles,
    /// How long one runs.
    pub seconds: Quantiles,
}

/// How far the mean of an hour of the day is from that of all, at most, in percent: 0 to 45.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Day {
    /// Of the memory.
    pub memory_swing_percent: f64,
    /// Of the CPU time.
    pub cpu_swing_percent: f64,
}

/// Pairs of a share of the values in percent, and the value that this share does not exceed. Values
/// between two pairs are spread evenly.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Quantiles(Vec<(f64, f64)>);

impl Default for Traces {
    /// The traces that are published in packages.
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "a test reads the file")]
        Traces::parse(Path::new("traces.json"), PUBLISHED.as_bytes()).expect("the file of this program")
    }
}

impl Traces {
    /// Reads a file. `source`: its name, for errors.
    pub fn parse(source: &Path, text: &[u8]) -> Result<Self> {
        let name = source.display();
        let traces: Traces =
            serde_json::from_slice(text).with_context(|| format!("{name}: not a file of omr-fleet traces"))?;
        let Traces { batch, day, .. } = &traces;
        for (key, value, most) in [
            ("batch.memory_percent", batch.memory_percent, 50.0),
            ("day.memory_swing_percent", day.memory_swing_percent, 45.0),
            ("day.cpu_swing_percent", day.cpu_swing_percent, 45.0),
        ] {
            if !(0.0..=most).contains(&value) {
                bail!("{name}: {key} is {value}; expected 0 to {most}");
            }
        }
        for (key, quantiles, most) in
            [("batch.size_percent", &batch.size_percent, 100.0), ("batch.seconds", &batch.seconds, 1e9)]
        {
            if let Some(wrong) = quantiles.wrong(most) {
                bail!("{name}: {key}: {wrong}");
            }
        }
        let at_a_time = batch.memory_percent / batch.size_percent.mean();
        let jobs = 7.0 * 86_400.0 / batch.every();
        if at_a_time > MOST_AT_A_TIME || jobs > MOST_JOBS {
            bail!(
                "{name}: batch: {jobs:.0} jobs in a week, {at_a_time:.0} at a time; expected at most {MOST_JOBS} and \
                 {MOST_AT_A_TIME}: these are too small or too short for {} % of the memory",
                batch.memory_percent
            );
        }
        Ok(traces)
    }
}

impl Batch {
    /// The mean time from the start of one job to the next, in seconds, by Little's law.
    pub(crate) fn every(&self) -> f64 {
        self.size_percent.mean() * self.seconds.mean() / self.memory_percent
    }
}

impl Quantiles {
    /// What is wrong with them, if something is.
    fn wrong(&self, most: f64) -> Option<String> {
        let of = |pair: Option<&(f64, f64)>| pair.map(|(share, _)| *share);
        if of(self.0.first()) != Some(0.0) || of(self.0.last()) != Some(100.0) {
            return Some("expected pairs from 0 to 100 %".to_owned());
        }
        let (_, largest) = self.0.last()?;
        if *largest <= 0.0 {
            return Some("expected a largest value above 0".to_owned());
        }
        let rises = self.pairs().all(|((share, value), (next, above))| share < next && value <= above);
        let is_within = self.0.iter().all(|(_, value)| (0.0..=most).contains(value));
        (!rises || !is_within).then(|| format!("expected values from 0 to {most} that rise"))
    }

    /// A value by chance.
    pub(crate) fn draw(&self, random: &mut fastrand::Rng) -> f64 {
        let at = 100.0 * random.f64();
        let between = self.pairs().find(|(_, (next, _))| at <= *next);
        between.map_or(0.0, |((share, value), (next, above))| value + (above - value) * (at - share) / (next - share))
    }

    /// The mean of all values.
    pub(crate) fn mean(&self) -> f64 {
        let part = |((share, value), (next, above))| (next - share) / 100.0 * (value + above) / 2.0;
        self.pairs().map(part).sum()
    }

    /// Each pair with the next one.
    fn pairs(&self) -> impl Iterator<Item = ((f64, f64), (f64, f64))> {
        self.0.iter().copied().zip(self.0.iter().copied().skip(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_traces_are_those_of_their_packages() {
        let traces = Traces::default();
        assert!(traces.sources.iter().any(|source| source.contains("MIT")), "{:?}", traces.sources);
        // 3,056,536 instances: 53 s and 0.144 % of a machine on average.
        let means = [&traces.batch.seconds, &traces.batch.size_percent].map(Quantiles::mean);
        assert!((45.0..65.0).contains(&means[0]) && (0.12..0.17).contains(&means[1]), "{means:?}");
    }

    #[test]
    fn values_by_chance_have_the_quantiles_they_are_drawn_from() {
        let quantiles = Quantiles(vec![(0.0, 0.0), (50.0, 10.0), (90.0, 20.0), (100.0, 1_000.0)]);
        let mut random = fastrand::Rng::with_seed(1);
        let mut drawn: Vec<f64> = (0..100_000).map(|_| quantiles.draw(&mut random)).collect();
        let mean = drawn.iter().sum::<f64>() / 100_000.0;
        assert!((mean / quantiles.mean() - 1.0).abs() < 0.02, "{mean}, not {}", quantiles.mean());
        drawn.sort_by(f64::total_cmp);
        for (at, value) in [(50_000, 10.0), (90_000, 20.0)] {
            let found: f64 = drawn[at];
            assert!((found / value - 1.0).abs() < 0.02, "{found}, not {value}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_key() {
        let parse = |text: &str| Traces::parse(Path::new("t.json"), text.as_bytes());
        assert!(parse(PUBLISHED).is_ok());
        let text = |batch: &str, size: &str, swing: &str| {
            format!(
                r#"{{"sources": [], "batch": {{"memory_percent": {batch}, "size_percent": {size}, "seconds": [[0, 0], [100, 9]]}},
                    "day": {{"memory_swing_percent": {swing}, "cpu_swing_percent": 0}}}}"#
            )
        };
        let good = "[[0, 0], [50, 1], [100, 2]]";
        assert!(parse(&text("5", good, "1")).is_ok());
        for (batch, size, swing, says) in [
            ("51", good, "1", "t.json: batch.memory_percent is 51; expected 0 to 50"),
            ("-1", good, "1", "t.json: batch.memory_percent is -1; expected 0 to 50"),
            ("5", good, "46", "t.json: day.memory_swing_percent is 46; expected 0 to 45"),
            ("5", "[]", "1", "t.json: batch.size_percent: expected pairs from 0 to 100 %"),
            ("5", "[[0, 0], [99, 1]]", "1", "t.json: batch.size_percent: expected pairs from 0 to 100 %"),
            ("5", "[[0, 3], [50, 2], [100, 4]]", "1", "batch.size_percent: expected values from 0 to 100 that rise"),
            ("5", "[[0, 0], [0, 1], [100, 4]]", "1", "expected values from 0 to 100 that rise"),
            ("5", "[[0, 0], [100, 101]]", "1", "expected values from 0 to 100 that rise"),
            ("5", "[[0, 0], [100, 0]]", "1", "batch.size_percent: expected a largest value above 0"),
        ] {
            let err = parse(&text(batch, size, swing)).expect_err(says);
            assert!(format!("{err:#}").contains(says), "{err:#}; expected {says}");
        }
        // As many jobs as these would take for ever.
        for size in ["[[0, 0], [100, 0.0001]]", "[[0, 0], [99.9999, 0], [100, 1]]"] {
            let err = parse(&text("50", size, "1")).expect_err("too small");
            assert!(
                format!("{err:#}").contains("t.json: batch: ") && format!("{err:#}").contains("at a time"),
                "{err:#}"
            );
        }
        let err = parse(r#"{"sources": [], "jobs": 1}"#).expect_err("an unknown key");
        assert!(format!("{err:#}").contains("t.json: not a file of omr-fleet traces: unknown field `jobs`"), "{err:#}");
    }
}
