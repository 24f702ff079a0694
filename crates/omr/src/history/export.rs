//! The history as a Parquet file, which pandas, DuckDB, Spark and the like read.
//!
//! One row for each sample. Sizes are bytes; what is unknown is null.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_units::Bytes;
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::{AGES, Sample};

/// Rows that are held in memory before they are written.
const ROWS: usize = 20_000;

type Text = fn(&Sample) -> String;
type Number = fn(&Sample) -> Option<u64>;

/// What a column holds.
enum Column {
    Text(Text),
    /// Milliseconds since 1970, UTC.
    Time(Number),
    Number(Number),
    /// How much was not used for the age of this number, at least or at most.
    Idle(usize, Side),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Least,
    Most,
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn size(bytes: Bytes) -> Option<u64> {
    Some(bytes.0)
}

/// All columns by name.
fn columns() -> Vec<(String, Column)> {
    let mut columns: Vec<(String, Column)> = vec![
        ("time".into(), Column::Time(|sample| Some(ms(sample.time)))),
        ("boot".into(), Column::Text(|sample| sample.boot.to_string())),
        ("group".into(), Column::Text(|sample| format!("/{}", sample.group.to_string_lossy()))),
        ("id".into(), Column::Number(|sample| Some(sample.id.0))),
        ("current".into(), Column::Number(|sample| size(sample.current))),
        ("peak".into(), Column::Number(|sample| size(sample.peak))),
        ("anon".into(), Column::Number(|sample| size(sample.anon))),
        ("file".into(), Column::Number(|sample| size(sample.file))),
        ("shmem".into(), Column::Number(|sample| size(sample.shmem))),
        ("swap".into(), Column::Number(|sample| sample.swap.and_then(size))),
        ("ages_ms_ago".into(), Column::Number(|sample| sample.idle.as_ref().map(|idle| ms(idle.ago)))),
        ("memory".into(), Column::Number(|sample| sample.idle.as_ref().and_then(|idle| size(idle.memory)))),
    ];
    for (index, age) in AGES.iter().enumerate() {
        for (name, side) in [("least", Side::Least), ("most", Side::Most)] {
            columns.push((format!("idle_{}s_{name}", age.as_secs()), Column::Idle(index, side)));
        }
    }
    let since: [(&str, Number); 5] = [
        ("over_ms", |sample| sample.since.as_ref().map(|since| ms(since.over))),
        ("refaults_anon", |sample| sample.since.as_ref()?.refaults_anon.and_then(size)),
        ("refaults_file", |sample| sample.since.as_ref()?.refaults_file.and_then(size)),
        ("swapped_in", |sample| sample.since.as_ref()?.swapped_in.and_then(size)),
        ("stalled_ms", |sample| sample.since.as_ref()?.stalled.map(ms)),
    ];
    columns.extend(since.map(|(name, number)| (name.into(), Column::Number(number))));
    columns
}

impl Column {
    fn schema(&self, name: &str) -> parquet::errors::Result<Type> {
        let (physical, meaning, repetition) = match self {
            Column::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8, Repetition::REQUIRED),
            Column::Time(_) => (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS, Repetition::OPTIONAL),
            Column::Number(_) | Column::Idle(..) => (Physical::INT64, ConvertedType::UINT_64, Repetition::OPTIONAL),
        };
        let column = Type::primitive_type_builder(name, physical);
        column.with_converted_type(meaning).with_repetition(repetition).build()
    }

    fn number(&self, sample: &Sample) -> Option<u64> {
        match self {
            Column::Text(_) => None,
            Column::Time(number) | Column::Number(number) => number(sample),
            Column::Idle(index, side) => {
                let bounds = sample.idle.as_ref()?.bounds[*index];
                size(if *side == Side::Least { bounds.least } else { bounds.most })
            }
        }
    }
}

/// Writes the samples to this file, and returns how many. It is there when all of it is.
pub fn write(path: &Path, samples: impl Iterator<Item = Sample>) -> Result<u64> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(name);
    let written = File::create(&temporary).map_err(anyhow::Error::from).and_then(|file| {
        let rows = write_to(file, samples)?;
        fs::rename(&temporary, path)?;
        Ok(rows)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("write {}", path.display()))
}

