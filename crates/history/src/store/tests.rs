//! Tests of the store, and of the format through it.

use std::fs::{self, OpenOptions};

use omr_kernel::numa;
use omr_policy::age::{Bounds, Promotions};
use proptest::prelude::*;

use super::*;
use crate as history;
use crate::{AGES, Compressed, Cost, Idle, Machine, OnNode, Since};

const HOUR: u64 = 3600;

/// Promotions of agings 5 min, 2 min, 1 min and 30 s before the sample, and right before it.
/// They tell four ages apart, and all longer ones have the bounds of the longest of those.
fn promotions(seed: u64) -> Promotions {
    let mut bounds = [Bounds::default(); AGES.len()];
    for (index, bound) in bounds.iter_mut().enumerate() {
        let pages = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) / (index as u64 + 1).min(4);
        *bound = Bounds { least: Bytes(if index < 2 { pages << 11 & !4095 } else { 0 }), most: Bytes(pages << 12) };
    }
    Promotions { over: Duration::from_millis(600_031), bounds }
}

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
    // Four, eight and fifteen minutes are between two of the daemon's agings.
    for index in [3, 5, 7] {
        bounds[index] = Bounds { least: bounds[index + 1].least, most: bounds[index - 1].most };
    }
    Sample {
        time: Duration::from_secs(time),
        boot: "b".into(),
        group: Path::new(&format!("user.slice/user-1000.slice/user@1000.service/app.slice/app-{group}.scope")).into(),
        id: GroupId(group),
        current: memory + pages(2, 1 << 30),
        peak: memory + pages(2, 1 << 30) + pages(3, 64 << 20),
        anon: memory,
        file: pages(2, 1 << 30),
        shmem: pages(4, 64 << 20),
        swap: Some(pages(5, 1 << 30)),
        idle: Some(Idle { ago: Duration::from_secs(seed % 300), memory, bounds: bounds.map(Some) }),
        since: Some(Since {
            over: Duration::from_millis(600_020),
            refaults_anon: Some(pages(6, 16 << 20)),
            refaults_file: Some(pages(7, 16 << 20)),
            swapped_in: None,
            stalled: Some(Duration::from_micros(seed % 100_000)),
            stalled_full: Some(Duration::from_millis(seed % 50)),
            reclaimed: Some(pages(8, 64 << 20)).filter(|_| seed.is_multiple_of(3)),
        }),
        promotions: Some(promotions(seed)),
        nodes: Vec::new(),
        threshold: Some(Duration::from_secs(300)).filter(|_| seed.is_multiple_of(2)),
        machine: None,
        cost: Some(Cost { agings: 5 * time, cpu: Duration::from_micros(time) }),
    }
}

/// A sample of the machine, with other figures for another seed.
fn machine(time: u64, seed: u64) -> Sample {
    let pages = |number: u64| Bytes((seed + number) << 12);
    let zram = Compressed { stored: pages(9), occupied: pages(3) };
    let machine = Machine { free: Some(pages(1)), zram: Some(zram), zswap: None, disk: Some(pages(5)), image: None };
    Sample { group: Path::new("").into(), threshold: None, machine: Some(machine), ..sample(time, 99, seed) }
}

