//! All keys with kind and range, for loading, showing and suggestions.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use omr_policy::cost::OnBattery;
use omr_policy::{Class, Goal, IdleRule, MinAge, Mode};
use omr_units::{Amount, Budget, Bytes, Permyriad};
use toml::de::DeValue;

use crate::rules::{BackendChoice, Cloud, Provider};

/// The settings that have one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(crate) policy: omr_policy::Config,
    pub(crate) backend: BackendChoice,
    pub(crate) cloud: Cloud,
}

/// A key that has one value.
pub struct Key {
    /// The table of the key; empty: the top of the file.
    pub table: &'static str,
    /// The name of the key in its table.
    pub name: &'static str,
    kind: Kind,
}

enum Kind {
    Word { words: &'static [&'static str], get: fn(&Settings) -> &'static str, set: fn(&mut Settings, &str) },
    Time { at: fn(&mut Settings) -> &mut Duration, min: Duration, max: Duration },
    Size { at: fn(&mut Settings) -> &mut Bytes, min: Bytes, max: Bytes },
    Share { at: fn(&mut Settings) -> &mut Permyriad, min: Permyriad, max: Permyriad },
    Floor { at: fn(&mut Settings) -> &mut Amount },
    Budget { at: fn(&mut Settings) -> &mut Option<Budget> },
    Endpoint { at: fn(&mut Settings) -> &mut SocketAddr },
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn percent(n: u32) -> Permyriad {
    Permyriad::percent(n)
}

const DAY: Duration = s(86_400);
const TIB: Bytes = Bytes(1 << 40);

const fn time(
    table: &'static str,
    name: &'static str,
    min: Duration,
    max: Duration,
    at: fn(&mut Settings) -> &mut Duration,
) -> Key {
    Key { table, name, kind: Kind::Time { at, min, max } }
}

const fn size(
    table: &'static str,
    name: &'static str,
    min: Bytes,
    max: Bytes,
    at: fn(&mut Settings) -> &mut Bytes,
) -> Key {
    Key { table, name, kind: Kind::Size { at, min, max } }
}

const fn share(
    table: &'static str,
    name: &'static str,
    min: Permyriad,
    max: Permyriad,
    at: fn(&mut Settings) -> &mut Permyriad,
) -> Key {
    Key { table, name, kind: Kind::Share { at, min, max } }
}

/// Every key that has one value, in the order of `omr config show`: by table, the top first.
pub static KEYS: [Key; 56] = [
    Key {
        table: "",
        name: "mode",
        kind: Kind::Word {
            words: &["act", "observe", "record"],
            get: |s| s.policy.mode.name(),
            set: |s, word| s.policy.mode = Mode::from_name(word).unwrap_or_default(),
        },
    },
    Key {
        table: "",
        name: "goal",
        kind: Kind::Word {
            words: &["auto", "free", "hibernate"],
            get: |s| s.policy.goal.name(),
            set: |s, word| s.policy.goal = Goal::from_name(word).unwrap_or_default(),
        },
    },
    Key {
        table: "",
        name: "backend",
        kind: Kind::Word {
            words: &["auto", "memory.reclaim", "memory.swap.reclaim", "memory.high"],
            get: |s| s.backend.name(),
            set: |s, word| s.backend = BackendChoice::from_name(word).unwrap_or_default(),
        },
    },
    Key {
        table: "idle",
        name: "rule",
        kind: Kind::Word {
            words: &["headroom", "strict"],
            get: |s| match s.policy.idle.rule {
                IdleRule::Headroom => "headroom",
                IdleRule::Strict => "strict",
            },
            set: |s, word| s.policy.idle.rule = if word == "strict" { IdleRule::Strict } else { IdleRule::Headroom },
        },
    },
    time("idle", "for", s(1), DAY, |s| &mut s.policy.idle.hold),
    time("idle", "again", Duration::ZERO, DAY, |s| &mut s.policy.idle.again),
    time("idle", "window", s(1), s(600), |s| &mut s.policy.idle.window),
    // With a lower share, a busy machine would count as idle.
    share("idle", "strict", percent(50), percent(100), |s| &mut s.policy.idle.strict),
    share("idle", "free", percent(5), percent(100), |s| &mut s.policy.idle.free),
    // A share of one CPU, so values above 100 % make sense.
    share("idle", "foreground", Permyriad(10), percent(10_000), |s| &mut s.policy.idle.foreground),
    share("idle", "pressure_cpu", Permyriad(10), percent(100), |s| &mut s.policy.idle.pressure_cpu),
    share("idle", "pressure_io", Permyriad(10), percent(100), |s| &mut s.policy.idle.pressure_io),
    share("idle", "pressure_memory", Permyriad(10), percent(100), |s| &mut s.policy.idle.pressure_memory),
    time("presence", "away_after", s(60), DAY, |s| &mut s.policy.presence.away_after),
    share("stop", "cpu", percent(1), percent(10_000), |s| &mut s.policy.stop.cpu),
    time("stop", "sample", ms(5), ms(50), |s| &mut s.policy.stop.sample),
    time("stop", "stall", ms(1), s(10), |s| &mut s.policy.stop.stall),
    // The kernel accepts these windows for a PSI trigger.
    time("stop", "window", ms(500), s(10), |s| &mut s.policy.stop.window),
    time("sweep", "after_boot", Duration::ZERO, DAY, |s| &mut s.policy.sweep.after_boot),
    time("sweep", "after_resume", Duration::ZERO, DAY, |s| &mut s.policy.sweep.after_resume),
    size("sweep", "smallest", Bytes::ZERO, TIB, |s| &mut s.policy.sweep.smallest),
    size("sweep", "growth", Bytes::kib(128), TIB, |s| &mut s.policy.sweep.growth),
    // The kernel reclaims in batches of 32 pages: 128 KiB with the usual page. Above 64 MiB one
    // write takes longer than a sweep may take to stop.
    size("sweep", "step", Bytes::kib(128), Bytes::mib(64), |s| &mut s.policy.sweep.step),
    time("sweep", "write_time", ms(1), ms(50), |s| &mut s.policy.sweep.write_time),
    size("hibernate", "image", Bytes::ZERO, TIB, |s| &mut s.policy.hibernate.image),
    Key {
        table: "hibernate",
        name: "raise_image_size",
        kind: Kind::Word {
            words: &["off", "on"],
            get: |s| if s.policy.hibernate.raise_image_size { "on" } else { "off" },
            set: |s, word| s.policy.hibernate.raise_image_size = word == "on",
        },
    },
    size("guard", "refaults_per_minute", Bytes::ZERO, TIB, |s| &mut s.policy.guard.refaults_per_minute),
    share("guard", "refaults_share", percent(0), percent(100), |s| &mut s.policy.guard.refaults_share),
    time("guard", "backoff", s(1), s(30 * 86_400), |s| &mut s.policy.guard.backoff),
    time("guard", "backoff_max", s(1), s(30 * 86_400), |s| &mut s.policy.guard.backoff_max),
    Key { table: "guard", name: "swap_floor", kind: Kind::Floor { at: |s| &mut s.policy.guard.swap_floor } },
    Key { table: "guard", name: "max_swap_writes", kind: Kind::Budget { at: |s| &mut s.policy.guard.max_swap_writes } },
    share("slo", "promotions", Permyriad(1), percent(10), |s| &mut s.policy.slo.promotions),
    share("slo", "kept", percent(50), percent(100), |s| &mut s.policy.slo.kept),
    time("slo", "warm_up", Duration::ZERO, DAY, |s| &mut s.policy.slo.warm_up),
    // The steps of thresholds are between these.
    time("slo", "shortest", s(120), s(8 * 3600), |s| &mut s.policy.slo.shortest),
    time("slo", "longest", s(120), s(8 * 3600), |s| &mut s.policy.slo.longest),
    Key { table: "cost", name: "ssd_writes", kind: Kind::Budget { at: |s| &mut s.policy.cost.ssd_writes } },
    Key {
        table: "cost",
        name: "rotational_writes",
        kind: Kind::Budget { at: |s| &mut s.policy.cost.rotational_writes },
    },
    Key { table: "cost", name: "card_writes", kind: Kind::Budget { at: |s| &mut s.policy.cost.card_writes } },
    share("cost", "device_share", Permyriad(1), percent(100), |s| &mut s.policy.cost.device_share),
    Key {
        table: "cost",
        name: "on_battery",
        kind: Kind::Word {
            words: &["memory", "disk"],
            get: |s| s.policy.cost.on_battery.name(),
            set: |s, word| s.policy.cost.on_battery = OnBattery::from_name(word).unwrap_or_default(),
        },
    },
    Key { table: "cost", name: "swap_floor", kind: Kind::Floor { at: |s| &mut s.policy.cost.swap_floor } },
    time("hints", "cold_after", s(1), DAY, |s| &mut s.policy.hints.cold_after),
    time("hints", "pageout_after", s(1), DAY, |s| &mut s.policy.hints.pageout_after),
    share("hints", "cpu", Permyriad(10), percent(10_000), |s| &mut s.policy.hints.cpu),
    size("hints", "smallest", Bytes::ZERO, TIB, |s| &mut s.policy.hints.smallest),
    size("hints", "change", Bytes::ZERO, TIB, |s| &mut s.policy.hints.change),
    share("hints", "swap_free", Permyriad::ZERO, percent(100), |s| &mut s.policy.hints.swap_free),
    share("hints", "available", Permyriad::ZERO, percent(100), |s| &mut s.policy.hints.available),
    Key {
        table: "hints",
        name: "prefetch",
        kind: Kind::Word {
            words: &["off", "on"],
            get: |s| if s.policy.hints.prefetch { "on" } else { "off" },
            set: |s, word| s.policy.hints.prefetch = word == "on",
        },
    },
    // Two agings need half a second between them: the kernel counts ages in jiffies.
    time("history", "every", s(10), DAY, |s| &mut s.policy.history.every),
    size("history", "size", Bytes::ZERO, TIB, |s| &mut s.policy.history.size),
    share("history", "budget", Permyriad::ZERO, percent(10), |s| &mut s.policy.history.budget),
    Key {
        table: "cloud",
        name: "provider",
        kind: Kind::Word {
            words: &["auto", "ec2", "gcp", "azure"],
            get: |s| s.cloud.provider.name(),
            set: |s, word| s.cloud.provider = Provider::from_name(word).unwrap_or_default(),
        },
    },
    Key { table: "cloud", name: "endpoint", kind: Kind::Endpoint { at: |s| &mut s.cloud.endpoint } },
];

/// The tables, in the order in which they are shown.
pub const TABLES: [&str; 11] =
    ["idle", "presence", "stop", "sweep", "hibernate", "guard", "slo", "cost", "hints", "history", "cloud"];

/// The keys that a `[[group]]` may have.
pub const GROUP_KEYS: [&str; 6] = ["match", "unit", "class", "enforce", "keep", "older_than"];

/// Returns the index of a key in [`KEYS`] by its full name.
pub fn index(name: &str) -> Option<usize> {
    KEYS.iter().position(|key| key.full_name() == name)
}

impl Key {
    /// Returns the name with its table: `idle.for`.
    pub fn full_name(&self) -> String {
        if self.table.is_empty() { self.name.into() } else { format!("{}.{}", self.table, self.name) }
    }

