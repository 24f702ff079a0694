//! Writing the history.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_units::{Bytes, GroupId};

use super::{Sample, segment};

/// The number of files of a history. The oldest file is dropped before there are more.
const PARTS: u64 = 32;

/// Writes the history. Writes are not synchronous: a crash loses the last samples.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    boot: String,
    size: Bytes,
    open: Option<Open>,
    /// The number of rounds that were lost since the last one that was written.
    lost: u64,
}

/// The file that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    size: u64,
    groups: HashMap<(GroupId, PathBuf), u32>,
}

impl Store {
    /// Makes a store in this directory, for this boot. All files together stay below `size`. The
    /// first samples open a new file; files of an earlier daemon are never written again.
    pub fn new(dir: &Path, boot: &str, size: Bytes) -> Self {
        Store { dir: dir.into(), boot: boot.into(), size, open: None, lost: 0 }
    }

    /// Sets the limit for the size of all files together.
    pub fn resize(&mut self, size: Bytes) {
        self.size = size;
    }

    /// Appends the samples of one moment. Samples that cannot be written are lost; the first loss
    /// is logged.
    pub fn add(&mut self, time: Duration, samples: &[Sample]) {
        match self.try_add(time, samples) {
            Ok(()) if self.lost > 0 => {
                log::warn!("{}: samples of {} times were lost", self.dir.display(), self.lost);
                self.lost = 0;
            }
            Ok(()) => {}
            Err(err) => {
                if self.lost == 0 {
                    log::warn!("{}: {err}; there is no history until this is fixed", self.dir.display());
                }
                self.lost += 1;
            }
        }
    }

    fn try_add(&mut self, time: Duration, samples: &[Sample]) -> io::Result<()> {
        let part = (self.size.0 / PARTS).max(1);
        let mut open = match self.open.take() {
            Some(open) if open.size < part => open,
            _ => self.begin(part)?,
        };
        let mut out = Vec::new();
        let mut new = Vec::new();
        let mut numbered = Vec::with_capacity(samples.len());
        for sample in samples {
            let key = (sample.id, sample.group.to_path_buf());
            let number = match open.groups.get(&key) {
                Some(&number) => number,
                None => {
                    let number = u32::try_from(open.groups.len() + new.len()).unwrap_or(u32::MAX);
                    segment::put_group(&mut out, sample.id, &sample.group);
                    new.push((key, number));
                    number
                }
            };
            numbered.push((number, sample));
        }
        segment::put_round(&mut out, time, &numbered);
        // An incomplete round (disk full) is removed.
        if let Err(err) = open.file.write_all(&out) {
            if open.file.set_len(open.size).is_ok() {
                self.open = Some(open);
            }
            return Err(err);
        }
        open.size += out.len() as u64;
        open.groups.extend(new);
        self.open = Some(open);
        Ok(())
    }