/// The same sample on a machine with two nodes, with half of everything on each.
fn on_two_nodes(sample: Sample) -> Sample {
    let half = |bytes: Bytes| Bytes((bytes.0 / 8192) << 12);
    let idle = sample.idle.as_ref().map(|idle| Idle {
        ago: idle.ago,
        memory: half(idle.memory),
        bounds: idle.bounds.map(|bounds| bounds.map(|of| Bounds { least: half(of.least), most: half(of.most) })),
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

fn paths_of(dir: &Path) -> Vec<PathBuf> {
    let folder = Folder::open(dir).expect("a directory");
    segment::list(&folder).expect("files").into_iter().map(|name| dir.join(name)).collect()
}

fn one_file(dir: &Path) -> PathBuf {
    let files = paths_of(dir);
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
            let groups = (0..3).map(|group| sample(time, group, 7 * time + group));
            let round: Vec<Sample> = groups.chain([machine(time, time)]).collect();
            store.add(Duration::from_secs(time), &round);
            written.extend(round);
        }
    }
    let (samples, skipped) = all(dir.path());
    assert_eq!((samples.len(), skipped.len()), (16, 0));
    assert_eq!(samples, written);
    let wanted = |path: &Path| path.ends_with("app-1.scope");
    let times = Duration::from_secs(1)..Duration::from_secs(3);
    let some: Vec<Sample> = history::read(dir.path(), times, wanted).expect("a history").collect();
    assert_eq!(some, [written[5].clone(), written[9].clone()]);
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
            let round: Vec<Sample> =
                round.into_iter().map(|sample| if sample.id.0 % 5 == time % 5 { sample } else { of(sample) }).collect();
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
const VERSION_1: &[u8] =
    b"omr history 1 b\x0a\x07\x00\x00\x00`KlH\x00\xe7$\x03a/b6\x00\x00\x00\x17\xfd\x8cz\x01\xc0\x8d\xf6\
      \xd7\x06\x01\x00\xe8\x07\x01\xbc\x05\xc8\x01d\x01\x05\x01\x09\xa0\x06\x07\x06\x05\x04\x03\x02\x01\
      \xac\x02\xac\x02\xac\x02\xac\x02\xac\x02\xac\x02\xac\x02\x01\xd4\xcf$\x01\x03\x00\x00\x01\xdc\x0b\
      \x13\x00\x00\x00\xf3U|\x82\x01\x98\x92\xf6\xd7\x06\x01\x00\xe8\x07\x01\xbc\x05\xc8\x01d\x00\x00\x00";

#[test]
fn a_file_of_version_1_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(segment::name(1)), VERSION_1).expect("written");
    let (samples, skipped) = all(dir.path());
    assert_eq!(skipped, Vec::<String>::new());
    let mut bounds = [None; AGES.len()];
    for (index, age) in [30, 60, 120, 300, 600, 1800, 3600].into_iter().enumerate() {
        let longer: u64 = (index as u64..7).map(|index| 7 - index).sum();
        let place = AGES.iter().position(|known| known.as_secs() == age).expect("an age");
        bounds[place] = Some(Bounds { least: Bytes(longer << 12), most: Bytes((longer + 300) << 12) });
    }
    assert_eq!(bounds.iter().flatten().count(), 7);
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
            stalled_full: None,
            reclaimed: None,
        }),
        promotions: None,
        nodes: Vec::new(),
        threshold: None,
        machine: None,
        cost: None,
    };
    let bare = Sample { swap: None, idle: None, since: None, time: Duration::from_secs(1_795_000_600), ..full.clone() };
    assert_eq!(samples, [full, bare]);
}

