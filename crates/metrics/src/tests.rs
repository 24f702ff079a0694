//! The text of samples and of a status, and a reader of it that is stricter than Prometheus.

use std::collections::BTreeSet;
use std::path::Path;

use omr_history::{Since, Store};
use omr_policy::age::Promotions;
use omr_testkit::FakeRoot;
use omr_units::GroupId;

use super::families::{ALL, Kind};
use super::groups::label;
use super::*;

/// Half a day after midnight.
/// The part of a forecast.
const LEAVING: &str = r#"{"anon":1,"swap_cache":0,"clean_file":0,"dirty_file":0,"slab":0,"zram":0}"#;

const NOW: Duration = Duration::from_secs(1_795_003_200 + 600);

/// 100 MiB, of which 40 MiB are anonymous. 10 to 20 MiB were not used for each age up to 30 min;
/// longer ages were not observed.
fn sample(path: &str, mib: u64) -> Sample {
    let idle = |age: Duration| match age.as_secs() {
        0..=1800 => Bounds { least: Bytes::mib(10), most: Bytes::mib(20) },
        _ => Bounds { least: Bytes::ZERO, most: Bytes::mib(40) },
    };
    let promoted = Bounds { least: Bytes::kib(32), most: Bytes::kib(64) };
    Sample {
        time: NOW - Duration::from_secs(60),
        current: Bytes::mib(mib),
        file: Bytes::mib(60),
        swap: Some(Bytes::mib(8)),
        idle: Some(Idle { ago: Duration::ZERO, memory: Bytes::mib(40), bounds: AGES.map(|age| Some(idle(age))) }),
        since: Some(Since {
            over: Duration::from_secs(600),
            refaults_anon: None,
            refaults_file: None,
            swapped_in: None,
            stalled: Some(Duration::from_secs(6)),
            stalled_full: None,
            reclaimed: None,
        }),
        promotions: Some(Promotions { over: Duration::from_secs(600), bounds: [promoted; AGES.len()] }),
        threshold: Some(Duration::from_secs(700)),
        ..Sample::of_anon(path, GroupId(7), Bytes::mib(40))
    }
}

fn records(samples: Vec<Sample>) -> Records {
    let sums = |sample: &Sample| (sample.group.to_string_lossy().into_owned(), sample.promotions.expect("some").bounds);
    let promotions = samples.iter().map(sums).collect();
    Records { sampled: samples.first().map(|sample| sample.time), last: samples, promotions, unreadable: Vec::new() }
}

fn status() -> Status {
    let mut status: Status =
        serde_json::from_str(include_str!("../../control/src/status/example.json")).expect("a status");
    let counters = r#"{"decisions":[{"act":"hold","reason":"nothing-to-gain","count":3,"time":{"secs":61,"nanos":500000000}}],
        "reclaimed":[{"method":"lru_gen","anon":4096,"file":0,"demoted":0}],"came_back":4096,"regret":{"secs":0,"nanos":7000000},
        "swap_written":8192,"stops":{"within":[0,1,2,2,2,2,2,2,2],"count":2,"sum":{"secs":0,"nanos":27000000}},"cpu":{"secs":1,"nanos":0}}"#;
    status.counters = Some(serde_json::from_str(counters).expect("counters"));
    status.policy = Some(serde_json::from_str(r#"{"hash":"0badf00d","promotions":2000}"#).expect("a policy"));
    status
}

/// The name, the labels and the value of a line.
type Value = (String, Vec<(String, String)>, f64);

/// The lines of values, after all lines were checked.
fn values(text: &str, format: Format) -> Vec<Value> {
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    let mut described: BTreeSet<String> = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            if comment == "EOF" {
                continue;
            }
            let mut words = comment.splitn(3, ' ');
            let (what, name) = (words.next().expect("a word"), words.next().expect("a name").to_owned());
            if what == "TYPE" {
                assert!(described.insert(name.clone()), "{name} is in two places");
                current = name;
            } else {
                assert_eq!(name, current, "{what}");
                assert!(matches!(what, "HELP") || (what == "UNIT" && format == Format::OpenMetrics), "{line}");
                assert!(what != "UNIT" || name.ends_with(words.next().expect("a unit")), "{line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        assert!(seen.insert(series.to_owned()), "twice: {series}");
        let (name, labels) = series.split_once('{').map_or((series, ""), |(name, rest)| (name, rest));
        assert!(name.starts_with(&current) && !current.is_empty(), "{line} is not of {current}");
        let mut rest = labels.strip_suffix('}').unwrap_or(labels);
        let mut read = Vec::new();
        while !rest.is_empty() {
            let (label, after) = rest.split_once("=\"").expect("a label");
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect("a quote") {
                    (_, '\\') => value.push(match chars.next().expect("a character").1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("\\{c}"),
                    }),
                    (at, '"') => break at,
                    (_, c) => value.push(c),
                }
            };
            read.push((label.to_owned(), value));
            rest = after[end + 1..].trim_start_matches(',');
        }
        found.push((name.to_owned(), read, value.parse().expect("a number")));
    }
    found
}

