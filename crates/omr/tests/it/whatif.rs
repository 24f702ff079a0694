//! `omr fleet synthesize` and `omr whatif`, as an engine for many machines would use them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::Field;
use parquet::schema::types::Type;
use serde_json::Value;

const POLICIES: &str = r#"{"policies": [
    {"name": "careful", "slo": {"kept": "99.5%", "shortest": "30min"}},
    {"name": "eager", "slo": {"promotions": "1%"}},
    {"name": "two hours", "slo": {"shortest": "2h", "longest": "2h"}}
]}"#;

/// A directory with a fleet and policies.
struct Fleet(tempfile::TempDir);

impl Fleet {
    fn new(machines: u32) -> Self {
        let fleet = Fleet(tempfile::tempdir().expect("a directory"));
        let made =
            fleet.omr(&["fleet", "synthesize", "--seed", "1", "--machines", &machines.to_string(), "--out", "fleet"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::write(fleet.path("p.json"), POLICIES).expect("written");
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn omr(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_omr"));
        command.args(args).current_dir(self.0.path()).output().expect("omr")
    }

    /// Replays one file. Returns the exit code, and what it printed or said.
    fn shard(&self, file: &str, out: &str) -> (Option<i32>, String) {
        let ran = self.omr(&["whatif", "--shard", file, "--policies", "p.json", "--out", out]);
        let text = if ran.status.success() { ran.stdout } else { ran.stderr };
        (ran.status.code(), String::from_utf8(text).expect("UTF-8").trim_end().to_owned())
    }

    /// Replays all. Returns the exit code, and the figures.
    fn local(&self, out: &str) -> (Option<i32>, Value) {
        let ran = self.omr(&["whatif", "--local", "fleet", "--policies", "p.json", "--out", out, "--json"]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        (ran.status.code(), serde_json::from_slice(&ran.stdout).unwrap_or_else(|err| panic!("{err}: {said}")))
    }

    /// All files of a directory.
    fn files(&self, dir: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.path(dir)).expect("a directory");
        let read = entries.map(|entry| {
            let path = entry.expect("an entry").path();
            (path.file_name().expect("a name").to_string_lossy().into_owned(), fs::read(&path).expect("a file"))
        });
        read.collect()
    }
}

#[test]
fn any_order_and_any_retry_give_the_same_bits() {
    let fleet = Fleet::new(3);
    let (code, told) = fleet.local("all");
    assert_eq!((code, &told["shards"], &told["bad"]), (Some(0), &3.into(), &Value::Array(Vec::new())));
    let all = fleet.files("all");
    assert_eq!(all.len(), 4, "{:?}", all.keys());
    // One by one, in another order, and once more.
    for machine in [2, 0, 1, 2] {
        let (code, path) = fleet.shard(&format!("fleet/week=0/machine={machine}.parquet"), "one");
        assert_eq!(code, Some(0), "{path}");
        assert!(fleet.path(&path).exists(), "{path}");
    }
    let mut one = fleet.files("one");
    assert!(one.iter().all(|(name, bytes)| all[name] == *bytes), "the same results");
    assert_eq!(one.len(), 3);
    // What was killed half-way goes on: the rest is made, and nothing else.
    let lost = one.pop_first().expect("a result").0;
    fs::remove_file(fleet.path(&format!("all/{lost}"))).expect("removed");
    let kept = one.keys().next().expect("a result").clone();
    let when = || fs::metadata(fleet.path(&format!("all/{kept}"))).and_then(|of| of.modified()).expect("a time");
    let before = when();
    assert_eq!(fleet.local("all").0, Some(0));
    assert_eq!((fleet.files("all"), when()), (all.clone(), before));
    // A result that was cut off is made again.
    fs::write(fleet.path(&format!("all/{lost}")), "{\"version\":1").expect("written");
    assert_eq!(fleet.local("all").0, Some(0));
    assert_eq!(fleet.files("all"), all);
    // Another policy, another result; and the same fleet once more is the same.
    fs::write(fleet.path("p.json"), POLICIES.replace("99.5%", "99%")).expect("written");
    assert_eq!(fleet.local("all").0, Some(0));
    assert_eq!(fleet.files("all").len(), 7);
    let again = Fleet::new(3);
    assert_eq!(again.files("fleet/week=0"), fleet.files("fleet/week=0"));
}

#[test]
fn policies_differ_as_they_should() {
    let fleet = Fleet::new(4);
    let (_, told) = fleet.local("out");
    let of = |name: &str, figure: &str| -> u64 {
        let policies = told["policies"].as_array().expect("policies");
        let policy = policies.iter().find(|of| of["policy"]["name"] == name).expect("the policy");
        policy.pointer(figure).and_then(Value::as_u64).unwrap_or_else(|| panic!("{figure} of {name}: {policy}"))
    };
    let held = |name: &str| of(name, "/held_permyriad/1");
    assert!(held("careful") < held("default") && held("default") < held("eager"), "{told}");
    assert!(of("careful", "/promoted_p98/0") <= of("eager", "/promoted_p98/0"), "{told}");
    for name in ["careful", "default", "eager", "two hours"] {
        for side in 0..2 {
            let of = |quantile: &str| of(name, &format!("/promoted_{quantile}/{side}"));
            assert!(of("p50") <= of("p98") && of("p98") <= of("p99") && of("p98") <= of("p98_upper"), "{told}");
        }
        assert!(of(name, "/promoted_p98/0") <= of(name, "/promoted_p98/1"), "{told}");
        for figure in ["held_permyriad", "back_kib_per_day"] {
            let likely = of(name, &format!("/{}", figure.replacen('_', "_likely_", 1)));
            assert!(
                of(name, &format!("/{figure}/0")) <= likely && likely <= of(name, &format!("/{figure}/1")),
                "{told}"
            );
        }
        assert!(of(name, "/sums/acting") > 0, "{told}");
    }
    let table = fleet.omr(&["whatif", "--local", "fleet", "--policies", "p.json", "--out", "out"]);
    let table = String::from_utf8(table.stdout).expect("UTF-8");
    assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
    assert!(table.contains("4 shards") && table.contains("two hours") && table.contains("P98"), "{table}");
}

#[test]
fn policies_with_a_mistake_are_refused() {
    let fleet = Fleet::new(1);
    for (text, says) in [
        ("", "p.json: not a list of policies: EOF"),
        ("{\"policies\": []}", "p.json: 0 policies; expected 1 to 1000"),
        (r#"{"policies": [{"name": "a"}], "more": 1}"#, "unknown field `more`"),
        (r#"{"policies": [{"name": "a"}, {"name": "a"}]}"#, "two policies are called \"a\""),
        (r#"{"policies": [{"name": ""}]}"#, "expected a name of 1 to 100 bytes"),
        (r#"{"policies": [{"name": "a", "slo": {"kept": "NaN"}}]}"#, "policy \"a\": slo.kept"),
        (r#"{"policies": [{"name": "a", "slo": {"kept": 98}}]}"#, "expected a string"),
        (r#"{"policies": [{"name": "a", "slo": {"keep": "98%"}}]}"#, "slo.keep: unknown key"),
        (r#"{"policies": [{"name": "a", "slo": {"promotions": "11%"}}]}"#, "slo.promotions"),
        (r#"{"policies": [{"name": "a", "slo": {"shortest": "4h", "longest": "1h"}}]}"#, "must not be longer than"),
        (r#"{"swap": "tape", "policies": [{"name": "a"}]}"#, "unknown variant `tape`"),
    ] {
        fs::write(fleet.path("p.json"), text).expect("written");
        let (code, said) = fleet.shard("fleet/week=0/machine=0.parquet", "out");
        assert!(code == Some(2) && said.contains("p.json") && said.contains(says), "{text}: {code:?} {said}");
    }
    assert!(!fleet.path("out").exists(), "nothing was made");
}

/// The values of a shard: a column's name, and what its rows have.
struct Table {
    columns: Vec<(String, Vec<Value>)>,
}

impl Table {
    /// The first rows of a shard.
    fn read(path: &Path, rows: usize) -> Self {
        let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("Parquet");
        let mut columns: Vec<(String, Vec<Value>)> = Vec::new();
        for row in reader.get_row_iter(None).expect("rows").take(rows) {
            for (at, (name, field)) in row.expect("a row").into_columns().into_iter().enumerate() {
                if columns.len() <= at {
                    columns.push((name, Vec::new()));
                }
                columns[at].1.push(match field {
                    Field::Str(text) => text.into(),
                    Field::ULong(number) => number.into(),
                    Field::TimestampMillis(time) => time.into(),
                    Field::Null => Value::Null,
                    other => panic!("{other:?}"),
                });
            }
        }
        Table { columns }
    }

    fn column(&mut self, name: &str) -> &mut Vec<Value> {
        &mut self.columns.iter_mut().find(|(of, _)| of == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// Writes it. A column with a fraction is one of doubles.
    fn write(&self, path: &Path) {
        let kind = |name: &str, values: &[Value]| match values {
            [] if ["boot", "group"].contains(&name) => Physical::BYTE_ARRAY,
            _ if values.iter().any(Value::is_string) => Physical::BYTE_ARRAY,
            _ if values.iter().any(Value::is_f64) => Physical::DOUBLE,
            _ => Physical::INT64,
        };
        let field = |(name, values): &(String, Vec<Value>)| {
            let physical = kind(name, values);
            let meaning = if physical == Physical::BYTE_ARRAY { ConvertedType::UTF8 } else { ConvertedType::NONE };
            let built = Type::primitive_type_builder(name, physical).with_converted_type(meaning);
            Arc::new(built.with_repetition(Repetition::OPTIONAL).build().expect("a column"))
        };
        let fields = self.columns.iter().map(field).collect();
        let schema = Type::group_type_builder("sample").with_fields(fields).build().expect("a schema");
        let file = File::create(path).expect("a file");
        let mut writer =
            SerializedFileWriter::new(file, Arc::new(schema), Arc::new(WriterProperties::default())).expect("a writer");
        let mut group = writer.next_row_group().expect("a row group");
        for (name, values) in &self.columns {
            let mut column = group.next_column().expect("a column").expect("a column");
            let levels: Vec<i16> = values.iter().map(|value| i16::from(!value.is_null())).collect();
            let there = || values.iter().filter(|value| !value.is_null());
            let written = match kind(name, values) {
                Physical::BYTE_ARRAY => {
                    let texts: Vec<ByteArray> = there().map(|text| text.as_str().unwrap_or_default().into()).collect();
                    column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None)
                }
                Physical::DOUBLE => {
                    let numbers: Vec<f64> = there().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect();
                    column.typed::<DoubleType>().write_batch(&numbers, Some(&levels), None)
                }
                _ => {
                    let number = |value: &Value| value.as_i64().or_else(|| value.as_u64().map(u64::cast_signed));
                    let numbers: Vec<i64> = there().filter_map(number).collect();
                    column.typed::<Int64Type>().write_batch(&numbers, Some(&levels), None)
                }
            };
            written.expect("written");
            column.close().expect("closed");
        }
        group.close().expect("closed");
        writer.close().expect("closed");
    }
}

type Change = fn(&mut Table);

/// What a shard may have, the error, and the row that it names.
fn bad_shards() -> [(&'static str, Change, &'static str); 12] {
    [
        ("negative", |table| table.column("current")[7] = (-1).into(), "row 8: current is -1; expected 0 to"),
        ("overflow", |table| table.column("memory")[0] = u64::MAX.into(), "row 1: memory is -1; expected"),
        ("large", |table| table.column("swap")[3] = (1_u64 << 57).into(), "row 4: swap is 144115188075855872"),
        ("fraction", |table| table.column("current")[0] = 0.5.into(), "column current is DOUBLE; expected INT64"),
        ("text", |table| table.column("current")[0] = "1".into(), "column current is BYTE_ARRAY; expected INT64"),
        ("no current", |table| table.column("current")[2] = Value::Null, "row 3: no current"),
        ("no time", |table| table.column("time")[2] = Value::Null, "row 3: no time"),
        ("before 1970", |table| table.column("time")[2] = (-5).into(), "row 3: time is -5"),
        ("bounds", |table| table.column("idle_120s_least")[4] = (1_u64 << 50).into(), "row 5: idle_120s_least is"),
        (
            "twice",
            |table| {
                let group = table.column("group")[0].clone();
                table.column("group")[1] = group;
            },
            "row 2: group \"/system.slice/job-0.service\" has two samples of this time",
        ),
        (
            "no ages",
            |table| table.columns.retain(|(name, _)| name != "promoted_480s_most"),
            "no column promoted_480s_most",
        ),
        ("no group", |table| table.column("group")[1] = Value::Null, "row 1: unreadable:"),
    ]
}

#[test]
fn bad_shards_are_named_counted_and_left_out() {
    let fleet = Fleet::new(1);
    let good = fleet.path("fleet/week=0/machine=0.parquet");
    let some = Table::read(&good, 60);
    some.write(&fleet.path("fleet/some.parquet"));
    assert_eq!(fleet.shard("fleet/some.parquet", "out").0, Some(0), "the control");
    for (name, change, says) in bad_shards() {
        let mut table = Table { columns: some.columns.clone() };
        change(&mut table);
        let file = format!("fleet/{name}.parquet");
        table.write(&fleet.path(&file));
        let (code, said) = fleet.shard(&file, "out");
        assert!(code == Some(2) && said.contains(says) && said.contains(&file), "{name}: {code:?} {said}");
    }
    fs::write(fleet.path("fleet/none.parquet"), "PAR1").expect("written");
    let whole = fs::read(&good).expect("read");
    fs::write(fleet.path("fleet/cut.parquet"), &whole[..whole.len() / 2]).expect("written");
    // 17 GiB without a block on the disk.
    File::create(fleet.path("fleet/huge.parquet")).and_then(|file| file.set_len(17 << 30)).expect("a file");
    let (code, told) = fleet.local("out");
    let bad: Vec<&str> = told["bad"].as_array().expect("bad").iter().filter_map(|bad| bad["shard"].as_str()).collect();
    assert_eq!((code, bad.len(), &told["shards"]), (Some(4), bad_shards().len() + 3, &2.into()), "{bad:?}");
    assert!(bad.contains(&"cut.parquet") && bad.contains(&"twice.parquet") && bad.contains(&"huge.parquet"), "{bad:?}");
    let why = |name: &str| told["bad"].as_array()?.iter().find(|bad| bad["shard"] == name)?["why"].as_str();
    assert_eq!(why("no time.parquet"), Some("row 3: no time"));
}

#[test]
fn results_that_were_made_elsewhere_are_merged_to_the_same_bits() {
    let fleet = Fleet::new(2);
    fs::write(fleet.path("fleet/none.parquet"), "PAR1").expect("written");
    assert_eq!(fleet.local("local").0, Some(4));
    let total = fs::read(fleet.path("local/total.json")).expect("a total");
    // As an engine does it: a result or an error for each shard, in the order in which they come.
    let mut lines = Vec::new();
    for name in ["week=0/machine=1.parquet", "none.parquet", "week=0/machine=0.parquet"] {
        let file = format!("fleet/{name}");
        let (code, said) = fleet.shard(&file, "out");
        lines.push(match code {
            Some(0) => {
                let result = Path::new(&said).file_name().expect("a name").to_string_lossy().into_owned();
                serde_json::json!({"shard": name, "result": result})
            }
            _ => {
                let why = said.strip_prefix(&format!("omr: {file}: ")).expect("the name of the file");
                serde_json::json!({"shard": name, "bad": why})
            }
        });
    }
    let merge = |text: &str| {
        fs::write(fleet.path("list.jsonl"), text).expect("written");
        fleet.omr(&["whatif", "--merge", "list.jsonl", "--policies", "p.json", "--out", "out", "--json"])
    };
    let text = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    assert_eq!(merge(&text(&lines)).status.code(), Some(4));
    assert_eq!(fs::read(fleet.path("out/total.json")).expect("a total"), total);
    let first = lines[0].to_string();
    for (text, code, says) in [
        ("", 2, "list.jsonl: no shard"),
        ("{", 2, "list.jsonl: line 1: EOF"),
        (r#"{"shard":"a"}"#, 2, "line 1: expected either result or bad"),
        (r#"{"shard":"a","bad":"b","result":"c"}"#, 2, "line 1: expected either result or bad"),
        (r#"{"shard":"a","result":"../c"}"#, 2, "line 1: result is \"../c\"; expected a file name"),
        (&format!("{first}\n{first}"), 2, "line 2: shard \"week=0/machine=1.parquet\" is there twice"),
        (r#"{"shard":"a","result":"none.json"}"#, 1, "out/none.json: the result is gone"),
        (r#"{"shard":"a","result":"total.json"}"#, 1, "it is of other policies or another program"),
    ] {
        let ran = merge(text);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(code) && said.contains(says), "{text}: {ran:?}");
        assert_eq!(fs::read(fleet.path("out/total.json")).expect("a total"), total, "{text}");
    }
}

#[test]
fn with_every_age_known_least_and_most_differ_by_the_agings_alone() {
    let fleet = Fleet::new(1);
    let made = fleet.omr(&["fleet", "synthesize", "--seed", "1", "--machines", "1", "--exact", "--out", "exact"]);
    assert!(made.status.success());
    let figures = |place: &str| {
        let ran = fleet.omr(&["whatif", "--local", place, "--policies", "p.json", "--out", "out", "--json"]);
        let told: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        let of = |index: usize| told["policies"][index]["held_permyriad"].clone();
        [0, 1, 2, 3].map(|index| [of(index)[0].as_u64().expect("least"), of(index)[1].as_u64().expect("most")])
    };
    let (exact, seen) = (figures("exact"), figures("fleet"));
    // Memory leaves half of a threshold late, at most.
    assert!(exact.iter().all(|[least, most]| least < most && most - least < most / 10), "{exact:?}");
    assert!(seen.iter().any(|[least, most]| most - least > most / 5), "{seen:?}");
}

#[test]
fn strange_weeks_are_no_mistakes() {
    let fleet = Fleet::new(1);
    let mut some = Table::read(&fleet.path("fleet/week=0/machine=0.parquet"), 400);
    // The clock was set back by a day, and forward again.
    for time in some.column("time").iter_mut().skip(200).take(100) {
        *time = (time.as_i64().expect("a time") - 86_400_000).into();
    }
    some.write(&fleet.path("clock.parquet"));
    assert_eq!(fleet.shard("clock.parquet", "out").0, Some(0));
    // A week in which nothing was recorded.
    some.columns.iter_mut().for_each(|(_, values)| values.clear());
    some.write(&fleet.path("empty.parquet"));
    let (code, result) = fleet.shard("empty.parquet", "out");
    assert_eq!(code, Some(0), "{result}");
    let result: Value = serde_json::from_slice(&fs::read(fleet.path(&result)).expect("a result")).expect("JSON");
    assert_eq!((&result["shard"]["rows"], &result["shard"]["jobs"]), (&0.into(), &0.into()));
    let (code, said) = fleet.shard("/nowhere.parquet", "out");
    assert!(code == Some(1) && said.contains("/nowhere.parquet"), "{code:?} {said}");
}