/// Of an omr that wrote version 2: two samples of one group, the first on two nodes.
const VERSION_2: &[u8] = b"omr history 2 b\nE\x00\x00\x00\xc7\x95\xb1p\x00\x07Buser.slice/user-1000.slice/user@\
      1000.service/app.slice/app-7.scope\xaf\x00\x00\x00\xdd\xcc\x9d\xde\x02\xc0\x8d\xf6\
      \xd7\x06\x01\x00\x8f\xfc$\xe47\xf1\xd0\x15\x9e\xab\x0f\x91\x12\x01\xd7\x9e\r\x01-\
      \xf1\xd0\x15\xcc\xc8\x02\xeb\xcb\x01\xfc\xa1\x01\x00\xc78\x9bl\xfb\xeb\r\xac+\x98&\
      \xde\x0b\x8c@\x8b8\x95\x1d\xab\x0b\x01\xd4\xcf$\x01\x84\x19\x01\xca\x05\x00\x01\xb9`\
      \x01\xc0\xc3\xce\xb7!\xc0\x8d\xf6\xd7\x06\x01\x00\x02\x00\xb8\xe8\n\xcf\xd5\x07\x88\
      \t\x01-\xb8\xe8\n\xa6\xa4\x01\xf6e\xfeP\x00\xa3\x1c\x8e6\xfd\xf5\x06\xd6\x15\x8c\x13\
      \xef\x05\x86 \x86\x1c\xca\x0e\xd6\x05\x01\xb8\xe8\n\xcf\xd5\x07\x88\t\x01-\xb8\xe8\n\
      \xa6\xa4\x01\xf6e\xfeP\x00\xa3\x1c\x8e6\xfd\xf5\x06\xd6\x15\x8c\x13\xef\x05\x86 \x86\
      \x1c\xca\x0e\xd6\x05\x1a\x00\x00\x00rz\x0b\x11\x02\x98\x92\xf6\xd7\x06\x01\x00\x92\
      \xb1\x16\xb3+\xa6\x92\x12\xec\x9e\x04\xf97\x00\x00\x00\x00\x00";

#[test]
fn a_file_of_version_2_is_read_and_ages_that_it_did_not_record_are_unknown() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(segment::name(1)), VERSION_2).expect("written");
    let (samples, skipped) = all(dir.path());
    assert_eq!((samples.len(), skipped), (2, vec![]));
    let [first, second] = samples.as_slice() else { panic!("two samples") };
    assert_eq!((first.time, second.time), (Duration::from_secs(1_795_000_000), Duration::from_secs(1_795_000_600)));
    assert_eq!(&*first.group, Path::new("user.slice/user-1000.slice/user@1000.service/app.slice/app-7.scope"));
    assert_eq!((first.id, first.current), (GroupId(7), Bytes(2_480_992_256)));
    assert_eq!((first.anon, first.swap), (Bytes(1_451_692_032), Some(Bytes(888_500_224))));
    assert_eq!(first.cost, Some(Cost { agings: 8_975_000_000, cpu: Duration::from_secs(1795) }));
    let since = first.since.as_ref().expect("counters");
    assert_eq!(since.stalled, Some(Duration::from_micros(12_345)));
    assert_eq!((since.refaults_anon, since.swapped_in), (Some(Bytes(13_123_584)), None));
    // Unknown, and not zero.
    assert_eq!((since.reclaimed, first.promotions), (None, None));
    let idle = first.idle.as_ref().expect("ages");
    let expected = [
        (30, 1_379_467_264, 1_402_191_872),
        (60, 1_207_189_504, 1_227_210_752),
        (120, 1_100_320_768, 1_106_472_960),
        (300, 1_015_402_496, 1_049_006_080),
        (600, 1_015_402_496, 1_044_807_680),
        (1800, 985_751_552, 1_001_041_920),
        (3600, 929_017_856, 934_961_152),
    ];
    let found = idle.ages().map(|(age, bounds)| (age.as_secs(), bounds.least.0, bounds.most.0));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    for age in [240, 480, 900, 7200, 14_400, 28_800] {
        assert_eq!(idle.of(Duration::from_secs(age)), None, "{age}");
    }
    assert_eq!(first.nodes.len(), 2);
    assert_eq!(first.nodes[1].held.anon, Bytes(725_843_968));
    let of_node = first.nodes[0].idle.as_ref().expect("ages of a node");
    assert_eq!((of_node.memory, of_node.ages().count()), (Bytes(725_843_968), 7));
    assert_eq!((&second.idle, &second.since, second.cost, second.promotions), (&None, &None, None, None));
}