    /// Returns the value as it is written in a file, without quotes and not rounded.
    pub fn text(&self, settings: &Settings) -> String {
        // The accessors return mutable references, so this needs a copy.
        let mut settings = settings.clone();
        match &self.kind {
            Kind::Word { get, .. } => get(&settings).into(),
            Kind::Time { at, .. } => time_text(*at(&mut settings)),
            Kind::Size { at, .. } => at(&mut settings).exact(),
            Kind::Share { at, .. } => at(&mut settings).exact(),
            Kind::Floor { at } => at(&mut settings).exact(),
            Kind::Budget { at } => budget_text(*at(&mut settings)),
            Kind::Endpoint { at } => endpoint_text(*at(&mut settings)),
        }
    }

    /// Sets the value. The error says what to write instead.
    pub fn set(&self, settings: &mut Settings, value: &DeValue<'_>) -> Result<(), String> {
        let usual = || self.text(&Settings::default());
        match &self.kind {
            Kind::Word { words, set, .. } => set(settings, word(value, words)?),
            Kind::Time { at, min, max } => {
                *at(settings) = within(parse_time(value, &usual())?, *min, *max, time_text)?;
            }
            Kind::Size { at, min, max } => {
                *at(settings) = within(parse_size(value, &usual())?, *min, *max, Bytes::exact)?;
            }
            Kind::Share { at, min, max } => {
                *at(settings) = within(parse_share(value, &usual())?, *min, *max, Permyriad::exact)?;
            }
            Kind::Floor { at } => *at(settings) = parse_amount(value, &usual())?,
            Kind::Budget { at } => *at(settings) = parse_budget(value)?,
            Kind::Endpoint { at } => *at(settings) = parse_endpoint(value, &usual())?,
        }
        Ok(())
    }
}

fn within<T: PartialOrd + Copy>(value: T, min: T, max: T, text: fn(T) -> String) -> Result<T, String> {
    if value < min || value > max {
        return Err(format!("must be between \"{}\" and \"{}\"", text(min), text(max)));
    }
    Ok(value)
}

/// Returns the text of a value with a unit, or an error.
fn quantity<'a>(value: &'a DeValue<'_>, kind: &str, needs: &str, usual: &str) -> Result<&'a str, String> {
    match value {
        DeValue::String(text) if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) && text != "0" => {
            Err(format!("a {kind} needs {needs}, e.g. \"{usual}\""))
        }
        DeValue::String(text) => Ok(text),
        DeValue::Integer(_) | DeValue::Float(_) => Err(format!("a {kind} needs {needs}, e.g. \"{usual}\"")),
        _ => Err(format!("a {kind} is needed, e.g. \"{usual}\"")),
    }
}

