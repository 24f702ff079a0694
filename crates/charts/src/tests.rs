//! Charts of histories and ledgers that are written as the daemon writes them.

use std::collections::BTreeSet;
use std::path::Path;

use omr_control::status::Status;
use omr_history::ledger::{HintLine, Ledger, RegretLine, Swept};
use omr_history::{AGES, Compressed, Cost, Idle, Machine, Sample, Since, Store, held_out, ledger::Entry};
use omr_policy::End;
use omr_policy::Objective;
use omr_policy::age::{Bounds, Promotions};
use omr_policy::rank::{HintKind, ProcessId};
use omr_policy::threshold::PromotionRate;
use omr_testkit::FakeRoot;
use omr_units::{Budget, Bytes, GroupId};

use super::*;

/// The time of the last sample.
const END: u64 = 1_795_000_000;
const NOW: Now = Now { threshold: None, objective: PromotionRate::FAST, budget: None };

/// A group of 100 MiB, of which 40 MiB are page cache, and `cold` MiB were not used for any time.
fn sample(time: u64, group: &str, cold: u64) -> Sample {
    let bounds = Bounds { least: Bytes::mib(cold), most: Bytes::mib(cold + 10) };
    let promoted = Bounds { least: Bytes::kib(32), most: Bytes::kib(64) };
    Sample {
        time: Duration::from_secs(time),
        boot: "b".into(),
        group: Path::new(group).into(),
        id: GroupId(7),
        current: Bytes::mib(100),
        peak: Bytes::mib(100),
        anon: Bytes::mib(60),
        file: Bytes::mib(40),
        shmem: Bytes::ZERO,
        swap: Some(Bytes::mib(8)),
        idle: Some(Idle { ago: Duration::ZERO, memory: Bytes::mib(60), bounds: [Some(bounds); AGES.len()] }),
        since: Some(Since {
            over: Duration::from_secs(600),
            refaults_anon: Some(Bytes::mib(6)),
            refaults_file: None,
            swapped_in: None,
            stalled: Some(Duration::from_millis(1200)),
            stalled_full: Some(Duration::from_millis(300)),
            reclaimed: Some(Bytes::ZERO),
        }),
        promotions: Some(Promotions { over: Duration::from_secs(600), bounds: [promoted; AGES.len()] }),
        nodes: Vec::new(),
        threshold: None,
        machine: None,
        cost: Some(Cost { agings: 3, cpu: Duration::from_millis(60) }),
    }
}

/// Rounds of these samples, the last one at [`END`], ten minutes apart.
fn history(rounds: &[&[Sample]]) -> FakeRoot {
    let root = FakeRoot::new();
    let mut store = Store::new(&paths::history(root.path()), "b", Bytes::mib(64));
    for (number, round) in rounds.iter().enumerate() {
        let time = END - 600 * (rounds.len() - 1 - number) as u64;
        store.add(Duration::from_secs(time), round);
    }
    root
}

fn window(seconds: u64, columns: usize) -> Window {
    Window::ending(Duration::from_secs(END), Duration::from_secs(seconds), columns)
}

fn sweep(time: u64, group: &str) -> Swept {
    Swept {
        time,
        sweep: 1,
        group: group.into(),
        id: GroupId(7),
        observed: false,
        asked: Bytes::mib(16),
        freed: Bytes::mib(12),
        freed_anon: Bytes::mib(8),
        freed_file: Bytes::mib(4),
        swapped_out: Bytes::mib(8),
        demoted: Bytes::ZERO,
        cpu_ms: 30,
        wall_ms: 900,
        writes: 4,
        longest_write_ms: 17,
        stop_ms: None,
        method: None,
        last_write_end_ns: 1,
        start_reason: "idle for 60 s".into(),
        stop_reason: "done".into(),
        end: End::Complete,
        error: None,
    }
}

/// Two samples of the machine and of one group, and a third ten minutes later.
fn machine() -> FakeRoot {
    let round = |cold| [sample(0, "", cold), sample(0, "a.slice", cold), sample(0, "a.slice/b", cold)];
    history(&[&round(10), &round(20), &round(30)])
}

fn values(series: &Series) -> Vec<Option<(u64, u64)>> {
    series.values.iter().map(|of| of.map(|of| (of.least >> 20, of.most >> 20))).collect()
}