/// Of an omr that wrote version 3: two samples of one moment, the machine and a group on two nodes.
const VERSION_3: &[u8] = b"omr history 3 b\n\x03\x00\x00\x00\xd5O\x00\xb0\x00\x07\x00E\x00\x00\x00\xc7\x95\xb1p\x00\
      \x07Buser.slice/user-1000.slice/user@1000.service/app.slice/app-7.scope|\x01\x00\x00\xe8\
      Y\x19k\x03\xc0\x8d\xf6\xd7\x06\x02\x00\xab\xda)\x00\xf2\xe6\x1b\xb9\xf3\r\x92(\x01\xd8\
      \xb4\x03\x01\x03\xf2\xe6\x1b\x00\xd3>\xab?\x13\xf2\x83\x0c\xf2\t\xc1\x8c\x01\xf62\xf6\
      \x84\x01\xc2Q\xc1\x1f\x96H\xb2\x88\x01\x80\"\xf4\x83\x03\xf1\xf6\x02\x9c\xb3\x03\xea\xb9\
      \x02\xd6}\xd1\xa4\x02\xbe\xb5\x01\x8e\xe8\x02\xc4<\x01\xd4\xcf$\x01\x9f\x01\x01\xe5\r\
      \x00\x01\x03\x01\xab\xda)\x00\xf2\xe6\x1b\xb9\xf3\r\x92(\x01\xd8\xb4\x03\x01\x03\xf2\xe6\
      \x1b\x00\xd3>\xab?\x13\xf2\x83\x0c\xf2\t\xc1\x8c\x01\xf62\xf6\x84\x01\xc2Q\xc1\x1f\x96H\
      \xb2\x88\x01\x80\"\xf4\x83\x03\xf1\xf6\x02\x9c\xb3\x03\xea\xb9\x02\xd6}\xd1\xa4\x02\xbe\
      \xb5\x01\x8e\xe8\x02\xc4<\x01\xd4\xcf$\x01\x9f\x01\x01\xe5\r\x00\x01\x03\x01\xc0\xc3\xce\
      \xb7!\xc0\x8d\xf6\xd7\x06\x01\x01\x02\x00\xb9\xf3\r\xdc\xf9\x06\x89\x14\x01\x03\xb9\xf3\
      \r\x00\xd3>\xab?\x13\xf9\x81\x06\xf9\x04\xa0F\xbb\x19\xbbB\xe1(\xe1\x0f\x8b$\x99D\x80\
      \x11\xfa\xc1\x01\xb8\xbb\x01\xce\xd9\x01\xf5\x9c\x01\xeb>\xa9\x92\x01\xdfZ\x87\xb4\x01\
      \xa2\x1e\x01\xb9\xf3\r\xdc\xf9\x06\x89\x14\x01\x03\xb9\xf3\r\x00\xd3>\xab?\x13\xf9\x81\
      \x06\xf9\x04\xa0F\xbb\x19\xbbB\xe1(\xe1\x0f\x8b$\x99D\x80\x11\xfa\xc1\x01\xb8\xbb\x01\
      \xce\xd9\x01\xf5\x9c\x01\xeb>\xa9\x92\x01\xdfZ\x87\xb4\x01\xa2\x1e\x02\x01\xf8u\x01\xdf\
      \xcf$\x00\x03\x87 \x06\xaa\x1b\xb8$\xaa\x1b\xaa\x1b\xaa\x1b\xd56\x01\xf8u\x01\xdf\xcf$\
      \x00\x03\x87 \x06\xaa\x1b\xb8$\xaa\x1b\xaa\x1b\xaa\x1b\xd56";

#[test]
fn a_file_of_version_3_is_read_and_figures_that_it_did_not_record_are_unknown() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(segment::name(1)), VERSION_3).expect("written");
    let (samples, skipped) = all(dir.path());
    assert_eq!(skipped, Vec::<String>::new());
    let without = |sample: Sample| {
        let since = sample.since.map(|since| Since { stalled_full: None, ..since });
        Sample { since, threshold: None, machine: None, ..sample }
    };
    let [machine, group] = samples.as_slice() else { panic!("two samples") };
    let wrote = sample(1_795_000_000, 7, 3);
    assert_eq!(*machine, without(Sample { group: Path::new("").into(), ..wrote.clone() }));
    assert_eq!(*group, without(on_two_nodes(wrote)));
    assert!(group.promotions.is_some() && group.nodes.len() == 2, "the control");
}

