//! The history as a Parquet file, which pandas, DuckDB, Spark and the like read.
//!
//! One row for each sample. On demand also one row for each NUMA node; the node of a sample's own
//! row is null. Sizes are in bytes; unknown values are null.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use omr_fleet::shard::PAGE_KEY;
use omr_history::days::{Days, OfDay};
use omr_history::{AGES, Idle, OnNode, Sample, Since};
use omr_policy::age::Bounds;
use omr_units::{Bytes, millis};
use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::{days, file};

/// The number of samples that are kept in memory before they are written.
const ROWS: usize = 20_000;
/// Of zstd: its own default.
const LEVEL: i32 = 3;

/// A row: a sample of all nodes together, or of one node.
#[derive(Clone, Copy)]
struct Row<'a> {
    sample: &'a Sample,
    days: &'a Days,
    node: Option<&'a OnNode>,
}

impl<'a> Row<'a> {
    /// Returns the sample if the row is for all nodes together.
    fn whole(self) -> Option<&'a Sample> {
        self.node.is_none().then_some(self.sample)
    }

    fn since(self) -> Option<&'a Since> {
        self.whole()?.since.as_ref()
    }

    fn day(self) -> Option<OfDay> {
        days::of_sample(self.days, self.whole()?)
    }

    fn idle(self) -> Option<&'a Idle> {
        self.node.map_or(&self.sample.idle, |node| &node.idle).as_ref()
    }
}