fn lines<'t>(text: &'t str, begin: &str) -> Vec<&'t str> {
    text.lines().filter(|line| line.starts_with(begin)).collect()
}

#[test]
fn ages_are_cumulative_from_below_and_unknown_ages_have_no_line() {
    let text = text(None, &records(vec![sample("", 100), sample("a", 50)]), NOW, Options::default());
    let mib = |n: u64| (n << 20).to_string();
    let of = |bound: &str, le: &str| {
        let begin = format!("omr_memory_age_bytes{{group=\"a\",le=\"{le}\",bound=\"{bound}\"}} ");
        lines(&text, &begin).first().and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.to_owned())
    };
    // Of 40 MiB, 10 to 20 MiB were not used for 120 s, so 20 to 30 MiB were.
    assert_eq!((of("least", "120"), of("most", "120")), (Some(mib(20)), Some(mib(30))));
    assert_eq!((of("least", "3600"), of("most", "3600")), (None, None), "not observed for an hour");
    assert_eq!((of("least", "+Inf"), of("most", "+Inf")), (Some(mib(40)), Some(mib(40))));
    assert_eq!(
        lines(&text, "omr_working_set_bytes{group=\"a\",bound=\"most\"}"),
        [format!("omr_working_set_bytes{{group=\"a\",bound=\"most\"}} {}", mib(30))]
    );
    assert_eq!(lines(&text, "omr_stall_ratio{group=\"a\"}"), ["omr_stall_ratio{group=\"a\"} 0.01"]);
    // 64 KiB in ten minutes of 20 MiB: 0.0312 % in a minute.
    assert_eq!(
        lines(&text, "omr_slo_promotion_ratio{group=\"a\",bound=\"most\"}"),
        ["omr_slo_promotion_ratio{group=\"a\",bound=\"most\"} 0.000312"]
    );
}

#[test]
fn without_the_daemon_its_figures_are_absent_and_not_zero() {
    let alone = text(None, &Records::default(), NOW, Options::default());
    assert_eq!(
        alone,
        "# TYPE omr_up gauge\n# HELP omr_up 1 if the daemon answers, else 0.\nomr_up 0\n# TYPE omr_history_readable \
         gauge\n# HELP omr_history_readable 1 if the history of groups can be read in full, else 0.\n\
         omr_history_readable 1\n# EOF\n"
    );
    let unreadable = Records { unreadable: vec!["no".into()], ..Records::default() };
    assert!(text(None, &unreadable, NOW, Options::default()).contains("\nomr_history_readable 0\n"));
    // An older daemon tells no counters.
    let old = Status { counters: None, policy: None, ..status() };
    let old = text(Some(&old), &Records::default(), NOW, Options::default());
    assert!(old.contains("\nomr_up 1\n") && old.contains("omr_held_out_bytes 0\n"), "{old}");
    for absent in ["omr_decision", "omr_stop", "omr_slo_limit", "omr_policy", "omr_cpu"] {
        assert_eq!(lines(&old, absent), [""; 0], "{absent}");
    }
}

#[test]
fn every_metric_is_written_in_both_formats_and_in_the_document() {
    let mut status = status();
    if let Some(image) = &mut status.image {
        image.write_ms_at_most = Some(1500);
        let forecast = r#"{"image":1,"in_use":2,"fast":3,"largest":4,"must_stay":5,"could_leave":LEAVING,"per_cpu":6,"zram":7,
            "zswap":8}"#;
        image.forecast = Some(serde_json::from_str(&forecast.replace("LEAVING", LEAVING)).expect("a forecast"));
    }
    let document = include_str!("../../../docs/use/metrics.md");
    let records = records(vec![sample("", 100), sample("a", 50)]);
    for format in [Format::OpenMetrics, Format::Prometheus] {
        let text = text(Some(&status), &records, NOW, Options { groups: 20, format });
        let values = values(&text, format);
        assert_eq!(text.ends_with("# EOF\n"), format == Format::OpenMetrics);
        for family in ALL {
            let name = match family.kind {
                Kind::Counter => format!("{}_total", family.name),
                Kind::Info => format!("{}_info", family.name),
                Kind::Histogram => format!("{}_count", family.name),
                Kind::Gauge => family.name.to_owned(),
            };
            assert!(values.iter().any(|(found, ..)| *found == name), "{name} in {text}");
            let shown = if family.kind == Kind::Histogram { family.name } else { name.as_str() };
            assert!(document.contains(&format!("| `{shown}`")), "docs/use/metrics.md has no {shown}");
        }
    }
    let text = text(Some(&status), &records, NOW, Options { groups: 20, format: Format::Prometheus });
    assert!(text.contains("# TYPE omr_decisions_total counter\n# HELP omr_decisions_total "), "{text}");
    assert!(text.contains("# TYPE omr_policy_info gauge\n"), "{text}");
}