#[test]
fn files_from_before_the_wanted_times_are_not_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |time| {
        Store::new(dir.path(), "b", Bytes::mib(64)).add(Duration::from_secs(time), &[sample(time, 1, time)]);
        let file = paths_of(dir.path()).pop().expect("the last");
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
    fs::write(dir.path().join(segment::name(7)), "omr history 5 b\nwhatever").expect("written");
    fs::write(dir.path().join(segment::name(8)), "<html>").expect("written");
    let (samples, skipped) = all(dir.path());
    assert_eq!(samples.len(), 1);
    assert_eq!(
        skipped[1..],
        ["of version 5, and this omr reads up to version 4", "it does not begin as a file of omr's history"]
    );
}

#[test]
fn a_file_of_a_newer_version_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let newer = dir.path().join(segment::name(7));
    let text = "omr history 5 b\nwhatever";
    fs::write(&newer, text).expect("written");
    for time in 1..4 {
        let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
        store.add(Duration::from_secs(time), &[sample(time, 1, time)]);
    }
    assert_eq!(fs::read_to_string(&newer).expect("the file"), text);
    let (samples, skipped) = all(dir.path());
    assert_eq!(samples.len(), 3, "the daemon goes on beside it");
    assert_eq!(skipped, ["of version 5, and this omr reads up to version 4"]);
}

#[test]
fn it_never_grows_beyond_its_size_and_the_oldest_goes_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let size = Bytes::mib(1);
    let mut store = Store::new(dir.path(), "b", size);
    for time in 0..1000 {
        let round: Vec<Sample> = (0..100).map(|group| sample(time, group, 31 * time + group)).collect();
        store.add(Duration::from_secs(time), &round);
        let files = paths_of(dir.path());
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
fn thirty_days_of_two_hundred_groups_fit_into_the_default_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
    for round in 0..6 * 24 {
        let samples: Vec<Sample> = (0..200).map(|group| sample(round, group, 31 * round + group)).collect();
        store.add(Duration::from_secs(round * HOUR / 6), &samples);
    }
    let files = paths_of(dir.path());
    let day: u64 = files.iter().map(|file| fs::metadata(file).expect("a size").len()).sum();
    let size = omr_policy::History::default().size.0;
    assert!(day * 30 <= size, "{} of a sample", day / (144 * 200));
    assert!(day * 30 >= size / 2, "the samples are too much alike to prove anything");
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
    fn bounds_come_back_as_they_went_in_or_narrower(
        pages in prop::array::uniform13((0u64..1 << 30, 0u64..1 << 30)),
    ) {
        let bounds = pages.map(|(a, b)| Bounds { least: Bytes(a.min(b) << 12), most: Bytes(a.max(b) << 12) });
        let idle = Idle { ago: Duration::ZERO, memory: Bytes(1 << 43), bounds: bounds.map(Some) };
        let written = Sample { idle: Some(idle), group: Path::new("a").into(), ..sample(0, 1, 1) };
        let back = read_back(&[written])[0].idle.clone().expect("ages").bounds.map(Option::unwrap_or_default);
        for index in 0..AGES.len() {
            prop_assert!(back[index].least >= bounds[index].least);
            prop_assert!(back[index].least <= back[index].most);
            prop_assert!(back[index].most >= bounds[index].most);
            prop_assert!(index == 0 || back[index].least <= back[index - 1].least);
        }
    }

    #[test]
    fn any_sample_comes_back_as_it_was_written(samples in prop::collection::vec(any_sample(), 1..6)) {
        prop_assert_eq!(read_back(&samples), samples);
    }

    #[test]
    fn a_file_that_is_cut_is_read_up_to_the_cut(
        samples in prop::collection::vec(any_sample(), 3),
        cut in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
        let mut ends = Vec::new();
        for sample in &samples {
            store.add(sample.time, std::slice::from_ref(sample));
            ends.push(fs::read(one_file(dir.path())).expect("bytes").len());
        }
        let file = one_file(dir.path());
        let whole = fs::read(&file).expect("bytes");
        let cut = cut.index(whole.len());
        fs::write(&file, &whole[..cut]).expect("written");
        let complete = ends.iter().filter(|&&end| end <= cut).count();
        prop_assert_eq!(all(dir.path()).0, &samples[..complete]);
    }
}

