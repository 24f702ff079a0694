//! The record of `omr warm` (the file `warm` in the state directory): the pages of processes that
//! were in memory.
//!
//! The file is JSON and starts with the version. A range of pages is stored as its distance from
//! the end of the previous range and its length, which takes some six bytes. Only root may read the
//! file, because it shows the addresses of processes' memory.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_base::cancel::Flag;
use omr_base::storage::write_privately;
use omr_kernel::maps::{self, Backing, Detail};
use omr_kernel::pagemap::{NEAR, Pagemap, Residency};
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use omr_kernel::{Kernel, clock};
use omr_policy::Class;
use omr_units::{Bytes, PageSize};
use serde::{Deserialize, Serialize};

use super::Subject;

/// The version that this program writes and reads.
const VERSION: u32 = 1;
/// The most ranges in a record. If there are more, those of the least important groups are left
/// out.
const MOST_RANGES: usize = 500_000;
/// The longest time of reading one process's page table.
const PROCESS_TIME: Duration = Duration::from_secs(5);
/// The largest size of a record: most of the [`MOST_RANGES`] have short numbers.
const LARGEST: u64 = 16 << 20;

/// Shorter gaps are not recorded: swapped pages in a gap come back, too.
const GAP: Bytes = Bytes::kib(64);

/// A record of the pages that were in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// The kernel's boot id. Processes do not outlive a boot; resume is no new boot.
    pub boot: String,
    /// The page size.
    pub page: PageSize,
    /// The time of the record, in seconds since 1970.
    pub time: u64,
    /// True if there were more ranges than a record can have.
    pub cut: bool,
    /// The groups, most important first.
    pub groups: Vec<RecordedGroup>,
}

/// The memory of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedGroup {
    /// Its path, for printing.
    pub path: String,
    /// Its class at that time.
    pub class: Class,
    /// Its processes.
    pub processes: Vec<RecordedProcess>,
}

/// The memory of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedProcess {
    /// The process id, which with `starttime` is the identity of the process.
    pub pid: u32,
    /// The start time in ticks since boot.
    pub starttime: u64,
    /// The ranges in mappings that were used since accessed bits were last cleared.
    pub used: Packed,
    /// The ranges in other mappings.
    pub rest: Packed,
}

/// Ranges as alternating distances and lengths, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Packed(Vec<u64>);

impl Packed {
    /// Packs ranges.
    pub fn new(ranges: &Ranges, page: PageSize) -> Self {
        let page = page.bytes().0;
        let mut end = 0;
        let mut numbers = Vec::with_capacity(2 * ranges.as_slice().len());
        for range in ranges.as_slice() {
            numbers.extend([range.start / page - end, range.end / page - range.start / page]);
            end = range.end / page;
        }
        Packed(numbers)
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len() / 2
    }

    /// Returns the ranges; `None`: the numbers are not valid ranges.
    pub fn ranges(&self, page: PageSize) -> Option<Ranges> {
        let (page, mut end) = (page.bytes().0, 0u64);
        let mut ranges = Ranges::new();
        for pair in self.0.chunks(2) {
            let &[distance, pages] = pair else { return None };
            let start = end.checked_add(distance)?;
            end = start.checked_add(pages).filter(|&end| end > start)?;
            ranges.push(start.checked_mul(page)?..end.checked_mul(page)?);
        }
        Some(ranges)
    }
}

impl Record {
    /// Returns an empty record.
    pub fn new(boot: String, page: PageSize, time: u64) -> Self {
        Record { version: VERSION, boot, page, time, cut: false, groups: Vec::new() }
    }

    /// Returns true if the record is of this boot, so that its processes may still run.
    pub fn is_of(&self, boot: &str, kernel: &Kernel) -> bool {
        self.boot == boot && self.page == kernel.page()
    }

    /// Returns all processes.
    pub fn processes(&self) -> impl Iterator<Item = &RecordedProcess> {
        self.groups.iter().flat_map(|group| &group.processes)
    }

    /// Writes the record, and returns its size. A crash at any moment leaves the old record or the
    /// new one.
    pub fn write(&self, path: &Path) -> Result<u64> {
        let text = serde_json::to_vec(self)?;
        let size = text.len() as u64;
        if size > LARGEST {
            bail!("{}: the record would have {size} bytes, more than {LARGEST}", path.display());
        }
        write_privately(path, &text)?;
        Ok(size)
    }