type Text = fn(&Sample) -> String;
type Number = fn(Row<'_>) -> Option<u64>;

/// The content of a column.
enum Column {
    Text(Text),
    /// Milliseconds since 1970, UTC.
    Time(Number),
    Number(Number),
    /// The memory that was not used for the age with this index, lower or upper bound.
    Idle(usize, Side),
    /// The memory of the age with this index that was used again, lower or upper bound.
    Promoted(usize, Side),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Least,
    Most,
}

impl Side {
    fn of(self, bounds: Bounds) -> Option<u64> {
        size(if self == Side::Least { bounds.least } else { bounds.most })
    }
}

fn size(bytes: Bytes) -> Option<u64> {
    Some(bytes.0)
}

/// Returns all columns with their names.
fn columns() -> Vec<(String, Column)> {
    let numbers: [(&str, Number); 10] = [
        ("id", |row| Some(row.sample.id.0)),
        ("node", |row| Some(row.node?.held.node.into())),
        ("current", |row| size(row.whole()?.current)),
        ("peak", |row| size(row.whole()?.peak)),
        ("anon", |row| size(row.node.map_or(row.sample.anon, |node| node.held.anon))),
        ("file", |row| size(row.node.map_or(row.sample.file, |node| node.held.file))),
        ("shmem", |row| size(row.node.map_or(row.sample.shmem, |node| node.held.shmem))),
        ("swap", |row| row.whole()?.swap.and_then(size)),
        ("ages_ms_ago", |row| row.idle().map(|idle| millis(idle.ago))),
        ("memory", |row| size(row.idle()?.memory)),
    ];
    let day: [(&str, Number); 3] = [
        ("day_held_out", |row| size(row.day()?.held)),
        ("day_waited_ms", |row| Some(millis(row.day()?.regret.waited))),
        ("day_refaulted", |row| size(row.day()?.regret.refaults)),
    ];
    let machine: [(&str, Number); 8] = [
        ("threshold_s", |row| row.whole()?.threshold.map(|age| age.as_secs())),
        ("free", |row| row.whole()?.machine?.free.and_then(size)),
        ("zram_stored", |row| size(row.whole()?.machine?.zram?.stored)),
        ("zram_occupied", |row| size(row.whole()?.machine?.zram?.occupied)),
        ("zswap_stored", |row| size(row.whole()?.machine?.zswap?.stored)),
        ("zswap_occupied", |row| size(row.whole()?.machine?.zswap?.occupied)),
        ("swap_on_disk", |row| row.whole()?.machine?.disk.and_then(size)),
        ("image", |row| row.whole()?.machine?.image.and_then(size)),
    ];
    let since: [(&str, Number); 10] = [
        ("over_ms", |row| row.since().map(|since| millis(since.over))),
        ("refaults_anon", |row| row.since()?.refaults_anon.and_then(size)),
        ("refaults_file", |row| row.since()?.refaults_file.and_then(size)),
        ("swapped_in", |row| row.since()?.swapped_in.and_then(size)),
        ("stalled_ms", |row| row.since()?.stalled.map(millis)),
        ("stalled_full_ms", |row| row.since()?.stalled_full.map(millis)),
        ("reclaimed", |row| row.since()?.reclaimed.and_then(size)),
        ("promoted_over_ms", |row| row.whole()?.promotions.map(|promotions| millis(promotions.over))),
        ("agings", |row| Some(row.whole()?.cost?.agings)),
        ("cpu_ms", |row| Some(millis(row.whole()?.cost?.cpu))),
    ];
    let named = |(name, number): (&str, Number)| (name.to_owned(), Column::Number(number));
    let mut columns: Vec<(String, Column)> = vec![
        ("time".into(), Column::Time(|row| Some(millis(row.sample.time)))),
        ("boot".into(), Column::Text(|sample| sample.boot.to_string())),
        ("group".into(), Column::Text(|sample| format!("/{}", sample.group.to_string_lossy()))),
    ];
    columns.extend(numbers.map(named));
    let add_ages = |columns: &mut Vec<(String, Column)>, prefix: &str, column: fn(usize, Side) -> Column| {
        for (index, age) in AGES.iter().enumerate() {
            for (name, side) in [("least", Side::Least), ("most", Side::Most)] {
                columns.push((format!("{prefix}_{}s_{name}", age.as_secs()), column(index, side)));
            }
        }
    };
    add_ages(&mut columns, "idle", Column::Idle);
    columns.extend(since.map(named));
    add_ages(&mut columns, "promoted", Column::Promoted);
    columns.extend(day.map(named));
    columns.extend(machine.map(named));
    columns
}

impl Column {
    fn schema(&self, name: &str) -> parquet::errors::Result<Type> {
        let (physical, meaning, repetition) = match self {
            Column::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8, Repetition::REQUIRED),
            Column::Time(_) => (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS, Repetition::OPTIONAL),
            Column::Number(_) | Column::Idle(..) | Column::Promoted(..) => {
                (Physical::INT64, ConvertedType::UINT_64, Repetition::OPTIONAL)
            }
        };
        let column = Type::primitive_type_builder(name, physical);
        column.with_converted_type(meaning).with_repetition(repetition).build()
    }

    fn number(&self, row: Row<'_>) -> Option<u64> {
        match self {
            Column::Text(_) => None,
            Column::Time(number) | Column::Number(number) => number(row),
            Column::Idle(index, side) => side.of((*row.idle()?.bounds.get(*index)?)?),
            Column::Promoted(index, side) => side.of(*row.whole()?.promotions.as_ref()?.bounds.get(*index)?),
        }
    }
}

/// The form of a file.
#[derive(Clone, Copy, Default)]
pub struct Form {
    /// Also a row for each NUMA node.
    pub per_node: bool,
    /// Compressed with zstd.
    pub is_small: bool,
}

/// Writes the samples to this file and returns the number of rows. The file appears once it is
/// complete.
pub fn write(path: &Path, samples: impl Iterator<Item = Sample>, days: &Days, form: Form) -> Result<u64> {
    file::put(path, |file| write_to(file, samples, days, form))
}

/// The file names the program that wrote it, and the size of a page.
fn properties(form: Form) -> Result<WriterProperties> {
    let page = KeyValue::new(PAGE_KEY.to_owned(), rustix::param::page_size().to_string());
    let compression = match form.is_small {
        true => Compression::ZSTD(ZstdLevel::try_new(LEVEL)?),
        false => Compression::UNCOMPRESSED,
    };
    let built = WriterProperties::builder().set_created_by(concat!("omr ", env!("CARGO_PKG_VERSION")).to_owned());
    Ok(built.set_key_value_metadata(Some(vec![page])).set_compression(compression).build())
}