fn parse_time(value: &DeValue<'_>, usual: &str) -> Result<Duration, String> {
    let text = quantity(value, "duration", "a unit", usual)?;
    if text == "0" {
        return Err("a duration needs a unit, e.g. \"0s\"".into());
    }
    // Longer numbers make no sense, and sums of them overflow in humantime.
    let sane = text.len() <= 64 && text.split(|c: char| !c.is_ascii_digit()).all(|digits| digits.len() <= 9);
    sane.then(|| humantime::parse_duration(text).ok())
        .flatten()
        .ok_or_else(|| format!("not a duration; write numbers with ms, s, m, h or d, e.g. \"{usual}\""))
}

/// Parses a switch.
pub fn parse_switch(value: &DeValue<'_>) -> Result<bool, String> {
    match value {
        DeValue::Boolean(on) => Ok(*on),
        _ => Err("must be true or false, without quotes".into()),
    }
}

/// Parses the minimum age of a rule. Shorter ages would need more than one aging in two seconds.
pub fn parse_age(value: &DeValue<'_>) -> Result<MinAge, String> {
    if matches!(value, DeValue::String(text) if text == AUTO) {
        return Ok(MinAge::Learned);
    }
    match parse_time(value, "2m").map_err(|why| format!("{why}, or \"{AUTO}\""))? {
        Duration::ZERO => Ok(MinAge::Any),
        age => within(age, s(4), DAY, time_text)
            .map(MinAge::Time)
            .map_err(|why| format!("{why}, or \"0s\" for memory of any age, or \"{AUTO}\"")),
    }
}