    /// Reads the record; `None`: there is none. Fails if another user than root could have written
    /// it.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        // The path may be a pipe, which must not block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(err).with_context(|| format!("read {}", path.display())),
        };
        let meta = file.metadata().with_context(|| format!("read {}", path.display()))?;
        let own = rustix::process::geteuid().as_raw();
        let refused = if !meta.is_file() {
            Some("it is not a regular file".to_owned())
        } else if meta.uid() != 0 && meta.uid() != own {
            Some(format!("it belongs to user {}", meta.uid()))
        } else if meta.mode() & 0o022 != 0 {
            Some("others may write to it".to_owned())
        } else if meta.len() > LARGEST {
            Some(format!("it has {} bytes, more than {LARGEST}", meta.len()))
        } else {
            None
        };
        let mut text = Vec::new();
        if refused.is_none() {
            file.take(LARGEST).read_to_end(&mut text).with_context(|| format!("read {}", path.display()))?;
        }
        let parsed = refused.map_or_else(|| Record::parse(&text), Err);
        parsed.map(Some).map_err(|why| {
            anyhow::anyhow!("{}: {why}; make a new one with \"omr warm --record\", or remove it", path.display())
        })
    }

    /// Parses a record. The error describes the mistake.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_slice::<Versioned>(text) {
            Ok(Versioned { version: VERSION }) => {}
            Ok(Versioned { version }) => {
                return Err(format!("it has version {version}, but this omr reads version {VERSION}"));
            }
            Err(err) => return Err(format!("not a record of omr warm, or cut off ({err})")),
        }
        let record: Record = serde_json::from_slice(text).map_err(|err| format!("not a record of omr warm ({err})"))?;
        if PageSize::new(u32::try_from(record.page.bytes().0).unwrap_or(0)).is_none() {
            return Err("its page size is not valid".into());
        }
        let is_broken = |packed: &Packed| packed.ranges(record.page).is_none();
        if record.processes().any(|process| is_broken(&process.used) || is_broken(&process.rest)) {
            return Err("it has invalid ranges".into());
        }
        Ok(record)
    }
}

/// The figures of a record.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Recorded {
    /// The number of groups.
    pub groups: usize,
    /// The number of processes.
    pub processes: usize,
    /// The number of ranges.
    pub ranges: usize,
    /// Bytes in mappings that were used since accessed bits were last cleared.
    pub used: Bytes,
    /// Bytes in other mappings.
    pub rest: Bytes,
    /// The number of processes that this process has no right to read.
    pub denied: usize,
    /// The number of processes that could not be read for other reasons: they have too many
    /// mappings or ranges, or reading one took too long.
    pub unread: usize,
    /// True if processes were left out because the record is full, or the time was up.
    pub cut: bool,
}

/// Records the resident memory of these processes, until the flag ends it.
///
/// The page table shows which pages are resident, but not their use; smaps shows if a whole mapping
/// was used. Unused mappings come after all used ones. They are not left out, because on an idle
/// machine little of the memory that will be needed was used lately.
pub fn record(kernel: &Kernel, subjects: &[Subject], cancel: &Flag) -> Result<(Record, Recorded)> {
    let mut record = Record::new(kernel.read_boot_id()?, kernel.page(), clock::read_wall().as_secs());
    let mut figures = Recorded::default();
    for subject in subjects {
        let mut processes = Vec::new();
        for &pid in &subject.pids {
            if cancel.is_set() {
                record.cut = true;
                break;
            }
            let (starttime, used, rest) = match read_process(kernel, pid, cancel) {
                Ok(seen) => seen,
                Err(err) if err.is_gone() => continue,
                Err(err) if err.is_denied() => {
                    figures.denied += 1;
                    continue;
                }
                Err(_) if cancel.is_set() => continue,
                // One process must not keep the others out of the record.
                Err(err) => {
                    log::info!("process {pid} is not recorded: {err}");
                    figures.unread += 1;
                    continue;
                }
            };
            let (bytes, more) = (used.bytes(), rest.bytes());
            let (used, rest) = (Packed::new(&used, kernel.page()), Packed::new(&rest, kernel.page()));
            let ranges = used.len() + rest.len();
            if ranges == 0 {
                continue;
            }
            if figures.ranges + ranges > MOST_RANGES {
                record.cut = true;
                continue;
            }
            figures.ranges += ranges;
            figures.used += bytes;
            figures.rest += more;
            processes.push(RecordedProcess { pid, starttime, used, rest });
        }
        if !processes.is_empty() {
            figures.groups += 1;
            figures.processes += processes.len();
            let path = subject.group.to_string_lossy().into_owned();
            record.groups.push(RecordedGroup { path, class: subject.class, processes });
        }
    }
    figures.cut = record.cut;
    Ok((record, figures))
}

