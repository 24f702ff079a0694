//! Reads the history of one machine, as `omr record export` and `omr history --groups --parquet` write
//! it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use omr_history::{AGES, Idle};
use omr_policy::age::{Bounds, Promotions};
use omr_units::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, RowGroupReader, SerializedFileReader};

/// Rows that are read at a time.
const ROWS: usize = 8_192;
/// Larger sizes are mistakes: 64 PiB.
const LARGEST: u64 = 1 << 56;
/// More groups at one time are a mistake. omr records 200.
const MOST_GROUPS: usize = 100_000;
/// The key of the file's metadata with the size of a page in bytes.
pub const PAGE_KEY: &str = "omr.page_size";
const PAGE: Bytes = Bytes::kib(4);

/// Why a shard cannot be used: its file and row, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// To try again is in vain.
    Bad(String),
    /// The system could not read the file. Perhaps it can later.
    Unread(String),
}

impl Unusable {
    /// The reader's error. Where a file ends too early, its content is wrong.
    fn of(err: &ParquetError, text: String) -> Self {
        let ParquetError::External(source) = err else { return Unusable::Bad(text) };
        match source.downcast_ref::<io::Error>().map(io::Error::kind) {
            None | Some(ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput) => {
                Unusable::Bad(text)
            }
            Some(_) => Unusable::Unread(text),
        }
    }
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Unusable::Bad(text) | Unusable::Unread(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Unusable {}

/// One group at one time: what a replay needs of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The wall clock, in milliseconds since 1970.
    pub time: u64,
    /// The kernel's boot id.
    pub boot: Rc<str>,
    /// The path of the group, with a `/` before it.
    pub group: Rc<str>,
    /// The identity of the group.
    pub id: u64,
    /// Its memory.
    pub current: Bytes,
    /// Its memory in swap; `None`: unknown.
    pub swap: Option<Bytes>,
    /// The idle time of its memory; `None`: unknown.
    pub idle: Option<Idle>,
    /// The time since the last sample; `None`: this is the first one.
    pub over: Option<Duration>,
    /// Memory that came back from swap since then.
    pub refaulted: Option<Bytes>,
    /// The time in which some task waited for memory.
    pub stalled: Option<Duration>,
    /// The promotions since then.
    pub promotions: Option<Promotions>,
    /// The age from which on omr could take memory; `None`: it could not, or any.
    pub threshold: Option<Duration>,
}

/// A shard that is open.
pub struct Shard {
    name: String,
    reader: SerializedFileReader<File>,
    columns: Columns,
    /// The size of a page on the machine.
    pub page: Bytes,
}

/// The places of the columns in the file.
struct Columns {
    time: usize,
    boot: usize,
    group: usize,
    numbers: Vec<usize>,
    node: Option<usize>,
}

/// The columns with numbers, in the order in which [`row`] takes them.
fn names() -> Vec<String> {
    let plain = [
        "id",
        "current",
        "swap",
        "ages_ms_ago",
        "memory",
        "over_ms",
        "refaults_anon",
        "stalled_ms",
        "promoted_over_ms",
        "threshold_s",
    ];
    let mut names: Vec<String> = plain.map(str::to_owned).into();
    for prefix in ["idle", "promoted"] {
        for age in AGES {
            names.extend(["least", "most"].map(|side| format!("{prefix}_{}s_{side}", age.as_secs())));
        }
    }
    names
}

impl Shard {
    /// Opens a shard and checks that it has the columns of a history.
    pub fn open(path: &Path) -> Result<Self, Unusable> {
        let name = path.display().to_string();
        let bad = |what: &dyn std::fmt::Display| Unusable::Bad(format!("{name}: {what}"));
        let file = File::open(path).map_err(|err| Unusable::Unread(format!("{name}: {err}")))?;
        let reader = SerializedFileReader::new(file)
            .map_err(|err| Unusable::of(&err, format!("{name}: no Parquet file: {err}")))?;
        let metadata = reader.metadata().file_metadata();
        let schema = metadata.schema_descr();
        let find = |wanted: &str, expected: Physical| {
            let column = schema.columns().iter().position(|column| column.path().string() == wanted);
            let at = column.ok_or_else(|| {
                bad(&format_args!(
                    "no column {wanted}; expected a file of omr history --groups --parquet, of this version of omr"
                ))
            })?;
            let column = schema.column(at);
            let found = column.physical_type();
            if found != expected || column.max_rep_level() > 0 || column.max_def_level() > 1 {
                return Err(bad(&format_args!("column {wanted} is {found}; expected {expected}, one value a row")));
            }
            Ok(at)
        };
        let columns = Columns {
            time: find("time", Physical::INT64)?,
            boot: find("boot", Physical::BYTE_ARRAY)?,
            group: find("group", Physical::BYTE_ARRAY)?,
            numbers: names().iter().map(|name| find(name, Physical::INT64)).collect::<Result<_, _>>()?,
            node: find("node", Physical::INT64).ok(),
        };
        let pairs = metadata.key_value_metadata().map_or(&[][..], Vec::as_slice);
        let page = match pairs.iter().find(|pair| pair.key == PAGE_KEY).map(|pair| pair.value.as_deref()) {
            None => PAGE,
            Some(value) => match value.and_then(|value| value.parse().ok()) {
                Some(bytes @ 4_096..=1_048_576_u64) if bytes.is_power_of_two() => Bytes(bytes),
                _ => return Err(bad(&format_args!("{PAGE_KEY} is {value:?}; expected 4096 to 1048576"))),
            },
        };
        Ok(Shard { name, reader, columns, page })
    }