/// The word for a minimum age that the daemon learns.
const AUTO: &str = "auto";

/// Returns the minimum age of a rule as it is written in a file.
pub fn age_text(age: MinAge) -> String {
    match age {
        MinAge::Any => time_text(Duration::ZERO),
        MinAge::Time(age) => time_text(age),
        MinAge::Learned => AUTO.into(),
    }
}

fn parse_size(value: &DeValue<'_>, usual: &str) -> Result<Bytes, String> {
    let text = quantity(value, "size", "a unit", usual)?;
    text.parse().map_err(|_| {
        // Many readers take these units for powers of 1000.
        let decimal = ["kB", "KB", "MB", "GB", "TB"].iter().find(|unit| text.ends_with(**unit));
        match decimal {
            Some(unit) => format!(
                "not a size: units are powers of 1024, so write \"{}iB\" for \"{unit}\"",
                unit[..1].to_ascii_uppercase()
            ),
            None => format!("not a size; write a number with KiB, MiB, GiB or TiB, e.g. \"{usual}\""),
        }
    })
}

fn parse_share(value: &DeValue<'_>, usual: &str) -> Result<Permyriad, String> {
    let text = quantity(value, "share", "a percent sign", usual)?;
    text.parse().map_err(|_| format!("not a share; write it in percent, e.g. \"{usual}\""))
}

/// Parses a size or a share, but not `max`.
pub fn parse_amount(value: &DeValue<'_>, usual: &str) -> Result<Amount, String> {
    let text = quantity(value, "size or share", "a unit", usual)?;
    match text.parse() {
        Ok(Amount::Max) => Err("a size or a share is needed; for all memory write \"100%\"".into()),
        Ok(amount) => Ok(amount),
        Err(_) if text.ends_with('%') => {
            parse_share(value, usual).and_then(|_| Err("a share cannot be above \"100%\"".into()))
        }
        Err(_) => match parse_size(value, usual) {
            Err(why) if why.contains("1024") => Err(why),
            _ => Err(format!("neither a size nor a share, e.g. \"64MiB\" or \"{usual}\"")),
        },
    }
}