#[test]
fn hostile_names_are_escaped_cut_and_never_make_the_same_line_twice() {
    let long = "x".repeat(4000);
    let longer = format!("{long}y");
    let names = ["", "a\"b", "a\\b", "a\nb", "a\\nb", "other", "/", "\u{1b}[31m", "}", "a,le=\"5", "é", &long, &longer];
    let samples: Vec<Sample> = names.iter().map(|name| sample(name, 100)).collect();
    let labels: BTreeSet<String> = ["a\"b", "a\\b", "a\\nb", "\\u{1b}[31m", "}", "a,le=\"5", "é", "/", "other"]
        .map(str::to_owned)
        .into_iter()
        .chain([label(&long), label(&longer)])
        .collect();
    for format in [Format::OpenMetrics, Format::Prometheus] {
        let text = text(None, &records(samples.clone()), NOW, Options { groups: 200, format });
        let found: BTreeSet<String> = values(&text, format)
            .into_iter()
            .filter(|(name, ..)| name == "omr_memory_bytes")
            .map(|(_, labels, _)| labels[0].1.clone())
            .collect();
        assert_eq!(found, labels);
        assert!(text.lines().all(|line| line.len() < 300 && !line.contains('\u{1b}')));
    }
    // Two names with one label: the second one is among the others.
    let both = records(vec![sample("a\nb", 100), sample("a\\nb", 100)]);
    let text = text(None, &both, NOW, Options::default());
    assert_eq!(
        lines(&text, "omr_memory_bytes"),
        ["omr_memory_bytes{group=\"a\\\\nb\"} 104857600", "omr_memory_bytes{group=\"other\"} 104857600"]
    );
}

#[test]
fn ten_thousand_groups_are_twenty_and_the_others_each_counted_once() {
    let mut samples = vec![sample("", 20_000)];
    for number in 0..5000 {
        samples.push(sample(&format!("user.slice/{number}"), if number < 20 { 50 } else { 2 }));
        // Below it, so it is in the figure of the group above.
        samples.push(sample(&format!("user.slice/{number}/below"), 1));
    }
    let text = text(Some(&status()), &records(samples), NOW, Options::default());
    values(&text, Format::OpenMetrics);
    let memory = lines(&text, "omr_memory_bytes");
    assert_eq!(memory.len(), 1 + 20 + 1);
    assert_eq!(memory[21], format!("omr_memory_bytes{{group=\"other\"}} {}", (4980_u64 * 2 + 20) << 20));
    assert!(text.lines().count() < 2000, "{}", text.lines().count());
    // A sum with an unknown part is unknown.
    let mut some = vec![sample("a", 3), sample("b", 2), sample("c", 1)];
    some[2].swap = None;
    let text = super::text(None, &records(some), NOW, Options { groups: 1, ..Options::default() });
    assert_eq!(lines(&text, "omr_swap_bytes"), ["omr_swap_bytes{group=\"a\"} 8388608"]);
    assert_eq!(lines(&text, "omr_memory_bytes{group=\"other\"}"), ["omr_memory_bytes{group=\"other\"} 3145728"]);
}

#[test]
fn promotions_are_summed_up_since_midnight_and_an_old_sample_says_only_its_age() {
    let root = FakeRoot::new();
    let mut store = Store::new(&paths::history(root.path()), "b", Bytes::mib(64));
    let midnight = NOW.as_secs() / DAY * DAY;
    for time in [midnight - 600, midnight, midnight + 600] {
        store.add(Duration::from_secs(time), &[sample("", 100), sample("a", 50)]);
    }
    let at = |seconds| read(root.path(), None, Duration::from_secs(seconds), Options::default());
    let promoted = |text: &str| -> Vec<String> {
        lines(text, "omr_promotions_bytes_total{group=\"a\",ge=\"30\",bound=\"least\"}")
            .iter()
            .map(|line| line.rsplit_once(' ').expect("a value").1.to_owned())
            .collect()
    };
    assert_eq!(promoted(&at(midnight + 60)), [(32 << 10).to_string()]);
    assert_eq!(promoted(&at(midnight + 660)), [(64 << 10).to_string()]);
    let later = at(midnight + 600 + 4 * 3600);
    assert_eq!(lines(&later, "omr_memory_bytes"), [""; 0]);
    assert_eq!(lines(&later, "omr_history_sample_age_seconds"), ["omr_history_sample_age_seconds 14400"]);
    let days_later = at(midnight + 600 + 4 * DAY);
    assert_eq!(lines(&days_later, "omr_history_sample_age_seconds"), ["omr_history_sample_age_seconds 345600"]);
    // The control: no history, no age.
    let none = read(Path::new("/nonexistent"), None, NOW, Options::default());
    assert_eq!(lines(&none, "omr_history_sample_age_seconds"), [""; 0]);
}