fn write_to<W: Write + Send>(out: W, mut samples: impl Iterator<Item = Sample>) -> Result<u64> {
    let columns = columns();
    let fields = columns.iter().map(|(name, column)| column.schema(name).map(Arc::new));
    let schema = Type::group_type_builder("sample").with_fields(fields.collect::<Result<_, _>>()?).build()?;
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(WriterProperties::default()))?;
    let mut rows = 0;
    loop {
        let some: Vec<Sample> = samples.by_ref().take(ROWS).collect();
        if some.is_empty() {
            break;
        }
        rows += some.len() as u64;
        let mut group = writer.next_row_group()?;
        for (_, column) in &columns {
            let Some(mut writer) = group.next_column()? else { break };
            match column {
                Column::Text(text) => {
                    let values: Vec<ByteArray> = some.iter().map(|sample| text(sample).into_bytes().into()).collect();
                    writer.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                }
                column => {
                    let numbers: Vec<Option<u64>> = some.iter().map(|sample| column.number(sample)).collect();
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
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use omr_policy::age::Bounds;
    use omr_units::GroupId;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    use super::*;
    use crate::history::{Idle, Since};

    fn bare(number: u64) -> Sample {
        Sample {
            time: Duration::from_secs(1_795_000_000 + number),
            boot: "b".into(),
            group: Path::new(if number.is_multiple_of(2) { "" } else { "a/\u{e9}" }).into(),
            id: GroupId(u64::MAX - number),
            current: Bytes(number),
            peak: Bytes(2 * number),
            anon: Bytes(3),
            file: Bytes(4),
            shmem: Bytes(5),
            swap: None,
            idle: None,
            since: None,
        }
    }

    /// The file's rows as another reader prints them.
    fn rows(path: &Path) -> Vec<HashMap<String, String>> {
        let reader = SerializedFileReader::new(File::open(path).expect("a file")).expect("Parquet");
        let row = |row: parquet::errors::Result<parquet::record::Row>| {
            let fields = row.expect("a row").into_columns();
            fields.into_iter().map(|(name, field)| (name, field.to_string())).collect()
        };
        reader.get_row_iter(None).expect("rows").map(row).collect()
    }

    #[test]
    fn what_is_written_is_read_by_another_and_unknown_is_null() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.parquet");
        let mut full = bare(1);
        let mut bounds = [Bounds::default(); AGES.len()];
        bounds[2] = Bounds { least: Bytes(7), most: Bytes(8) };
        full.idle = Some(Idle { ago: Duration::from_secs(9), memory: Bytes(10), bounds });
        full.since = Some(Since {
            over: Duration::from_secs(600),
            refaults_anon: Some(Bytes(11)),
            refaults_file: Some(Bytes(0)),
            swapped_in: None,
            stalled: Some(Duration::from_micros(2500)),
        });
        assert_eq!(write(&path, [full, bare(2)].into_iter()).expect("written"), 2);
        let rows = rows(&path);
        let of = |row: usize, names: &[&str]| -> Vec<String> {
            names.iter().map(|name| rows[row].get(*name).cloned().unwrap_or_default()).collect()
        };
        let names =
            ["time", "group", "id", "current", "idle_120s_least", "idle_120s_most", "refaults_file", "stalled_ms"];
        let time = "2026-11-18 11:06:41.000 +00:00";
        assert_eq!(of(0, &names), [time, "\"/a/\u{e9}\"", "18446744073709551614", "1", "7", "8", "0", "2"]);
        assert_eq!(of(0, &["swap", "swapped_in"]), ["null", "null"]);
        assert_eq!(of(1, &names[1..]), ["\"/\"", "18446744073709551613", "2", "null", "null", "null", "null"]);
        assert_eq!(std::fs::read_dir(dir.path()).expect("files").count(), 1, "nothing else is left");
    }

    #[test]
    fn many_samples_take_several_groups_of_rows() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.parquet");
        let many = ROWS as u64 + 1;
        assert_eq!(write(&path, (0..many).map(bare)).expect("written"), many);
        let reader = SerializedFileReader::new(File::open(&path).expect("a file")).expect("Parquet");
        assert_eq!((reader.num_row_groups(), reader.metadata().file_metadata().num_rows()), (2, many as i64));
        assert_eq!(write(&path, std::iter::empty()).expect("written"), 0);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_and_nothing_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("none/x.parquet");
        let err = write(&path, [bare(1)].into_iter()).expect_err("no such directory");
        assert!(format!("{err:#}").contains("none/x.parquet"), "{err:#}");
        std::fs::create_dir(dir.path().join("x")).expect("a directory");
        write(&dir.path().join("x"), [bare(1)].into_iter()).expect_err("a directory in the way");
        assert_eq!(std::fs::read_dir(dir.path()).expect("files").count(), 1);
    }
}