fn named<'c>(chart: &'c Chart, name: &str) -> &'c Series {
    chart.series.iter().find(|series| series.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn a_heatmap_has_a_row_for_each_age_and_unknown_times_stay_unknown() {
    let root = machine();
    // Forty minutes in eight columns of five minutes. Of the first ten minutes there is no sample.
    let charts = read(root.path(), "a.slice", window(2400, 8), &NOW).expect("charts");
    assert_eq!(charts.unused.series.len(), AGES.len());
    let expected =
        [None, None, Some((10, 20)), Some((10, 20)), Some((20, 30)), Some((20, 30)), Some((30, 40)), Some((30, 40))];
    for (series, age) in charts.unused.series.iter().zip(AGES) {
        assert_eq!(series.shape, Shape::Age(age.as_secs()));
        assert_eq!(values(series), expected, "{age:?}");
    }
    assert_eq!(charts.unused.largest(), 40 << 20);
    let table = charts.unused.table(u64::MAX, |time| format!("{}", END + 1 - time));
    assert_eq!(table.rows.len(), 6, "columns without a figure are left out");
    assert_eq!(table.rows[0][..2], ["1800", "10.0 MiB to 20.0 MiB"].map(String::from));
    assert_eq!(table.head[..2], ["time", "30 s"].map(String::from));
}

#[test]
fn memory_that_was_not_observed_for_an_age_is_unknown_and_not_zero() {
    let mut not_observed = sample(0, "a", 0);
    if let Some(idle) = &mut not_observed.idle {
        idle.bounds[12] = Some(Bounds { least: Bytes::ZERO, most: idle.memory });
        idle.bounds[0] = Some(Bounds { least: Bytes::ZERO, most: Bytes::ZERO });
    }
    let root = history(&[&[not_observed]]);
    let charts = read(root.path(), "a", window(600, 1), &NOW).expect("charts");
    assert_eq!(charts.unused.series[12].values, [None]);
    assert_eq!(charts.unused.series[0].values, [Some(Range::exact(0))], "all of it was used: that is known");
    let without = Sample { idle: None, promotions: None, since: None, ..sample(0, "a", 0) };
    let root = history(&[&[without]]);
    let charts = read(root.path(), "a", window(600, 1), &NOW).expect("charts");
    assert!(charts.unused.is_empty() && charts.promise.is_empty());
    assert!(charts.unused.notes.iter().any(|note| note.contains("omr doctor")), "{:?}", charts.unused.notes);
    assert_eq!(named(&charts.place, "age unknown").values, [Some(Range::exact(60 << 20))]);
    assert_eq!(named(&charts.place, "cold").values, [None]);
}

#[test]
fn thresholds_places_of_swap_and_images_of_the_past_are_shown_where_they_are_recorded() {
    let threshold = |seconds| Some(Duration::from_secs(seconds));
    let group = |seconds| Sample { threshold: threshold(seconds), ..sample(0, "a", 10) };
    let machine = Machine {
        free: Some(Bytes::mib(7)),
        zram: None,
        zswap: Some(Compressed { stored: Bytes::mib(4), occupied: Bytes::mib(1) }),
        disk: Some(Bytes::mib(6)),
        image: Some(Bytes::mib(50)),
    };
    let machine = || Sample { machine: Some(machine), ..sample(0, "", 10) };
    let root = history(&[&[machine(), group(300)], &[sample(0, "", 10), sample(0, "a", 10)]]);
    let charts = read(root.path(), "a", window(1200, 2), &NOW).expect("charts");
    assert_eq!(charts.unused.thresholds, [Some(300), None]);
    assert!(!charts.unused.notes.iter().any(|note| note.contains("recorded")), "{:?}", charts.unused.notes);
    assert_eq!(values(named(&charts.place, "swap")), [Some((8, 8)); 2]);
    let names = |chart: &Chart| chart.series.iter().map(|series| series.name.clone()).collect::<Vec<_>>();
    assert!(!names(&charts.place).contains(&"free".to_owned()), "a group has no free memory");
    let waited = |name| named(&charts.waited, name).values[0];
    assert_eq!(waited("all tasks waited (PSI)"), Some(Range::exact(300)));
    assert_eq!(waited("some task waited (PSI)"), Some(Range::exact(1200)), "the control");

    assert_eq!(values(named(&charts.sleep, "image, at most")), [Some((50, 50)), None], "that of the machine");

    let charts = read(root.path(), "", window(1200, 2), &NOW).expect("charts");
    assert_eq!(values(named(&charts.place, "in zswap")), [Some((4, 4)), None]);
    assert_eq!(values(named(&charts.place, "swap on disk")), [Some((2, 2)), None], "without that in zswap");
    assert_eq!(values(named(&charts.place, "free")), [Some((7, 7)), None]);
    assert_eq!(values(named(&charts.place, "swap")), [None, Some((8, 8))], "an older omr wrote the second one");
    assert!(!names(&charts.place).contains(&"in zram".to_owned()), "there is no zram");
    assert_eq!(values(named(&charts.sleep, "image, at most")), [Some((50, 50)), None]);
    assert_eq!(charts.unused.thresholds, [None, None]);

    // Without a record, the promotions are judged at the threshold of now.
    let root = history(&[&[sample(0, "", 10), sample(0, "a", 10)]]);
    let charts = read(root.path(), "a", window(600, 1), &NOW).expect("charts");
    assert!(charts.unused.notes.iter().any(|note| note.contains("no thresholds are recorded")));
    assert!(charts.promise.notes.iter().any(|note| note.contains("judged at 2 min")), "{:?}", charts.promise.notes);
}

#[test]
fn promotions_are_a_share_of_the_working_set_in_a_minute() {
    let root = machine();
    let now = Now { threshold: Some(Duration::from_secs(1000)), ..NOW };
    let charts = read(root.path(), "a.slice", window(600, 1), &now).expect("charts");
    // 32 to 64 KiB in 10 min, of 60 MiB less 30 to 40 MiB that were cold.
    let of = |kib: u64, mib: u64| kib * 1_000_000 / 10 / (mib << 10);
    assert_eq!(charts.promise.series[0].values, [Some(Range { least: of(32, 30), most: of(64, 20) })]);
    assert_eq!(charts.promise.limit, Some(2000));
    assert_eq!(charts.promise.notes[0], "judged at 15 min, the longest known age below the threshold of now, 16 min");
    assert_eq!(charts.unused.threshold, Some(1000));
    // A group of which all may be cold: the share has no bound.
    let root = history(&[&[sample(0, "a", 55)]]);
    let charts = read(root.path(), "a", window(600, 1), &NOW).expect("charts");
    assert_eq!(charts.promise.series[0].values, [None]);
}

#[test]
fn what_sweeps_took_counts_for_the_group_and_all_above_it_and_silence_is_zero_where_the_daemon_ran() {
    let root = machine();
    let mut ledger = Ledger::open(&paths::state_dir(root.path()));
    let hint = HintLine {
        time: END,
        id: ProcessId { pid: 812, start: 9 },
        name: "firefox".into(),
        group: "a.slice/b".into(),
        step: HintKind::PageOut,
        observed: true,
        advised: Bytes::mib(50),
        freed: Bytes::mib(50),
        swapped_out: Bytes::mib(50),
        cpu_ms: 3,
        wall_ms: 9,
        start_reason: "rank 1".into(),
        score: "unused".into(),
        stop_reason: "done".into(),
        error: None,
    };
    let held = |bytes| held_out::HeldOutGroup { group: "a.slice/b".into(), bytes };
    for entry in [
        Entry::Sweep(sweep(END - 5000, "x")),
        Entry::Sweep(sweep(END - 700, "a.slice/b")),
        Entry::Sweep(sweep(END - 700, "a.slice-other")),
        Entry::Sweep(Swept { observed: true, ..sweep(END - 700, "a.slice/b") }),
        Entry::Hint(hint),
        Entry::Regret(RegretLine {
            time: END,
            group: "a.slice/b".into(),
            waited_ms: 40,
            refaulted_bytes: Bytes(1),
            incomplete: false,
        }),
        Entry::HeldOut(held_out::HeldOutLine { time: END, over_ms: 600_000, groups: vec![held(Bytes::mib(5))] }),
    ] {
        ledger.add(&entry);
    }
    let of = |group: &str| read(root.path(), group, window(2400, 4), &NOW).expect("charts");
    let charts = of("a.slice");
    let (zero, eight) = (Some((0, 0)), Some((8, 8)));
    assert_eq!(values(named(&charts.taken, "anon taken")), [None, zero, eight, zero]);
    assert_eq!(values(named(&charts.taken, "file taken")), [None, zero, Some((4, 4)), zero]);
    assert_eq!(values(named(&charts.taken, "anon back")), [None, Some((6, 6)), Some((6, 6)), Some((6, 6))]);
    assert_eq!(values(named(&charts.taken, "file back")), [None; 4], "unknown, and not zero");
    assert_eq!(values(named(&charts.taken, "still out, on average")), [None, None, None, Some((5, 5))]);
    assert!(charts.taken.notes.iter().any(|note| note.contains("mode observe")));
    let longest = named(&charts.waited, "longest write of a sweep");
    assert_eq!(longest.values[2], Some(Range::exact(17)));
    assert_eq!(named(&charts.waited, "regret").values[3], Some(Range::exact(40)));
    assert_eq!(named(&charts.waited, "some task waited (PSI)").values[1], Some(Range::exact(1200)));
    assert_eq!(values(named(&of("").taken, "anon taken")), [None, zero, Some((16, 16)), zero]);
    assert_eq!(values(named(&of("a.slice/c").taken, "anon taken")), [None, zero, zero, zero]);
    // The daemon ran, but the ledger does not reach back that far.
    std::fs::remove_file(paths::state_dir(root.path()).join("ledger.jsonl")).expect("removed");
    assert_eq!(values(named(&of("a.slice").taken, "anon taken")), [None; 4]);
}

#[test]
fn swap_writes_count_for_as_long_as_the_budget_says() {
    let root = machine();
    let mut ledger = Ledger::open(&paths::state_dir(root.path()));
    for time in [END - 8000, END - 4000, END - 2000, END - 1, END] {
        ledger.add(&Entry::Sweep(sweep(time, "a.slice")));
    }
    let now = Now { budget: Some(Budget { bytes: Bytes::mib(20), hours: 1 }), ..NOW };
    let charts = read(root.path(), "", window(1200, 2), &now).expect("charts");
    assert_eq!(charts.writes.limit, Some(20 << 20));
    let written = named(&charts.writes, "written to swap");
    assert_eq!(values(written), [Some((16, 16)), Some((24, 24))], "two of them were more than an hour ago");
    let cpu: Vec<_> = charts.cpu.series.iter().map(|series| series.values[1].map(|of| of.least)).collect();
    assert_eq!(cpu, [Some(60), Some(60)]);
}

#[test]
fn the_timeline_has_a_lane_for_each_class_and_explains_a_moment() {
    let root = machine();
    let mut ledger = Ledger::open(&paths::state_dir(root.path()));
    let stopped = Swept { end: End::Stopped, stop_reason: "work\u{1b}[31m".into(), ..sweep(END - 700, "a.slice/b") };
    ledger.add(&Entry::LeftAlone { time: END - 5000, group: "a.slice/b".into(), reason: "no ages".into() });
    ledger.add(&Entry::Sweep(sweep(END - 710, "a.slice/b")));
    ledger.add(&Entry::Sweep(stopped));
    let mut charts = read(root.path(), "a.slice", window(2400, 4), &NOW).expect("charts");
    let nothing = Some(Cell { did: Did::Nothing, events: 0, freed: Bytes::ZERO });
    let both = Some(Cell { did: Did::Stopped, events: 2, freed: Bytes::mib(24) });
    let seen = Seen { time: END - 1300, did: Did::Held, reason: "not idle".into() };
    charts.timeline.add_seen(&seen);
    let [machine, background, foreground, protected] = charts.timeline.lanes;
    assert_eq!(background, [None, nothing, both, nothing]);
    assert_eq!((&foreground, &protected), (&vec![None, nothing, nothing, nothing], &foreground));
    assert_eq!(machine[1].map(|cell| (cell.did, cell.events)), Some((Did::Held, 1)));
    let lines = moment(root.path(), "a.slice", END - 1300..END - 600, &[seen]).expect("lines");
    assert_eq!(lines.len(), 3);
    assert!(lines[0].ends_with("Z  not idle"), "{lines:?}");
    assert!(lines[1].contains("12.0 MiB freed") && lines[1].ends_with("(began: idle for 60 s)"), "{lines:?}");
    assert!(lines[2].contains("work\\u{1b}[31m"), "what a terminal would obey is escaped: {lines:?}");
    assert_eq!(moment(root.path(), "b", 0..END, &[]).expect("lines"), [""; 0]);
}

#[test]
fn no_history_and_a_damaged_one_have_charts_and_say_what_is_missing() {
    let root = FakeRoot::new();
    let charts = read(root.path(), "", window(7200, 60), &NOW).expect("charts");
    for chart in [&charts.unused, &charts.promise, &charts.place] {
        assert!(chart.is_empty() && chart.notes.iter().any(|note| note == NO_HISTORY), "{:?}", chart.notes);
    }
    assert!(charts.has_no_history && charts.notes(Topic::Unused)[0] == NO_HISTORY, "it is said first");
    // The control: a history without samples of this time.
    let before = Window { from: END - 90_000, to: END - 80_000, columns: 4 };
    let charts_before = read(machine().path(), "", before, &NOW).expect("charts");
    assert!(!charts_before.has_no_history && charts_before.unused.notes.iter().any(|note| note.contains("no samples")));
    assert!(charts.taken.notes.iter().any(|note| note.contains("the ledger is empty")));
    assert_eq!(samples_at(root.path(), Duration::from_secs(END)).expect("samples"), []);

    let root = machine();
    let dir = paths::history(root.path());
    let file = std::fs::read_dir(&dir).expect("the history").next().expect("a file").expect("a file").path();
    let bytes = std::fs::read(&file).expect("bytes");
    for cut in (0..bytes.len()).step_by(7) {
        std::fs::write(&file, &bytes[..cut]).expect("written");
        let charts = read(root.path(), "a.slice", window(2400, 8), &NOW).expect("charts");
        assert_eq!(values(&charts.unused.series[0])[..2], [None, None]);
    }
    std::fs::write(&file, &bytes[..bytes.len() - 3]).expect("written");
    let charts = read(root.path(), "a.slice", window(2400, 8), &NOW).expect("charts");
    assert_eq!(charts.skipped.len(), 1, "what is cut off is said");
    assert_eq!(values(&charts.unused.series[0])[4..], [Some((20, 30)), Some((20, 30)), None, None]);
}

#[test]
fn a_clock_that_was_set_back_costs_nothing_but_the_order() {
    let root = FakeRoot::new();
    let mut store = Store::new(&paths::history(root.path()), "b", Bytes::mib(64));
    for time in [END - 600, END + 86_400, END - 1200, END] {
        store.add(Duration::from_secs(time), &[sample(0, "a", 10)]);
    }
    let charts = read(root.path(), "a", window(1800, 3), &NOW).expect("charts");
    assert_eq!(values(&charts.unused.series[0]), [Some((10, 20)); 3]);
    let samples = samples_at(root.path(), Duration::from_secs(END + 5)).expect("samples");
    assert_eq!(samples.iter().map(|of| of.time).collect::<Vec<_>>(), [END]);
}

/// A status of the daemon, with these groups of 10 MiB.
fn status(groups: &[&str]) -> Status {
    let mut status: Status =
        serde_json::from_str(include_str!("../../control/src/status/example.json")).expect("a status");
    let of = status.groups.remove(0);
    status.groups = groups
        .iter()
        .map(|group| omr_control::status::GroupView {
            group: (*group).into(),
            current: Some(Bytes::mib(10)),
            freed: Bytes::mib(1),
            ..of.clone()
        })
        .collect();
    status
}

fn shown(groups: &[Group], sort: Sort, filter: &str, folded: &[&str]) -> Vec<(usize, String)> {
    let folded: BTreeSet<String> = folded.iter().map(|path| String::from(*path)).collect();
    let rows = tree(groups, sort, filter, &folded);
    rows.into_iter().map(|row| (row.depth, groups[row.group].path.clone())).collect()
}

#[test]
fn a_group_has_the_memory_of_those_below_it_and_the_tree_can_be_sorted_filtered_and_folded() {
    let samples: Vec<Sampled> =
        [("", 0), ("a", 5), ("b/x", 7)].map(|(path, cold)| Sampled::new(&sample(END, path, cold))).into();
    let status = status(&["a", "a-b", "a/y", "a/x", "b/x"]);
    let groups = list(Some(&status), &samples);
    let memory = |path: &str| groups.iter().find(|of| of.path == path).and_then(|of| of.memory).map(|of| of.0 >> 20);
    assert_eq!([memory(""), memory("a"), memory("a/x"), memory("b"), memory("b/x")], [50, 30, 10, 10, 10].map(Some));
    let freed = groups.iter().find(|of| of.path == "a").and_then(|of| of.freed);
    assert_eq!(freed, Some(Bytes::mib(3)));
    let paths = |rows: Vec<(usize, String)>| rows.into_iter().map(|(_, path)| path).collect::<Vec<_>>().join(" ");
    let all = shown(&groups, Sort::Memory, "", &[]);
    assert_eq!(paths(all.clone()), " a a/x a/y a-b b b/x");
    assert_eq!(all.iter().map(|(depth, _)| *depth).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 1, 2]);
    assert_eq!(paths(shown(&groups, Sort::Cold, "", &[])), " a a/x a/y a-b b b/x");
    assert_eq!(paths(shown(&groups, Sort::Memory, "", &["a", "b"])), " a a-b b");
    assert_eq!(paths(shown(&groups, Sort::Name, "x", &["a"])), " a a/x b b/x", "a filter shows what it finds");
    assert_eq!(paths(shown(&groups, Sort::Name, "nothing", &[])), "");
    // The past: no live figures, and no group that was not sampled, but those above one.
    let past = list(None, &samples);
    assert_eq!(paths(shown(&past, Sort::Memory, "", &[])), " a b b/x");
    assert!(past.iter().all(|of| of.freed.is_none() && of.class.is_none()));
    assert_eq!(past[0].memory, Some(Bytes::mib(100)));
}