    /// Hands over the samples of one time after the other, in the order of the file, each group
    /// once.
    pub fn each_round(&self, mut round: impl FnMut(&[Row])) -> Result<u64, Unusable> {
        let (mut rows, mut seen, mut count) = (Vec::new(), HashSet::new(), 0);
        self.each_row(|number, row| {
            count += 1;
            if rows.first().is_some_and(|first: &Row| first.time != row.time) {
                round(&rows);
                rows.clear();
                seen.clear();
            }
            if !seen.insert(Rc::clone(&row.group)) {
                return Err(self.bad_row(number, format_args!("group {:?} has two samples of this time", row.group)));
            }
            if rows.len() == MOST_GROUPS {
                return Err(self.bad_row(number, format_args!("more than {MOST_GROUPS} groups at one time")));
            }
            rows.push(row);
            Ok(())
        })?;
        if !rows.is_empty() {
            round(&rows);
        }
        Ok(count)
    }

    fn bad_row(&self, number: u64, what: impl std::fmt::Display) -> Unusable {
        Unusable::Bad(self.at_row(number, what))
    }

    fn at_row(&self, number: u64, what: impl std::fmt::Display) -> String {
        format!("{}: row {}: {what}", self.name, number + 1)
    }

    fn each_row(&self, mut each: impl FnMut(u64, Row) -> Result<(), Unusable>) -> Result<(), Unusable> {
        let unreadable =
            |number, err: ParquetError| Unusable::of(&err, self.at_row(number, format_args!("unreadable: {err}")));
        let (mut number, names) = (0, names());
        let (mut groups, mut boots) = (HashSet::new(), HashSet::new());
        for index in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(index).map_err(|err| unreadable(number, err))?;
            let mut batch = Batch::open(&*group, &self.columns).map_err(|err| unreadable(number, err))?;
            loop {
                let rows = batch.read().map_err(|err| unreadable(number, err))?;
                for at in 0..rows {
                    // A node's part of a sample.
                    if batch.node.as_ref().is_some_and(|node| node.get(at).is_some()) {
                        number += 1;
                        continue;
                    }
                    let row = batch.row(at, &names, &mut groups, &mut boots);
                    each(number, row.map_err(|what| self.bad_row(number, what))?)?;
                    number += 1;
                }
                if rows < ROWS {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A column of numbers of which some rows are read.
struct Numbers {
    reader: ColumnReaderImpl<Int64Type>,
    is_required: bool,
    values: Vec<Option<i64>>,
}

impl Numbers {
    fn open(group: &dyn RowGroupReader, at: usize) -> Result<Self, ParquetError> {
        let is_required = group.metadata().column(at).column_descr().max_def_level() == 0;
        match group.get_column_reader(at)? {
            ColumnReader::Int64ColumnReader(reader) => Ok(Numbers { reader, is_required, values: Vec::new() }),
            _ => Err(ParquetError::General("not a column of numbers".into())),
        }
    }

    /// Reads the next rows, and returns how many.
    fn read(&mut self) -> Result<usize, ParquetError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let levels_wanted = (!self.is_required).then_some(&mut levels);
        let (rows, _, _) = self.reader.read_records(ROWS, levels_wanted, None, &mut values)?;
        self.values.clear();
        let mut values = values.into_iter();
        if self.is_required {
            self.values.extend(values.map(Some));
        } else {
            self.values.extend(levels.iter().map(|&level| if level == 0 { None } else { values.next() }));
        }
        check(self.values.len(), rows)
    }

    fn get(&self, at: usize) -> Option<i64> {
        self.values.get(at).copied().flatten()
    }
}

fn check(found: usize, rows: usize) -> Result<usize, ParquetError> {
    match found == rows {
        true => Ok(rows),
        false => Err(ParquetError::General(format!("{found} values in {rows} rows"))),
    }
}

/// A column of texts of which some rows are read.
struct Texts {
    reader: ColumnReader,
    values: Vec<ByteArray>,
}

impl Texts {
    fn open(group: &dyn RowGroupReader, at: usize) -> Result<Self, ParquetError> {
        Ok(Texts { reader: group.get_column_reader(at)?, values: Vec::new() })
    }

    fn read(&mut self) -> Result<usize, ParquetError> {
        self.values.clear();
        let ColumnReader::ByteArrayColumnReader(reader) = &mut self.reader else {
            return Err(ParquetError::General("not a column of texts".into()));
        };
        let mut levels = Vec::new();
        let (rows, _, _) = reader.read_records(ROWS, Some(&mut levels), None, &mut self.values)?;
        // A row without a text is none of omr's.
        check(self.values.len(), rows)
    }

    /// The text, once for all rows that have the same.
    fn get(&self, at: usize, known: &mut HashSet<Rc<str>>) -> Option<Rc<str>> {
        let text = String::from_utf8_lossy(self.values.get(at)?.data());
        if let Some(known) = known.get(&*text) {
            return Some(Rc::clone(known));
        }
        let text: Rc<str> = text.into();
        known.insert(Rc::clone(&text));
        Some(text)
    }
}

/// Some rows of a row group.
struct Batch {
    time: Numbers,
    boot: Texts,
    group: Texts,
    numbers: Vec<Numbers>,
    node: Option<Numbers>,
}

impl Batch {
    fn open(group: &dyn RowGroupReader, columns: &Columns) -> Result<Self, ParquetError> {
        Ok(Batch {
            time: Numbers::open(group, columns.time)?,
            boot: Texts::open(group, columns.boot)?,
            group: Texts::open(group, columns.group)?,
            numbers: columns.numbers.iter().map(|&at| Numbers::open(group, at)).collect::<Result<_, _>>()?,
            node: columns.node.map(|at| Numbers::open(group, at)).transpose()?,
        })
    }

    /// Reads the next rows, and returns how many. Fewer than [`ROWS`]: these are the last ones.
    fn read(&mut self) -> Result<usize, ParquetError> {
        let rows = self.time.read()?;
        check(self.boot.read()?, rows)?;
        check(self.group.read()?, rows)?;
        for numbers in self.numbers.iter_mut().chain(&mut self.node) {
            check(numbers.read()?, rows)?;
        }
        Ok(rows)
    }

    fn row(
        &self,
        at: usize,
        names: &[String],
        groups: &mut HashSet<Rc<str>>,
        boots: &mut HashSet<Rc<str>>,
    ) -> Result<Row, String> {
        let time = self.time.get(at).ok_or("no time")?;
        let time = u64::try_from(time).map_err(|_| format!("time is {time}; expected milliseconds since 1970"))?;
        let mut columns = self.numbers.iter().zip(names);
        let mut next = || columns.next().map(|(column, name)| (column.get(at), name.as_str()));
        // An id may have any bits.
        let id = next().and_then(|(id, _)| id).ok_or("no id")?.cast_unsigned();
        let mut number = || match next() {
            Some((Some(value), name)) => match u64::try_from(value) {
                Ok(value) if value <= LARGEST => Ok(Some(value)),
                _ => Err(format!("{name} is {value}; expected 0 to {LARGEST}")),
            },
            _ => Ok(None),
        };
        let current = Bytes(number()?.ok_or("no current")?);
        let [swap, ago, memory, over, refaulted, stalled, promoted_over, threshold] =
            [number()?, number()?, number()?, number()?, number()?, number()?, number()?, number()?];
        let mut all_bounds = |what: &str| {
            let mut all = [None; AGES.len()];
            for (bounds, age) in all.iter_mut().zip(AGES) {
                *bounds = match (number()?, number()?) {
                    (Some(least), Some(most)) if least <= most => {
                        Some(Bounds { least: Bytes(least), most: Bytes(most) })
                    }
                    (Some(least), Some(most)) => {
                        let age = age.as_secs();
                        return Err(format!("{what}_{age}s_least is {least}, which is more than its most, {most}"));
                    }
                    _ => None,
                };
            }
            Ok(all)
        };
        let (bounds, promoted) = (all_bounds("idle")?, all_bounds("promoted")?);
        let promotions = promoted_over.filter(|_| promoted.iter().all(Option::is_some)).map(|over| Promotions {
            over: Duration::from_millis(over),
            bounds: promoted.map(Option::unwrap_or_default),
        });
        Ok(Row {
            time,
            boot: self.boot.get(at, boots).ok_or("no boot")?,
            group: self.group.get(at, groups).ok_or("no group")?,
            id,
            current,
            swap: swap.map(Bytes),
            idle: memory.zip(ago).map(|(memory, ago)| Idle {
                ago: Duration::from_millis(ago),
                memory: Bytes(memory),
                bounds,
            }),
            over: over.map(Duration::from_millis),
            refaulted: refaulted.map(Bytes),
            stalled: stalled.map(Duration::from_millis),
            promotions,
            threshold: threshold.map(Duration::from_secs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fails_does_not_make_a_shard_bad() {
        let of = |err: io::Error| Unusable::of(&err.into(), "text".into());
        // EIO.
        assert_eq!(of(io::Error::from_raw_os_error(5)), Unusable::Unread("text".into()));
        assert_eq!(of(ErrorKind::UnexpectedEof.into()), Unusable::Bad("text".into()));
        let content = ParquetError::General("no page".into());
        assert_eq!(Unusable::of(&content, "text".into()), Unusable::Bad("text".into()));
    }
}