fn parse_budget(value: &DeValue<'_>) -> Result<Option<Budget>, String> {
    let expected = || "an allowance is needed, e.g. \"20GiB/day\" or \"1GiB/hour\", or \"unlimited\"".to_owned();
    match value {
        DeValue::String(text) if text == "unlimited" => Ok(None),
        DeValue::String(text) => text.parse().map(Some).map_err(|_| expected()),
        _ => Err(expected()),
    }
}

/// Parses an address without a path. A name would need a lookup, and its answer could be forged.
fn parse_endpoint(value: &DeValue<'_>, usual: &str) -> Result<SocketAddr, String> {
    let parse = |text: &str| {
        let address = text.strip_prefix("http://")?;
        let address = address.strip_suffix('/').unwrap_or(address);
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let with_port = |address: IpAddr| SocketAddr::new(address, 80);
        address.parse().ok().or_else(|| bare.parse().ok().map(with_port)).filter(|address| address.port() != 0)
    };
    let text = if let DeValue::String(text) = value { &**text } else { "" };
    parse(text).ok_or_else(|| {
        format!(
            "an address in numbers is needed, e.g. \"{usual}\", \"http://[fd00:ec2::254]\" or \"http://127.0.0.1:1338\""
        )
    })
}

/// Returns the word of `words` that the value is.
pub fn word<'a>(value: &DeValue<'_>, words: &[&'a str]) -> Result<&'a str, String> {
    if let DeValue::String(text) = value
        && let Some(word) = words.iter().find(|word| ***word == **text)
    {
        return Ok(word);
    }
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let Some((last, rest)) = quoted.split_last() else { return Err(String::new()) };
    Err(format!("must be {} or {last}", rest.join(", ")))
}

/// Returns the class with this name.
pub fn parse_class(name: &str) -> Option<Class> {
    [Class::Foreground, Class::Background, Class::Protected].into_iter().find(|class| class.name() == name)
}

/// The names of all classes.
pub const CLASSES: [&str; 3] = ["foreground", "background", "protected"];

/// Formats a duration as in a file: `1h 30m`.
pub fn time_text(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn budget_text(budget: Option<Budget>) -> String {
    budget.map_or_else(|| "unlimited".into(), Budget::exact)
}

fn endpoint_text(endpoint: SocketAddr) -> String {
    match (endpoint.port(), endpoint) {
        (80, SocketAddr::V4(address)) => format!("http://{}", address.ip()),
        (80, SocketAddr::V6(address)) => format!("http://[{}]", address.ip()),
        _ => format!("http://{endpoint}"),
    }
}

/// Returns the word of `words` that was probably meant.
pub fn meant<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let worth = (word.chars().count() / 3).max(1);
    words
        .into_iter()
        .map(|candidate| (distance(&word.to_lowercase().replace('-', "_"), candidate), candidate))
        .filter(|(distance, _)| *distance <= worth)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the number of letters to add, remove, change or swap with the next to turn `b` into `a`.
#[expect(clippy::indexing_slicing, reason = "each row and column is one that was made before")]
fn distance(a: &str, b: &str) -> usize {
    // A long key is more likely hostile than misspelt.
    if a.len() > 40 {
        return usize::MAX;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_default_is_within_its_range_and_reads_back() {
        let defaults = Settings::default();
        for key in &KEYS {
            let mut settings = defaults.clone();
            let text = key.text(&defaults);
            assert_eq!(key.set(&mut settings, &DeValue::String(text.clone().into())), Ok(()), "{}", key.full_name());
            assert_eq!(settings, defaults, "{} = {text}", key.full_name());
        }
    }

    #[test]
    fn a_misspelt_word_finds_the_word_that_was_meant() {
        for (word, expected) in [
            ("clas", Some("class")),
            ("calss", Some("class")),
            ("Class", Some("class")),
            ("keep_", Some("keep")),
            ("mtach", Some("match")),
            ("banana", None),
            ("", None),
        ] {
            assert_eq!(meant(word, GROUP_KEYS), expected, "{word}");
        }
    }

    #[test]
    fn an_endpoint_is_an_address_in_numbers() {
        let parse = |text: &str| parse_endpoint(&DeValue::String(text.to_owned().into()), "x").ok();
        for text in ["http://169.254.169.254", "http://[fd00:ec2::254]", "http://127.0.0.1:1338", "http://[::1]:81"] {
            assert_eq!(parse(text).map(endpoint_text).as_deref(), Some(text));
        }
        assert_eq!(parse("http://10.0.0.1/").map(endpoint_text).as_deref(), Some("http://10.0.0.1"));
        for text in [
            "169.254.169.254",
            "https://1.2.3.4",
            "http://a.b",
            "http://1.2.3.4/latest",
            "http://1.2.3.4:0",
            "http://u@1.2.3.4",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn two_letters_that_are_swapped_are_one_mistake() {
        for (a, b, mistakes) in [
            ("", "", 0),
            ("a", "", 1),
            ("", "ab", 2),
            ("class", "class", 0),
            ("calss", "class", 1),
            ("ab", "ba", 1),
            ("badc", "abcd", 2),
            ("kitten", "sitting", 3),
            ("keep", "class", 5),
        ] {
            assert_eq!(distance(a, b), mistakes, "{a} {b}");
        }
    }

    #[test]
    fn one_letter_in_three_may_be_wrong_and_nothing_is_guessed_of_a_long_word() {
        assert_eq!(meant("pritectud", CLASSES), Some("protected"));
        assert_eq!(meant("potectd", CLASSES), Some("protected"));
        assert_eq!(meant("potct", CLASSES), None);
        let long = |letters| "a".repeat(letters);
        assert_eq!(
            (distance(&long(40), ""), distance(&long(41), ""), distance(&long(42), "")),
            (40, usize::MAX, usize::MAX)
        );
    }

    fn string(text: &str) -> DeValue<'_> {
        DeValue::String(text.into())
    }

    #[test]
    fn a_time_of_many_digits_or_many_parts_is_none() {
        let time = |text: &str| parse_time(&string(text), "30s").ok();
        assert_eq!(time("123456789ms"), Some(Duration::from_millis(123_456_789)));
        assert_eq!(time("1m 30s"), Some(Duration::from_secs(90)));
        assert_eq!(time("1234567890ms"), None);
        assert_eq!(time(&"1s ".repeat(30)), None);
    }

    #[test]
    fn an_amount_that_is_none_is_refused_with_the_way_to_write_it() {
        let amount = |text: &str| parse_amount(&string(text), "25%");
        assert_eq!(amount("64MiB"), Ok(Amount::Bytes(Bytes::mib(64))));
        assert_eq!(amount("25%"), Ok(Amount::Share(Permyriad::percent(25))));
        for (text, why) in [
            ("max", "a size or a share is needed; for all memory write \"100%\""),
            ("175%", "a share cannot be above \"100%\""),
            ("x%", "not a share; write it in percent, e.g. \"25%\""),
            ("64MB", "not a size: units are powers of 1024, so write \"MiB\" for \"MB\""),
            ("much", "neither a size nor a share, e.g. \"64MiB\" or \"25%\""),
        ] {
            assert_eq!(amount(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_allowance_is_an_amount_in_a_time_or_unlimited() {
        assert_eq!(parse_budget(&string("unlimited")), Ok(None));
        assert_eq!(parse_budget(&string("1GiB/hour")), Ok(Some(Budget { bytes: Bytes::mib(1024), hours: 1 })));
        assert!(parse_budget(&string("1GiB")).is_err() && parse_budget(&string("none")).is_err());
    }

    #[test]
    fn each_class_has_its_name() {
        let classes = CLASSES.map(parse_class);
        assert_eq!(classes, [Some(Class::Foreground), Some(Class::Background), Some(Class::Protected)]);
        assert_eq!(parse_class("other"), None);
    }

    #[test]
    fn an_age_is_written_as_it_is_read() {
        for text in ["auto", "0s", "2m", "1h 30m"] {
            let age = parse_age(&string(text)).expect(text);
            assert_eq!(age_text(age), text);
        }
    }

    proptest! {
        #[test]
        fn no_value_makes_a_parser_panic(text in "[0-9]{0,25}[a-zA-Z%/. ]{0,4}[0-9]{0,20}[a-z]{0,3}|\\PC{0,30}") {
            for key in &KEYS {
                let _ = key.set(&mut Settings::default(), &DeValue::String(text.clone().into()));
            }
        }

        #[test]
        fn times_are_shown_exactly(millis in 0u64..1 << 40) {
            let time = Duration::from_millis(millis);
            prop_assert_eq!(humantime::parse_duration(&time_text(time)), Ok(time));
        }
    }
}