#[test]
fn groups_in_order_point_to_the_groups_above_them() {
    let groups = list(Some(&status(&["b/small", "b", "a/x", "c"])), &[]);
    for sort in Sort::ALL {
        let ordered = ordered(&groups, sort);
        assert_eq!(ordered.len(), groups.len());
        for (place, group) in ordered.iter().enumerate() {
            let above = group.above.map(|above| ordered[above].path.as_str());
            assert!(group.above.is_none_or(|above| above < place), "{sort:?} {}", group.path);
            let expected = match group.path.as_str() {
                "" => None,
                path => Some(path.rsplit_once('/').map_or("", |(above, _)| above)),
            };
            assert_eq!(above, expected, "{sort:?} {}", group.path);
        }
    }
    let paths = |sort| ordered(&groups, sort).into_iter().map(|of| of.path).collect::<Vec<_>>();
    assert_eq!(paths(Sort::Name), ["", "a", "a/x", "b", "b/small", "c"]);
}

#[test]
fn charts_of_some_groups_in_one_reading_are_those_of_each_alone() {
    let root = machine();
    let now = Now::new(None, "", &Objective::default());
    let window = window(7200, 24);
    let names = ["", "a.slice", "never.slice"];
    let all = crate::read_all(root.path(), &names.map(|name| (name, now)), window).expect("charts");
    for (charts, name) in all.iter().zip(names) {
        assert_eq!(charts, &read(root.path(), name, window, &now).expect("charts"));
    }
    assert_eq!(all.len(), 3);
    assert_ne!(all[1].place.series, all[2].place.series, "the control");
}