    /// Drops the oldest files to make room for a new one of this size, and makes it.
    fn begin(&self, part: u64) -> io::Result<Open> {
        fs::create_dir_all(&self.dir)?;
        let files = segment::list(&self.dir)?;
        let sizes = files.iter().map(|file| fs::metadata(file).map_or(0, |found| found.len()));
        let mut all: u64 = sizes.clone().sum();
        for (file, size) in files.iter().zip(sizes) {
            if all.saturating_add(part) <= self.size.0 {
                break;
            }
            fs::remove_file(file)?;
            all = all.saturating_sub(size);
        }
        let number = files.last().and_then(|last| segment::number(last)).map_or(1, |last| last.saturating_add(1));
        let path = segment::path(&self.dir, number);
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        let header = segment::header(&self.boot);
        if let Err(err) = file.write_all(&header) {
            let _ = fs::remove_file(&path);
            return Err(err);
        }
        Ok(Open { file, size: header.len() as u64, groups: HashMap::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use omr_kernel::numa;
    use omr_policy::age::Bounds;
    use proptest::prelude::*;

    use super::*;
    use crate as history;
    use crate::{AGES, Cost, Idle, OnNode, Since};

    const HOUR: u64 = 3600;

    /// A sample with numbers as different as those of real groups; the same for the same seed.
    fn sample(time: u64, group: u64, seed: u64) -> Sample {
        let pages = |salt: u64, most: u64| {
            let number = (seed ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            Bytes(4096 * (number % (most >> 12).max(1)))
        };
        let memory = pages(1, 2 << 30);
        let mut bounds = [Bounds::default(); AGES.len()];
        let mut most = memory;
        for (index, bound) in bounds.iter_mut().enumerate() {
            most = most - pages(index as u64, (most.0 / 8).max(4096));
            *bound = Bounds { least: most - pages(9, (most.0 / 16).max(4096)), most };
        }
        for index in (1..AGES.len()).rev() {
            bounds[index - 1].least = bounds[index - 1].least.max(bounds[index].least);
        }
        Sample {
            time: Duration::from_secs(time),
            boot: "b".into(),
            group: Path::new(&format!("user.slice/user-1000.slice/user@1000.service/app.slice/app-{group}.scope"))
                .into(),
            id: GroupId(group),
            current: memory + pages(2, 1 << 30),
            peak: memory + pages(2, 1 << 30) + pages(3, 64 << 20),
            anon: memory,
            file: pages(2, 1 << 30),
            shmem: pages(4, 64 << 20),
            swap: Some(pages(5, 1 << 30)),
            idle: Some(Idle { ago: Duration::from_secs(seed % 300), memory, bounds }),
            since: Some(Since {
                over: Duration::from_millis(600_020),
                refaults_anon: Some(pages(6, 16 << 20)),
                refaults_file: Some(pages(7, 16 << 20)),
                swapped_in: None,
                stalled: Some(Duration::from_micros(seed % 100_000)),
            }),
            nodes: Vec::new(),
            cost: Some(Cost { agings: 5 * time, cpu: Duration::from_micros(time) }),
        }
    }

    /// The same sample on a machine with two nodes, with half of everything on each.
    fn on_two_nodes(sample: Sample) -> Sample {
        let half = |bytes: Bytes| Bytes((bytes.0 / 8192) << 12);
        let idle = sample.idle.as_ref().map(|idle| Idle {
            ago: idle.ago,
            memory: half(idle.memory),
            bounds: idle.bounds.map(|bounds| Bounds { least: half(bounds.least), most: half(bounds.most) }),
        });
        let nodes = [0, 1].map(|node| OnNode {
            held: numa::OnNode { node, anon: half(sample.anon), file: half(sample.file), shmem: half(sample.shmem) },
            idle: idle.clone().filter(|_| node == 0 || sample.time.as_secs().is_multiple_of(2)),
        });
        Sample { nodes: nodes.into(), ..sample }
    }

    fn all(dir: &Path) -> (Vec<Sample>, Vec<String>) {
        let mut samples = history::read(dir, Duration::ZERO..Duration::MAX, |_| true).expect("a history");
        let all = samples.by_ref().collect();
        (all, samples.skipped().iter().map(|skipped| skipped.why.clone()).collect())
    }

    fn one_file(dir: &Path) -> PathBuf {
        let files = segment::list(dir).expect("files");
        assert_eq!(files.len(), 1);
        files[0].clone()
    }

    #[test]
    fn samples_are_read_by_time_and_group() {
        let dir = tempfile::tempdir().expect("a directory");
        let none = history::read(&dir.path().join("none"), Duration::ZERO..Duration::MAX, |_| true).expect("none");
        assert_eq!(none.count(), 0);
        let mut written = Vec::new();
        // A daemon that is started anew goes on in another file.
        for begin in [0, 2] {
            let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
            for time in begin..begin + 2 {
                let round: Vec<Sample> = (0..3).map(|group| sample(time, group, 7 * time + group)).collect();
                store.add(Duration::from_secs(time), &round);
                written.extend(round);
            }
        }
        let (samples, skipped) = all(dir.path());
        assert_eq!((samples.len(), skipped.len()), (12, 0));
        assert_eq!(samples, written);
        let wanted = |path: &Path| path.ends_with("app-1.scope");
        let times = Duration::from_secs(1)..Duration::from_secs(3);
        let some: Vec<Sample> = history::read(dir.path(), times, wanted).expect("a history").collect();
        assert_eq!(some, [written[4].clone(), written[7].clone()]);
    }

    #[test]
    fn each_node_is_kept_where_there_are_several_and_nothing_is_where_there_is_one() {
        let write = |of: fn(Sample) -> Sample| {
            let dir = tempfile::tempdir().expect("a directory");
            let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
            let mut written = Vec::new();
            for time in 0..6 {
                // In every round one that has nothing on any node, or nothing known of one.
                let round: Vec<Sample> = (0..20).map(|group| sample(time, group, 7 * time + group)).collect();
                let round: Vec<Sample> = round
                    .into_iter()
                    .map(|sample| if sample.id.0 % 5 == time % 5 { sample } else { of(sample) })
                    .collect();
                store.add(Duration::from_secs(time), &round);
                written.extend(round);
            }
            assert_eq!(all(dir.path()), (written.clone(), vec![]));
            let wanted = |path: &Path| path.ends_with("app-1.scope");
            let times = Duration::from_secs(3)..Duration::from_secs(5);
            let some: Vec<Sample> = history::read(dir.path(), times, wanted).expect("a history").collect();
            assert_eq!(some, [written[61].clone(), written[81].clone()]);
            fs::metadata(one_file(dir.path())).expect("a size").len()
        };
        let (one, two) = (write(|sample| sample), write(on_two_nodes));
        assert!(two > one * 3 / 2 && two < one * 3, "{one} {two}");
    }

    /// By the description of the format, with Python's zlib, and not by this program.
    #[test]
    fn a_file_of_version_1_is_read() {
        let bytes =
            b"omr history 1 b\x0a\x07\x00\x00\x00`KlH\x00\xe7$\x03a/b6\x00\x00\x00\x17\xfd\x8cz\x01\xc0\x8d\xf6\
              \xd7\x06\x01\x00\xe8\x07\x01\xbc\x05\xc8\x01d\x01\x05\x01\x09\xa0\x06\x07\x06\x05\x04\x03\x02\x01\
              \xac\x02\xac\x02\xac\x02\xac\x02\xac\x02\xac\x02\xac\x02\x01\xd4\xcf$\x01\x03\x00\x00\x01\xdc\x0b\
              \x13\x00\x00\x00\xf3U|\x82\x01\x98\x92\xf6\xd7\x06\x01\x00\xe8\x07\x01\xbc\x05\xc8\x01d\x00\x00\x00";
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(segment::path(dir.path(), 1), bytes).expect("written");
        let (samples, skipped) = all(dir.path());
        assert_eq!(skipped, Vec::<String>::new());
        let mut bounds = [Bounds::default(); AGES.len()];
        for (index, bound) in bounds.iter_mut().enumerate() {
            let longer: u64 = (index as u64..7).map(|index| 7 - index).sum();
            *bound = Bounds { least: Bytes(longer << 12), most: Bytes((longer + 300) << 12) };
        }
        let full = Sample {
            time: Duration::from_secs(1_795_000_000),
            boot: "b".into(),
            group: Path::new("a/b").into(),
            id: GroupId(4711),
            current: Bytes(1000 << 12),
            peak: Bytes(1001 << 12),
            anon: Bytes(700 << 12),
            file: Bytes(200 << 12),
            shmem: Bytes(100 << 12),
            swap: Some(Bytes(5 << 12)),
            idle: Some(Idle { ago: Duration::from_secs(9), memory: Bytes(800 << 12), bounds }),
            since: Some(Since {
                over: Duration::from_millis(600_020),
                refaults_anon: Some(Bytes(3 << 12)),
                refaults_file: None,
                swapped_in: None,
                stalled: Some(Duration::from_micros(1500)),
            }),
            nodes: Vec::new(),
            cost: None,
        };
        let bare =
            Sample { swap: None, idle: None, since: None, time: Duration::from_secs(1_795_000_600), ..full.clone() };
        assert_eq!(samples, [full, bare]);
    }

    #[test]
    fn files_from_before_the_wanted_times_are_not_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |time| {
            Store::new(dir.path(), "b", Bytes::mib(64)).add(Duration::from_secs(time), &[sample(time, 1, time)]);
            let file = segment::list(dir.path()).expect("files").pop().expect("the last");
            let written = std::time::UNIX_EPOCH + Duration::from_secs(time);
            File::options().append(true).open(&file).and_then(|file| file.set_modified(written)).expect("a time");
            file
        };
        let (old, _) = (write(1000), write(2000));
        let from = |seconds| {
            let times = Duration::from_secs(seconds)..Duration::MAX;
            let mut samples = history::read(dir.path(), times, |_| true).expect("a history");
            (samples.by_ref().map(|sample| sample.time.as_secs()).collect::<Vec<_>>(), samples.skipped().len())
        };
        assert_eq!((from(1000), from(1001)), ((vec![1000, 2000], 0), (vec![2000], 0)));
        let written = fs::metadata(&old).and_then(|found| found.modified()).expect("a time");
        fs::write(&old, "spoilt").expect("written");
        assert_eq!(from(1500), (vec![2000], 1), "it was written to after that");
        File::options().append(true).open(&old).and_then(|file| file.set_modified(written)).expect("a time");
        assert_eq!(from(1500), (vec![2000], 0));
    }

    #[test]
    fn a_group_made_anew_under_its_name_is_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
        let (first, mut second) = (sample(1, 1, 1), sample(2, 1, 2));
        second.id = GroupId(99);
        store.add(first.time, std::slice::from_ref(&first));
        store.add(second.time, std::slice::from_ref(&second));
        assert_eq!(all(dir.path()).0, [first, second]);
    }

    #[test]
    fn a_torn_tail_is_left_out_and_said_and_never_written_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let add =
            |time| Store::new(dir.path(), "b", Bytes::mib(64)).add(Duration::from_secs(time), &[sample(time, 1, time)]);
        add(1);
        let file = one_file(dir.path());
        let whole = fs::read(&file).expect("bytes");
        for cut in 1..whole.len() {
            fs::write(&file, &whole[..cut]).expect("written");
            let (samples, skipped) = all(dir.path());
            assert!(samples.is_empty());
            // A cut between two frames is no damage.
            assert!(skipped.len() <= 1, "{cut}: {skipped:?}");
        }
        fs::write(&file, &whole[..whole.len() - 1]).expect("written");
        add(2);
        let (samples, skipped) = all(dir.path());
        assert_eq!(samples, [sample(2, 1, 2)]);
        assert_eq!(skipped, ["it was not written to its end"]);
    }

    #[test]
    fn damage_and_other_versions_are_left_out_and_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
        store.add(Duration::from_secs(1), &[sample(1, 1, 1)]);
        let good = fs::metadata(one_file(dir.path())).expect("a size").len();
        store.add(Duration::from_secs(2), &[sample(2, 1, 2)]);
        let file = one_file(dir.path());
        let mut bytes = fs::read(&file).expect("bytes");
        let place = usize::try_from(good).expect("small") + 12;
        bytes[place] ^= 1;
        fs::write(&file, &bytes).expect("written");
        let (samples, skipped) = all(dir.path());
        assert_eq!(samples, [sample(1, 1, 1)]);
        assert_eq!(skipped, ["a checksum is wrong"]);
        fs::write(segment::path(dir.path(), 7), "omr history 3 b\nwhatever").expect("written");
        fs::write(segment::path(dir.path(), 8), "<html>").expect("written");
        let (samples, skipped) = all(dir.path());
        assert_eq!(samples.len(), 1);
        assert_eq!(
            skipped[1..],
            ["of version 3, and this omr reads up to version 2", "it does not begin as a file of omr's history"]
        );
    }

