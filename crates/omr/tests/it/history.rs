//! `omr history --groups --days`: what sweeps gained and cost, for each group and day.

use omr_testkit::FakeRoot;
use serde_json::Value;

use crate::common::{machine, omr, text};

/// Two days: 2023-11-14, which ends at 1,700,006,400 s, and the next.
const LEDGER: &str = r#"
{"kind":"held-out","time":1700002800,"over_ms":3600000,"groups":[{"group":"app.slice/a.scope","bytes":2097152}]}
{"kind":"held-out","time":1700006399,"over_ms":3600000,"groups":[]}
{"kind":"regret","time":1700006399,"group":"app.slice/a.scope","waited_ms":300,"refaulted_bytes":1048576}
{"kind":"held-out","time":1700010000,"over_ms":3600000,"groups":[{"group":"app.slice/a.scope","bytes":4194304},{"group":"b.service","bytes":1048576}]}
{"kind":"regret","time":1700010000,"group":"b.service","waited_ms":1000,"refaulted_bytes":8192,"incomplete":true}
{"kind":"regret","time":1700010600,"group":"b.service","waited_ms":500,"refaulted_bytes":4096}
{"kind":"refaults","time":1700010600,"sweep":1,"group":"b.service","bytes":4096,"after":300}
"#;

fn with_ledger() -> FakeRoot {
    let root = machine();
    root.write("var/lib/omr/ledger.jsonl", LEDGER.trim_start());
    root
}

#[track_caller]
fn shown(root: &FakeRoot, words: &[&str]) -> String {
    let (code, stdout, stderr) = text(&omr(root, &[&["history"], words].concat()));
    assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}");
    stdout
}

#[test]
fn each_group_has_a_line_for_each_day_with_its_gain_and_its_cost() {
    let root = with_ledger();
    let table = "\
DAY         GROUP                 HELD OUT    REFAULTS  WAITED
2023-11-14  /                     1.00 MiB    1.00 MiB  0.3 s
2023-11-14  /app.slice            1.00 MiB    1.00 MiB  0.3 s
2023-11-14  /app.slice/a.scope    1.00 MiB    1.00 MiB  0.3 s
2023-11-15  /                     5.00 MiB    12.0 KiB  at least 1.5 s
2023-11-15  /app.slice            4.00 MiB         0 B  0 ms
2023-11-15  /app.slice/a.scope    4.00 MiB         0 B  0 ms
2023-11-15  /b.service            1.00 MiB    12.0 KiB  at least 1.5 s
";
    assert_eq!(shown(&root, &["--groups", "--days"]), table);
    let days = |words: &[&str]| {
        let all = shown(&root, &[&["--groups", "--days", "--json"], words].concat());
        let line = |line: &str| line.parse::<Value>().expect("JSON");
        all.lines().map(line).collect::<Vec<_>>()
    };
    let one = days(&["b.service"]);
    assert_eq!(
        one,
        [serde_json::json!({
            "day": "2023-11-15", "group": "/b.service", "held_out_average_bytes": 1 << 20, "waited_ms": 1500,
            "refaulted_bytes": 12288, "incomplete": true,
        })]
    );
    assert_eq!(days(&["--since", "2023-11-15T23:00:00Z"]).len(), 4, "the whole day");
    assert_eq!(days(&["app.slice/*", "-n", "1"])[0]["day"], "2023-11-15");
    assert_eq!((days(&[]).len(), days(&["c.service"])), (7, Vec::new()));
}

#[test]
fn the_record_of_what_is_held_out_is_no_event() {
    let root = with_ledger();
    let events = shown(&root, &[]);
    assert_eq!((events.lines().count(), events.contains("held")), (4, false), "{events}");
    assert_eq!(shown(&root, &["-n", "1"]).lines().count(), 1);
    assert_eq!(shown(&root, &["--json"]).lines().count(), 7, "scripts get all lines");
}

#[test]
fn a_machine_without_a_ledger_has_no_days_and_a_damaged_line_costs_that_line() {
    let root = machine();
    assert_eq!(shown(&root, &["--groups", "--days"]), "");
    let damaged = LEDGER.replace("\"over_ms\":3600000,\"groups\":[]", "\"over_ms\":-1,\"groups\":[]");
    let wide = r#"{"kind":"held-out","time":18446744073709551615,"over_ms":18446744073709551615,"groups":[{"group":"x\u001b","bytes":18446744073709551615}]}"#;
    root.write("var/lib/omr/ledger.jsonl", format!("{}{wide}\n", damaged.trim_start()));
    let table = shown(&root, &["--groups", "--days"]);
    assert!(table.contains("2023-11-14  /                     2.00 MiB"), "half of the time is not known: {table}");
    assert!(table.contains("9999-12-31") && !table.contains('\u{1b}'), "{table}");
    let (code, _, stderr) = text(&omr(&root, &["history", "--days"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("--groups"), "{stderr}");
}