#[test]
fn groups_within_each_other_a_thousandfold_are_a_short_tree() {
    let deep = vec!["a"; 2000].join("/");
    let groups = list(Some(&status(&[&deep, &format!("{deep}/b")])), &[]);
    assert_eq!(groups.len(), 11);
    assert_eq!(groups[10].above, Some(9), "below the nearest one that has a row");
    assert_eq!(groups[0].memory, Some(Bytes::mib(20)));
}

#[test]
fn a_status_with_as_many_groups_as_it_can_have_does_not_hide_others() {
    let names: Vec<String> = (0..100).map(|number| format!("g{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let samples = ["", "small"].map(|path| Sampled::new(&sample(END, path, 0)));
    let all = list(Some(&status(&names)), &samples);
    assert_eq!(all.iter().find(|of| of.path == "small").and_then(|of| of.memory), Some(Bytes::mib(100)));
    let few = list(Some(&status(&names[..99])), &samples);
    assert!(few.iter().all(|of| of.path != "small"), "it is not there any more");
}

#[test]
fn figures_of_now_come_from_the_status_only() {
    let root = machine();
    let status = status(&["a.slice"]);
    let mut charts =
        read(root.path(), "", window(600, 1), &Now::new(Some(&status), "", &Objective::default())).expect("charts");
    assert_eq!(charts.promise.limit, Some(200), "swap on a disk");
    charts.set_now(Some(&status));
    let fact = |chart: &Chart, name: &str| chart.facts.iter().find(|fact| fact.name == name).map(ToString::to_string);
    assert_eq!(fact(&charts.place, "free swap").as_deref(), Some("free swap: 512 MiB"));
    assert_eq!(fact(&charts.sleep, "image, at most").as_deref(), Some("image, at most: unknown"));
    let obstacle = charts.sleep.now.clone().expect("a note");
    assert!(obstacle.contains("this kernel cannot hibernate"), "{obstacle}");
    charts.set_now(None);
    assert!(charts.place.facts.is_empty() && charts.sleep.facts.is_empty());
    assert_eq!(charts.sleep.now, None, "what holds now says nothing about the past");
    let text = serde_json::to_value(&charts).expect("JSON");
    assert_eq!(text["unused"]["series"][2]["shape"]["age"], 120);
    assert_eq!(text["unused"]["series"][2]["values"][0]["least"], 30 << 20);
}

#[test]
fn a_row_of_signs_tells_unknown_from_nothing_in_each_locale() {
    let values = [None, Some(0), Some(1), Some(50), Some(100)];
    assert_eq!(spark::row(&values, Signs::Blocks), "?▁▂▄█");
    assert_eq!(spark::row(&values, Signs::Ascii), "?_.-#");
    assert_eq!(spark::row(&[Some(0), None], Signs::Blocks), "▁?", "a row without any value has no top");
    assert_eq!(spark::row(&[], Signs::Blocks), "");
    // Shorter rows keep the largest value, and what is unknown only where nothing is known.
    assert_eq!(spark::shorten(&[None, None, Some(3), None, Some(1), Some(9)], 3), [None, Some(3), Some(9)]);
    assert_eq!(spark::shorten(&values, 99), values);
    assert_eq!(spark::shorten(&values, 0).len(), 1);
}

#[test]
fn each_chart_has_rows_that_fit_the_width_and_say_what_is_unknown() {
    let charts = read(machine().path(), "a.slice", window(2400, 8), &NOW).expect("charts");
    let nothing = read(FakeRoot::new().path(), "", window(2400, 8), &NOW).expect("charts");
    for (charts, width) in [(&charts, 80), (&charts, 200), (&nothing, 80)] {
        for topic in Topic::ALL {
            let rows = spark::chart(charts, topic, Signs::Ascii, width);
            assert!(!rows.is_empty(), "{topic:?}");
            assert!(rows.iter().all(|row| row.chars().count() <= width.max(80)), "{topic:?}: {rows:?}");
        }
        let rows = spark::summary(charts, Signs::Blocks, width);
        assert_eq!(rows.len(), 4);
        for (row, question) in rows.iter().zip(["What was not used?", "What was taken, and what came back?"]) {
            assert!(row.starts_with(question), "{row}");
        }
    }
    let row = |charts: &Charts, at: usize| spark::summary(charts, Signs::Blocks, 80).swap_remove(at);
    assert!(row(&charts, 0).ends_with("30.0 MiB at least"), "{}", row(&charts, 0));
    assert!(row(&charts, 3).contains("in all") && !row(&charts, 3).contains("unknown"));
    assert!((0..4).all(|at| row(&nothing, at).ends_with("  unknown") && row(&nothing, at).contains('?')));
}

#[test]
fn the_time_until_a_sweep_stopped_is_shown_where_it_is_recorded() {
    let root = machine();
    let mut ledger = Ledger::open(&paths::state_dir(root.path()));
    let stopped = Swept { stop_ms: Some(9), method: Some("lru_gen".into()), ..sweep(END - 700, "a.slice/b") };
    ledger.add(&Entry::Sweep(sweep(END - 650, "a.slice/b")));
    let waited = || read(root.path(), "a.slice", window(2400, 4), &NOW).expect("charts").waited;
    // The control: a line of an older omr, or of a sweep that ended by itself.
    let before = waited();
    assert!(before.series.iter().all(|series| !series.name.contains("stopped")));
    assert!(before.notes.iter().any(|note| note.starts_with("no sweep was stopped")), "{:?}", before.notes);
    ledger.add(&Entry::Sweep(stopped.clone()));
    ledger.add(&Entry::Sweep(Swept { stop_ms: Some(4), ..stopped.clone() }));
    let after = waited();
    let longest = &named(&after, "longest time until a sweep stopped").values;
    assert_eq!(*longest, [None, None, Some(Range::exact(9)), None], "unknown, and not zero");
    let told = event::text(&Entry::Sweep(stopped)).expect("words");
    assert!(told.ends_with(" by lru_gen; done, stopped within 9 ms"), "{told}");
}