/// Returns a process's start time and its resident memory, in used mappings and in others. Short
/// gaps count as resident. Fails when the flag is set, and for a process that takes longer than
/// [`PROCESS_TIME`] or has more than [`MOST_RANGES`] ranges, which any user can make.
pub(super) fn read_process(
    kernel: &Kernel,
    pid: u32,
    cancel: &Flag,
) -> Result<(u64, Ranges, Ranges), omr_kernel::Error> {
    let process = Process::open(kernel, pid)?;
    let mut details = maps::read_smaps(process.dir())?;
    // Addresses that are only reserved have no memory.
    details.retain(|detail| detail.mapping.backing != Backing::Kernel && detail.resident != Some(Bytes::ZERO));
    let all: Ranges = details.iter().map(|detail| detail.mapping.range.clone()).collect();
    let is_over = until(cancel);
    let is_full = AtomicBool::new(false);
    let check = || is_over() || is_full.load(Ordering::Relaxed);
    let mut pagemap = Pagemap::open(process.dir(), kernel.page())?.until(&check);
    let mut present = Ranges::new();
    for span in all.bridged(NEAR).as_slice() {
        pagemap.for_each(span.clone(), |range, residency| {
            if residency == Residency::Present {
                present.push_bridged(range, GAP);
                is_full.store(present.as_slice().len() > MOST_RANGES, Ordering::Relaxed);
            }
        })?;
    }
    let (mut used, mut rest) = (Ranges::new(), Ranges::new());
    for Detail { mapping, referenced, .. } in details {
        // A mapping of unknown use counts as used: unknown is never cold.
        let ranges = if referenced == Some(Bytes::ZERO) { &mut rest } else { &mut used };
        ranges.append(&present.within(&mapping.range));
    }
    let (used, rest) = (used.bridged(GAP), rest.bridged(GAP).without(&used.bridged(GAP)));
    Ok((process.stat().starttime, used, rest))
}