    #[test]
    fn it_never_grows_beyond_its_size_and_the_oldest_goes_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let size = Bytes::mib(1);
        let mut store = Store::new(dir.path(), "b", size);
        for time in 0..1000 {
            let round: Vec<Sample> = (0..100).map(|group| sample(time, group, 31 * time + group)).collect();
            store.add(Duration::from_secs(time), &round);
            let files = segment::list(dir.path()).expect("files");
            let all: u64 = files.iter().map(|file| fs::metadata(file).expect("a size").len()).sum();
            // The last round may be larger than what was left for it.
            assert!(all <= size.0 + 16384, "{all}");
        }
        let (samples, skipped) = all(dir.path());
        assert!(skipped.is_empty());
        assert_eq!(samples.last().map(|last| last.time), Some(Duration::from_secs(999)));
        let first = samples.first().map(|first| first.time.as_secs()).expect("a sample");
        assert!(first > 500, "{first}");
        assert_eq!(samples.len() as u64, (1000 - first) * 100, "and none between");
    }

    /// The arithmetic of docs/use/ages.md.
    #[test]
    fn thirty_days_of_two_hundred_groups_fit_into_64_mib() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
        for round in 0..6 * 24 {
            let samples: Vec<Sample> = (0..200).map(|group| sample(round, group, 31 * round + group)).collect();
            store.add(Duration::from_secs(round * HOUR / 6), &samples);
        }
        let files = segment::list(dir.path()).expect("files");
        let day: u64 = files.iter().map(|file| fs::metadata(file).expect("a size").len()).sum();
        assert!(day * 30 <= Bytes::mib(64).0, "{} of a sample", day / (144 * 200));
        assert!(day * 30 >= Bytes::mib(32).0, "the samples are too much alike to prove anything");
    }

    #[test]
    fn samples_that_cannot_be_written_are_lost_and_later_ones_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("history");
        fs::write(&place, "in the way").expect("written");
        let mut store = Store::new(&place, "b", Bytes::mib(64));
        for time in 1..4 {
            store.add(Duration::from_secs(time), &[sample(time, 1, time)]);
        }
        assert_eq!(store.lost, 3);
        fs::remove_file(&place).expect("out of the way");
        store.add(Duration::from_secs(4), &[sample(4, 1, 4)]);
        assert_eq!(store.lost, 0);
        assert_eq!(all(&place).0, [sample(4, 1, 4)]);
        // No space: the kernel's own file for that.
        if let Some(open) = &mut store.open {
            open.file = OpenOptions::new().append(true).open("/dev/full").expect("a full device");
        }
        store.add(Duration::from_secs(5), &[sample(5, 1, 5)]);
        assert_eq!(store.lost, 1);
        store.add(Duration::from_secs(6), &[sample(6, 1, 6)]);
        assert_eq!(all(&place), (vec![sample(4, 1, 4), sample(6, 1, 6)], vec![]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..400) {
            let dir = tempfile::tempdir().expect("a directory");
            let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
            store.add(Duration::from_secs(1), &[sample(1, 1, 1)]);
            let file = one_file(dir.path());
            let mut whole = fs::read(&file).expect("bytes");
            whole.truncate(at);
            whole.extend(bytes);
            fs::write(&file, whole).expect("written");
            let _ = all(dir.path());
        }

        #[test]
        fn bounds_come_back_as_they_went_in_or_narrower(pages in prop::array::uniform14(0u64..1 << 30)) {
            let mut bounds = [Bounds::default(); AGES.len()];
            for (index, bound) in bounds.iter_mut().enumerate() {
                let (a, b) = (pages[index], pages[index + 7]);
                *bound = Bounds { least: Bytes(a.min(b) << 12), most: Bytes(a.max(b) << 12) };
            }
            let idle = Idle { ago: Duration::ZERO, memory: Bytes(1 << 43), bounds };
            let dir = tempfile::tempdir().expect("a directory");
            let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
            let group: Rc<Path> = Path::new("a").into();
            store.add(Duration::ZERO, &[Sample { idle: Some(idle), group, ..sample(0, 1, 1) }]);
            let back = all(dir.path()).0[0].idle.clone().expect("ages").bounds;
            for index in 0..AGES.len() {
                prop_assert!(back[index].least >= bounds[index].least);
                prop_assert!(back[index].least <= back[index].most);
                prop_assert!(index == 0 || back[index].least <= back[index - 1].least);
            }
        }
    }
}