/// Writes these samples, each at its time, and reads them.
fn read_back(samples: &[Sample]) -> Vec<Sample> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = Store::new(dir.path(), "b", Bytes::mib(64));
    samples.iter().for_each(|sample| store.add(sample.time, std::slice::from_ref(sample)));
    let (back, skipped) = all(dir.path());
    assert_eq!(skipped, Vec::<String>::new());
    back
}

/// Bounds that belong to one amount for each age: never more for a longer age.
fn any_bounds() -> impl Strategy<Value = [Bounds; AGES.len()]> {
    prop::array::uniform13((0u64..4, 0u64..1 << 20, 0u64..1 << 20)).prop_map(|steps| {
        let mut bounds = [Bounds::default(); AGES.len()];
        let (mut least, mut most) = (0, 0);
        for (bound, (kind, rise, spread)) in bounds.iter_mut().zip(steps).rev() {
            least += if kind & 1 == 0 { rise } else { 0 };
            most = if kind & 2 == 0 { most.max(least + spread) } else { most.max(least) };
            *bound = Bounds { least: Bytes(least << 12), most: Bytes(most << 12) };
        }
        bounds
    })
}

fn any_idle() -> impl Strategy<Value = Option<Idle>> {
    prop::option::of((any_bounds(), any::<u16>(), 0u64..10_000).prop_map(|(bounds, known, ago)| {
        let mut bounds = bounds.map(Some);
        for (index, bound) in bounds.iter_mut().enumerate() {
            *bound = bound.filter(|_| known >> index & 1 == 1);
        }
        Idle { ago: Duration::from_secs(ago), memory: Bytes(ago << 12), bounds }
    }))
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let since = prop::option::of((0u64..1 << 40, prop::option::of(0u64..1 << 40)));
    let promotions = prop::option::of((0u64..1 << 40, any_bounds()));
    let ids = (0u64..1 << 32, any::<u64>(), 0u64..3);
    (ids, any_idle(), since, promotions, prop::collection::vec(any_idle(), 0..3)).prop_map(
        |((time, seed, group), idle, since, promotions, nodes)| Sample {
            idle,
            since: since.map(|(over, number)| Since {
                over: Duration::from_millis(over),
                refaults_anon: number.map(|number| Bytes(number << 12)),
                refaults_file: Some(Bytes(over << 12)),
                swapped_in: None,
                stalled: number.map(Duration::from_micros),
                stalled_full: number.map(|number| Duration::from_millis(number >> 20)),
                reclaimed: number.map(|number| Bytes(number << 12)),
            }),
            promotions: promotions.map(|(over, bounds)| Promotions { over: Duration::from_millis(over), bounds }),
            nodes: (0..)
                .zip(nodes)
                .map(|(node, idle)| OnNode { held: numa::OnNode { node, ..numa::OnNode::default() }, idle })
                .collect(),
            cost: (seed % 2 == 0).then_some(Cost { agings: seed, cpu: Duration::from_micros(seed >> 8) }),
            ..sample(time, group, seed)
        },
    )
}

/// A file with three rounds of three groups, from this time on.
fn small_file(dir: &Path, time: u64) -> Vec<u8> {
    let mut store = Store::new(dir, "b", Bytes::mib(64));
    for time in time..time + 3 {
        let of = |group| if group == 0 { on_two_nodes(sample(time, group, time)) } else { sample(time, group, time) };
        store.add(Duration::from_secs(time), &(0..3).map(of).collect::<Vec<_>>());
    }
    let files = paths_of(dir);
    fs::read(files.last().expect("a file")).expect("bytes")
}