/// Returns a check that is true once the flag is set, or [`PROCESS_TIME`] is over.
pub(super) fn until(cancel: &Flag) -> impl Fn() -> bool + '_ {
    let end = clock::read_monotonic() + PROCESS_TIME;
    move || cancel.is_set() || clock::read_monotonic() >= end
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    fn page() -> PageSize {
        PageSize::new(4096).expect("a page")
    }

    fn lists() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((1u64..1 << 35, 1u64..1 << 20), 0..20).prop_map(|steps| {
            let mut at = 0;
            let ranges = steps.into_iter().map(|(distance, pages)| {
                let start = at + distance * 4096;
                at = start + pages * 4096;
                start..at
            });
            ranges.collect()
        })
    }

    fn record(used: &Ranges, rest: &Ranges) -> Record {
        let mut record = Record::new("7d0c9ad0".into(), page(), 1);
        let (used, rest) = (Packed::new(used, page()), Packed::new(rest, page()));
        let processes = vec![RecordedProcess { pid: 7, starttime: 500, used, rest }];
        record.groups.push(RecordedGroup { path: "a/\u{7f}\"b".into(), class: Class::Foreground, processes });
        record
    }

    proptest! {
        #[test]
        fn a_written_record_reads_back_the_same(used in lists(), rest in lists()) {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("warm");
            let written = record(&used, &rest);
            let size = written.write(&path).expect("written");
            prop_assert_eq!(size, fs::metadata(&path).expect("a file").len());
            let read = Record::read(&path).expect("readable").expect("there");
            prop_assert_eq!(&read, &written);
            let process = read.processes().next().expect("a process");
            prop_assert_eq!(process.used.ranges(page()), Some(used));
            prop_assert_eq!(process.rest.ranges(page()), Some(rest));
        }

        #[test]
        fn a_record_that_is_cut_off_anywhere_is_refused(used in lists(), rest in lists(), at in any::<prop::sample::Index>()) {
            let text = serde_json::to_vec(&record(&used, &rest)).expect("text");
            prop_assert!(Record::parse(&text[..at.index(text.len())]).is_err());
        }

        #[test]
        fn noise_is_refused_or_read_and_never_a_panic(text: Vec<u8>, at in any::<prop::sample::Index>(), byte: u8) {
            let _ = Record::parse(&text);
            let ranges: Ranges = [4096..8192, 1 << 30..1 << 31].into_iter().collect();
            let mut near = serde_json::to_vec(&record(&ranges, &ranges)).expect("text");
            let at = at.index(near.len());
            near[at] = byte;
            let _ = Record::parse(&near);
        }

        #[test]
        fn invalid_numbers_yield_no_ranges(numbers: Vec<u64>) {
            let packed = Packed(numbers.clone());
            if let Some(ranges) = packed.ranges(page()) {
                prop_assert!(numbers.len() % 2 == 0);
                prop_assert!(ranges.as_slice().iter().all(|range| range.start < range.end));
            }
        }
    }

    #[test]
    fn hostile_files_are_refused_with_a_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("warm");
        assert!(Record::read(&path).expect("no file is no error").is_none());
        let good = serde_json::to_string(&record(&Ranges::new(), &Ranges::new())).expect("text");
        for (text, why) in [
            (String::new(), "cut off"),
            ("[]".into(), "not a record"),
            (good.replace("\"version\":1", "\"version\":2"), "version 2"),
            (good.replace("\"cut\"", "\"cuts\""), "cuts"),
            (good.replace("\"page\":4096", "\"page\":0"), "page"),
            (good.replace("\"used\":[]", "\"used\":[1]"), "ranges"),
            (good.replace("\"used\":[]", "\"used\":[1,0]"), "ranges"),
            (good.replace("\"used\":[]", "\"used\":[18446744073709551615,1]"), "ranges"),
            (good.replace("\"used\":[]", "\"used\":[9007199254740992,1]"), "ranges"),
            (good.replace("\"used\":[]", "\"used\":[-1,1]"), "not a record"),
            ("[".repeat(100_000), "not a record"),
        ] {
            assert_ne!(text, good);
            fs::write(&path, text).expect("written");
            let error = Record::read(&path).expect_err(why).to_string();
            assert!(error.contains(why) && error.contains("omr warm --record"), "{why}: {error}");
        }
        fs::write(&path, &good).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("set");
        assert!(Record::read(&path).expect_err("refused").to_string().contains("others may write"));
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(Record::read(&path).is_err());
        fs::remove_file(&path).expect("removed");
        fs::File::create(&path).and_then(|file| file.set_len(LARGEST + 1)).expect("a large file");
        assert!(Record::read(&path).expect_err("refused").to_string().contains("bytes"));
        fs::remove_file(&path).expect("removed");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        assert!(Record::read(&path).expect_err("refused").to_string().contains("not a regular file"));
    }

    #[test]
    fn only_the_owner_may_read_the_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("warm");
        record(&Ranges::new(), &Ranges::new()).write(&path).expect("written");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
    }

    #[test]
    fn no_change_of_a_record_makes_it_panic_and_ranges_are_in_order() {
        let used: Ranges = [0x1000..0x3000, 0x7000..0x8000].into_iter().collect();
        let rest: Ranges = std::iter::once(0x10_0000..0x20_0000).collect();
        let text = serde_json::to_vec(&record(&used, &rest)).expect("text");
        omr_testkit::fuzz::feed(&[text], |text| {
            let Ok(record) = Record::parse(text) else { return };
            for process in record.processes() {
                for packed in [&process.used, &process.rest] {
                    let ranges = packed.ranges(record.page).expect("it was checked");
                    assert!(ranges.as_slice().iter().all(|range| range.start < range.end));
                }
            }
        });
    }
}