fn write_to<W: Write + Send>(
    out: W,
    mut samples: impl Iterator<Item = Sample>,
    days: &Days,
    form: Form,
) -> Result<u64> {
    let columns = columns();
    let fields = columns.iter().map(|(name, column)| column.schema(name).map(Arc::new));
    let schema = Type::group_type_builder("sample").with_fields(fields.collect::<Result<_, _>>()?).build()?;
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties(form)?))?;
    let mut written = 0;
    loop {
        let some: Vec<Sample> = samples.by_ref().take(ROWS).collect();
        if some.is_empty() {
            break;
        }
        let mut rows: Vec<Row<'_>> = Vec::with_capacity(some.len());
        for sample in &some {
            rows.push(Row { sample, days, node: None });
            rows.extend(sample.nodes.iter().filter(|_| form.per_node).map(|node| Row {
                sample,
                days,
                node: Some(node),
            }));
        }
        written += rows.len() as u64;
        let mut group = writer.next_row_group()?;
        for (_, column) in &columns {
            let Some(mut writer) = group.next_column()? else { break };
            match column {
                Column::Text(text) => {
                    let values: Vec<ByteArray> = rows.iter().map(|row| text(row.sample).into_bytes().into()).collect();
                    writer.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                }
                column => {
                    let numbers: Vec<Option<u64>> = rows.iter().map(|row| column.number(*row)).collect();
                    let is_there: Vec<i16> = numbers.iter().map(|number| i16::from(number.is_some())).collect();
                    let values: Vec<i64> = numbers.into_iter().flatten().map(u64::cast_signed).collect();
                    writer.typed::<Int64Type>().write_batch(&values, Some(&is_there), None)?;
                }
            }
            writer.close()?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use std::collections::HashMap;
    use std::time::Duration;

    use omr_kernel::numa;
    use omr_policy::age::Promotions;
    use omr_units::GroupId;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    use super::*;
    use omr_history::{Compressed, Cost, Machine};

    const PER_NODE: Form = Form { per_node: true, is_small: false };

    fn bare(number: u64) -> Sample {
        let group = if number.is_multiple_of(2) { "" } else { "a/\u{e9}" };
        Sample {
            time: Duration::from_secs(1_795_000_000 + number),
            boot: "b".into(),
            current: Bytes(number),
            peak: Bytes(2 * number),
            file: Bytes(4),
            shmem: Bytes(5),
            ..Sample::of_anon(group, GroupId(u64::MAX - number), Bytes(3))
        }
    }

    /// Returns the rows of the file, read by the library's reader.
    fn rows(path: &Path) -> Vec<HashMap<String, String>> {
        let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("Parquet");
        let row = |row: parquet::errors::Result<parquet::record::Row>| {
            let fields = row.expect("a row").into_columns();
            fields.into_iter().map(|(name, field)| (name, field.to_string())).collect()
        };
        reader.get_row_iter(None).expect("rows").map(row).collect()
    }

    #[test]
    fn a_reader_finds_all_values_and_unknown_is_null() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.parquet");
        let mut full = bare(1);
        let mut bounds = [None; AGES.len()];
        bounds[2] = Some(Bounds { least: Bytes(7), most: Bytes(8) });
        full.idle = Some(Idle { ago: Duration::from_secs(9), memory: Bytes(10), bounds });
        full.since = Some(Since {
            over: Duration::from_secs(600),
            refaults_anon: Some(Bytes(11)),
            refaults_file: Some(Bytes(0)),
            swapped_in: None,
            stalled: Some(Duration::from_micros(2500)),
            stalled_full: Some(Duration::from_millis(1)),
            reclaimed: Some(Bytes(12)),
        });
        full.threshold = Some(Duration::from_secs(300));
        let zram = Compressed { stored: Bytes(16), occupied: Bytes(15) };
        full.machine = Some(Machine { zram: Some(zram), free: Some(Bytes(17)), ..Machine::default() });
        let mut promoted = [Bounds::default(); AGES.len()];
        promoted[AGES.len() - 1] = Bounds { least: Bytes(13), most: Bytes(14) };
        full.promotions = Some(Promotions { over: Duration::from_secs(570), bounds: promoted });
        assert_eq!(write(&path, [full, bare(2)].into_iter(), &Days::default(), Form::default()).expect("written"), 2);
        let rows = rows(&path);
        let of = |row: usize, names: &[&str]| -> Vec<String> {
            names.iter().map(|name| rows[row].get(*name).cloned().unwrap_or_default()).collect()
        };
        let names =
            ["time", "group", "id", "current", "idle_120s_least", "idle_120s_most", "refaults_file", "stalled_ms"];
        let time = "2026-11-18 11:06:41.000 +00:00";
        assert_eq!(of(0, &names), [time, "\"/a/\u{e9}\"", "18446744073709551614", "1", "7", "8", "0", "2"]);
        assert_eq!(of(0, &["swap", "swapped_in"]), ["null", "null"]);
        // An age that is not recorded is unknown, and not zero.
        assert_eq!(of(0, &["idle_240s_least", "idle_240s_most"]), ["null", "null"]);
        let promotions =
            ["promoted_28800s_least", "promoted_28800s_most", "promoted_30s_most", "promoted_over_ms", "reclaimed"];
        assert_eq!(of(0, &promotions), ["13", "14", "0", "570000", "12"]);
        assert_eq!(of(1, &promotions), ["null"; 5]);
        let machine =
            ["threshold_s", "stalled_full_ms", "free", "zram_stored", "zram_occupied", "zswap_stored", "image"];
        assert_eq!(of(0, &machine), ["300", "1", "17", "16", "15", "null", "null"]);
        assert_eq!(of(1, &machine), ["null"; 7]);
        // The names that scripts knew before there were ages beyond an hour.
        for seconds in [30, 60, 120, 300, 600, 1800, 3600] {
            assert!(rows[0].contains_key(&format!("idle_{seconds}s_least")), "{seconds}");
        }
        assert_eq!(of(1, &names[1..]), ["\"/\"", "18446744073709551613", "2", "null", "null", "null", "null"]);
        assert_eq!(std::fs::read_dir(dir.path()).expect("files").count(), 1, "nothing else is left");
    }

    #[test]
    fn each_node_is_a_row_where_that_is_wanted_and_a_sample_alone_says_no_node() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.parquet");
        let mut sample = bare(1);
        let mut bounds = [None; AGES.len()];
        bounds[2] = Some(Bounds { least: Bytes(7), most: Bytes(8) });
        let held = |node, anon| numa::OnNode { node, anon: Bytes(anon), file: Bytes(4), shmem: Bytes(0) };
        let idle = Idle { ago: Duration::from_secs(9), memory: Bytes(2), bounds };
        sample.nodes = vec![OnNode { held: held(0, 1), idle: None }, OnNode { held: held(2, 2), idle: Some(idle) }];
        sample.cost = Some(Cost { agings: 5, cpu: Duration::from_millis(6) });
        let both = [sample, bare(2)];
        assert_eq!(write(&path, both.iter().cloned(), &Days::default(), PER_NODE).expect("written"), 4);
        let found = rows(&path);
        let column = |found: &[HashMap<String, String>], name: &str| -> Vec<String> {
            found.iter().map(|row| row[name].clone()).collect()
        };
        assert_eq!(column(&found, "group"), ["\"/a/\u{e9}\"", "\"/a/\u{e9}\"", "\"/a/\u{e9}\"", "\"/\""]);
        assert_eq!(column(&found, "node"), ["null", "0", "2", "null"]);
        assert_eq!(column(&found, "anon"), ["3", "1", "2", "3"]);
        assert_eq!(column(&found, "peak"), ["2", "null", "null", "4"]);
        assert_eq!(column(&found, "memory"), ["null", "null", "2", "null"]);
        assert_eq!(column(&found, "idle_120s_most"), ["null", "null", "8", "null"]);
        assert_eq!(column(&found, "agings"), ["5", "null", "null", "null"]);
        assert_eq!(column(&found, "cpu_ms"), ["6", "null", "null", "null"]);
        assert_eq!(write(&path, both.into_iter(), &Days::default(), Form::default()).expect("written"), 2);
        assert_eq!(column(&rows(&path), "node"), ["null", "null"]);
    }

    #[test]
    fn the_samples_of_a_day_have_the_gain_and_the_cost_of_that_day() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.parquet");
        // The samples are of 2026-11-18; "a" has one group below it.
        let lines = [
            r#"{"kind":"held-out","time":1795000000,"over_ms":2000,"groups":[{"group":"a/\u00e9","bytes":9},{"group":"b","bytes":5}]}"#,
            r#"{"kind":"regret","time":1795000000,"group":"a/\u00e9/x","waited_ms":7,"refaulted_bytes":8}"#,
        ];
        std::fs::write(dir.path().join("ledger.jsonl"), lines.join("\n") + "\n").expect("a ledger");
        let days = Days::read(dir.path()).expect("days");
        let mut of_next_day = bare(1);
        of_next_day.time += Duration::from_secs(86_400);
        let mut with_node = bare(1);
        let held = numa::OnNode { node: 0, anon: Bytes(1), file: Bytes(1), shmem: Bytes(0) };
        with_node.nodes = vec![OnNode { held, idle: None }];
        assert_eq!(write(&path, [bare(2), with_node, of_next_day].into_iter(), &days, PER_NODE).expect("written"), 4);
        let found: Vec<_> = rows(&path)
            .iter()
            .map(|row| ["day_held_out", "day_waited_ms", "day_refaulted"].map(|name| row[name].clone()))
            .collect();
        let nothing = ["null"; 3];
        assert_eq!(found, [["14", "7", "8"], ["9", "7", "8"], nothing, nothing], "machine, group, node, next day");
    }

    #[test]
    fn many_samples_take_several_groups_of_rows() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.parquet");
        let many = ROWS as u64 + 1;
        assert_eq!(write(&path, (0..many).map(bare), &Days::default(), Form::default()).expect("written"), many);
        let reader = SerializedFileReader::new(File::open(&path).expect("a file")).expect("Parquet");
        assert_eq!((reader.num_row_groups(), reader.metadata().file_metadata().num_rows()), (2, many as i64));
        assert_eq!(write(&path, std::iter::empty(), &Days::default(), Form::default()).expect("written"), 0);
    }

    #[test]
    fn a_small_file_has_the_same_rows_and_each_file_names_the_size_of_a_page() {
        let dir = tempfile::tempdir().expect("a directory");
        let written = |name: &str, form| {
            let path = dir.path().join(name);
            write(&path, (0..5_000).map(bare), &Days::default(), form).expect("written");
            let reader = SerializedFileReader::new(File::open(&path).expect("a file")).expect("Parquet");
            let metadata = reader.metadata().file_metadata();
            let pairs = metadata.key_value_metadata().expect("pairs");
            let page = pairs.iter().find(|pair| pair.key == PAGE_KEY).and_then(|pair| pair.value.clone());
            assert_eq!(page, Some(rustix::param::page_size().to_string()));
            assert!(metadata.created_by().is_some_and(|by| by.starts_with("omr ")), "{:?}", metadata.created_by());
            (std::fs::metadata(&path).expect("a file").len(), rows(&path))
        };
        let (plain, small) =
            (written("plain", Form::default()), written("small", Form { is_small: true, ..Form::default() }));
        assert_eq!(plain.1, small.1);
        assert!(small.0 * 4 < plain.0 * 3, "{} of {}", small.0, plain.0);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_and_nothing_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("none/x.parquet");
        let err =
            write(&path, [bare(1)].into_iter(), &Days::default(), Form::default()).expect_err("no such directory");
        assert!(format!("{err:#}").contains("none/x.parquet"), "{err:#}");
        std::fs::create_dir(dir.path().join("x")).expect("a directory");
        write(&dir.path().join("x"), [bare(1)].into_iter(), &Days::default(), Form::default())
            .expect_err("a directory in the way");
        assert_eq!(std::fs::read_dir(dir.path()).expect("files").count(), 1);
    }
}