/// The same bytes, as a file of another version says.
fn as_version(version: &str, bytes: &[u8]) -> Vec<u8> {
    let text = bytes.split(|&byte| byte == b'\n').next().expect("a line");
    let line = String::from_utf8_lossy(text).replacen(" 4 ", &format!(" {version} "), 1);
    [line.as_bytes(), &bytes[text.len()..]].concat()
}

/// Files of all versions. Those of older versions are what their programs wrote.
fn files(dir: &Path) -> Vec<Vec<u8>> {
    let now = small_file(dir, 0);
    vec![as_version("5", &now), VERSION_1.to_vec(), VERSION_2.to_vec(), VERSION_3.to_vec(), now]
}

/// Reads a whole file, and checks what a reader may rely on.
fn read_file(bytes: &[u8]) -> Vec<Sample> {
    let Ok(mut segment) = segment::Segment::new(Path::new("f"), bytes.to_vec()) else { return Vec::new() };
    let mut samples = Vec::new();
    while let Ok(true) = segment.next(&(Duration::ZERO..Duration::MAX), &|_| true, &mut samples) {}
    // A record has nine bytes or more, and that of a node five.
    let nodes: usize = samples.iter().map(|sample| sample.nodes.len()).sum();
    assert!(9 * samples.len() + 5 * nodes <= bytes.len(), "{} samples, {nodes} nodes", samples.len());
    for sample in &samples {
        assert!(sample.peak >= sample.current);
        let idle = sample.idle.iter().chain(sample.nodes.iter().filter_map(|node| node.idle.as_ref()));
        for bounds in idle.flat_map(|idle| idle.ages()) {
            assert!(bounds.1.least <= bounds.1.most, "{bounds:?}");
        }
    }
    samples
}

#[test]
fn no_damage_of_a_file_makes_it_panic_or_gives_more_samples_than_it_has_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = files(dir.path());
    assert_eq!(files.iter().map(|file| read_file(file).len()).collect::<Vec<_>>(), [0, 2, 2, 2, 9], "the control");
    omr_testkit::fuzz::feed(&files, |bytes| drop(read_file(bytes)));
}

/// Damage with a right checksum, as of a program with a fault: all frames are decoded.
#[test]
fn no_frame_makes_it_panic_or_gives_more_samples_than_it_has_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = files(dir.path());
    let decoded = std::cell::Cell::new(0);
    omr_testkit::fuzz::feed(&files, |bytes| {
        let mut bytes = bytes.to_vec();
        segment::mend_checksums(&mut bytes);
        decoded.set(decoded.get() + read_file(&bytes).len());
    });
    assert!(decoded.get() > 100, "the control: {} samples", decoded.get());
}

#[test]
fn a_damaged_file_costs_nothing_of_the_others_and_nothing_before_the_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = [0, 10, 20].map(|time| small_file(dir.path(), time));
    let list = paths_of(dir.path());
    assert_eq!(list.len(), 3);
    omr_testkit::fuzz::feed(&[&whole[1]], |bytes| {
        fs::write(&list[1], bytes).expect("written");
        let (samples, skipped) = all(dir.path());
        let of_others = samples.iter().filter(|sample| !(10..20).contains(&sample.time.as_secs()));
        assert_eq!(of_others.count(), 18);
        assert!(skipped.len() <= 1, "{skipped:?}");
        // Rounds are read up to the first changed byte.
        let same = bytes.iter().zip(&whole[1]).take_while(|(a, b)| a == b).count();
        let before = read_file(&whole[1][..same]);
        assert!(samples.len() >= 18 + before.len(), "{} and {}", samples.len(), before.len());
        assert_eq!(samples[9..9 + before.len()], before);
    });
}
