//! A file of the history, and its format.
//!
//! ```text
//! omr history 4 BOOT-ID\n      the first line
//! LENGTH CHECKSUM FRAME        32 bits each, little-endian; CRC-32 of the frame
//! ...
//! ```
//!
//! A frame is a group or a round. Groups are numbered in the order of their frames. A round has the
//! samples of one moment. Frames are in postcard's format, in which a number has as many bytes as
//! it needs. Sizes are in blocks of 4 KiB, as every page consists of such blocks. Each file is
//! complete by itself and of one boot. In files of version 3, samples have no threshold, no PSI `full`
//! and no figures that only the machine has; in files of version 2, samples have fewer ages, no
//! promotions and no own reclaim; in files of version 1, rounds have no cost and no nodes either.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use omr_base::folder::Folder;
use omr_kernel::numa;
use omr_policy::age::{Bounds, Promotions};
use omr_units::{Bytes, GroupId, millis};
use serde::{Deserialize, Serialize};

use self::bounds::{BoundsRecord, OldBounds};
use super::{AGES, Compressed, Cost, Idle, Machine, OnNode, Sample, Since};

mod bounds;

/// The beginning of the first line; the version of the format follows.
const MAGIC: &str = "omr history ";
const VERSION: &str = "4";
/// The older versions that are also read.
const OLDER_VERSIONS: [&str; 3] = ["1", "2", "3"];
/// The size of length and checksum.
const HEAD: usize = 8;
/// The extension of file names.
const EXTENSION: &str = "omrh";

/// A part of the history that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub file: PathBuf,
    /// The number of bytes; zero: the file could not be opened.
    pub bytes: u64,
    /// The reason.
    pub why: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bytes {
            0 => write!(f, "{}: {}", self.file.display(), self.why),
            bytes => write!(f, "{}: {} left out: {}", self.file.display(), Bytes(bytes), self.why),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Frame {
    Group {
        id: u64,
        path: Vec<u8>,
    },
    /// A round in a file of version 1.
    Round(Round<OldBounds>),
    /// A round in a file of version 2.
    CostedRound(CostedRound<OldBounds>),
    /// A round in a file of version 3.
    UsedRound(UsedRound),
    StatedRound(StatedRound),
}

/// A round with what was in force, and figures of the machine.
#[derive(Debug, Serialize, Deserialize)]
struct StatedRound {
    /// The first field, as [`round_time`] reads it there.
    used: UsedRound,
    /// In the order of the records.
    states: Vec<StateRecord>,
    /// Of the samples of the machine.
    machine: Option<MachineRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StateRecord {
    /// Seconds; zero: any age.
    threshold: u64,
    /// Milliseconds.
    stalled_full: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MachineRecord {
    free: Option<u64>,
    /// Its size, and the memory that it occupies.
    zram: Option<(u64, u64)>,
    zswap: Option<(u64, u64)>,
    disk: Option<u64>,
    image: Option<u64>,
}

/// A round with what was used again.
#[derive(Debug, Serialize, Deserialize)]
struct UsedRound {
    /// The first field, as [`round_time`] reads it there.
    round: CostedRound<BoundsRecord>,
    /// In the order of the records.
    used: Vec<UsedRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct UsedRecord {
    reclaimed: Option<u64>,
    promotions: Option<PromotionsRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PromotionsRecord {
    /// Milliseconds.
    over: u64,
    bounds: BoundsRecord,
}

/// A round with its cost. `B`: how its bounds are written.
#[derive(Debug, Serialize, Deserialize)]
struct CostedRound<B> {
    /// The first field, as [`round_time`] reads it there.
    round: Round<B>,
    cost: Option<CostRecord>,
    /// The nodes of records, by the index of the record in the round.
    nodes: Vec<(u32, Vec<NodeRecord<B>>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CostRecord {
    agings: u64,
    /// Microseconds.
    cpu: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct NodeRecord<B> {
    node: u32,
    anon: u64,
    file: u64,
    shmem: u64,
    idle: Option<IdleRecord<B>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Round<B> {
    /// Seconds since 1970.
    time: u64,
    records: Vec<Record<B>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record<B> {
    group: u32,
    current: u64,
    /// The difference to `current`.
    peak: u64,
    anon: u64,
    file: u64,
    shmem: u64,
    swap: Option<u64>,
    idle: Option<IdleRecord<B>>,
    since: Option<SinceRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct IdleRecord<B> {
    /// In seconds.
    ago: u64,
    memory: u64,
    bounds: B,
}

/// How bounds for each age are written.
trait BoundsFormat {
    /// Returns the bounds; `None`: the age was not recorded.
    fn bounds(&self) -> [Option<Bounds>; AGES.len()];
}

#[derive(Debug, Serialize, Deserialize)]
struct SinceRecord {
    /// Milliseconds.
    over: u64,
    refaults_anon: Option<u64>,
    refaults_file: Option<u64>,
    swapped_in: Option<u64>,
    /// Microseconds.
    stalled: Option<u64>,
}

fn blocks(bytes: Bytes) -> u64 {
    bytes.0 >> 12
}

fn bytes(blocks: u64) -> Bytes {
    Bytes(blocks.saturating_mul(4096))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Record<BoundsRecord> {
    fn new(group: u32, sample: &Sample) -> Self {
        Record {
            group,
            current: blocks(sample.current),
            peak: blocks(sample.peak - sample.current),
            anon: blocks(sample.anon),
            file: blocks(sample.file),
            shmem: blocks(sample.shmem),
            swap: sample.swap.map(blocks),
            idle: sample.idle.as_ref().map(IdleRecord::new),
            since: sample.since.as_ref().map(|since| SinceRecord {
                over: millis(since.over),
                refaults_anon: since.refaults_anon.map(blocks),
                refaults_file: since.refaults_file.map(blocks),
                swapped_in: since.swapped_in.map(blocks),
                stalled: since.stalled.map(micros),
            }),
        }
    }
}

impl<B: BoundsFormat> Record<B> {
    fn sample(&self, time: u64, boot: &Rc<str>, named: &Named) -> Sample {
        let current = bytes(self.current);
        Sample {
            time: Duration::from_secs(time),
            boot: Rc::clone(boot),
            group: Rc::clone(&named.path),
            id: named.id,
            current,
            peak: current + bytes(self.peak),
            anon: bytes(self.anon),
            file: bytes(self.file),
            shmem: bytes(self.shmem),
            swap: self.swap.map(bytes),
            idle: self.idle.as_ref().map(IdleRecord::idle),
            since: self.since.as_ref().map(|since| Since {
                over: Duration::from_millis(since.over),
                refaults_anon: since.refaults_anon.map(bytes),
                refaults_file: since.refaults_file.map(bytes),
                swapped_in: since.swapped_in.map(bytes),
                stalled: since.stalled.map(Duration::from_micros),
                stalled_full: None,
                reclaimed: None,
            }),
            promotions: None,
            nodes: Vec::new(),
            threshold: None,
            machine: None,
            cost: None,
        }
    }
}

impl NodeRecord<BoundsRecord> {
    fn new(of: &OnNode) -> Self {
        let numa::OnNode { node, anon, file, shmem } = of.held;
        let idle = of.idle.as_ref().map(IdleRecord::new);
        NodeRecord { node, anon: blocks(anon), file: blocks(file), shmem: blocks(shmem), idle }
    }
}

impl<B: BoundsFormat> NodeRecord<B> {
    fn on_node(&self) -> OnNode {
        let NodeRecord { node, anon, file, shmem, idle } = self;
        let held = numa::OnNode { node: *node, anon: bytes(*anon), file: bytes(*file), shmem: bytes(*shmem) };
        OnNode { held, idle: idle.as_ref().map(IdleRecord::idle) }
    }
}

impl CostedRound<BoundsRecord> {
    fn new(time: Duration, samples: &[(u32, &Sample)]) -> Self {
        let records = samples.iter().map(|(group, sample)| Record::new(*group, sample)).collect();
        let cost = samples.first().and_then(|(_, sample)| sample.cost);
        let with_nodes = (0..).zip(samples).filter(|(_, (_, sample))| !sample.nodes.is_empty());
        CostedRound {
            round: Round { time: time.as_secs(), records },
            cost: cost.map(|cost| CostRecord { agings: cost.agings, cpu: micros(cost.cpu) }),
            nodes: with_nodes.map(|(at, (_, of))| (at, of.nodes.iter().map(NodeRecord::new).collect())).collect(),
        }
    }
}

impl IdleRecord<BoundsRecord> {
    fn new(idle: &Idle) -> Self {
        let Idle { ago, memory, bounds } = idle;
        IdleRecord { ago: ago.as_secs(), memory: blocks(*memory), bounds: BoundsRecord::new(bounds) }
    }
}

impl<B: BoundsFormat> IdleRecord<B> {
    fn idle(&self) -> Idle {
        Idle { ago: Duration::from_secs(self.ago), memory: bytes(self.memory), bounds: self.bounds.bounds() }
    }
}

impl UsedRecord {
    fn new(sample: &Sample) -> Self {
        let promotions = sample.promotions.as_ref().map(|promotions| PromotionsRecord {
            over: millis(promotions.over),
            bounds: BoundsRecord::new(&promotions.bounds.map(Some)),
        });
        UsedRecord { reclaimed: sample.since.as_ref().and_then(|since| since.reclaimed).map(blocks), promotions }
    }

    /// Completes a sample.
    fn complete(&self, sample: &mut Sample) {
        if let Some(since) = &mut sample.since {
            since.reclaimed = self.reclaimed.map(bytes);
        }
        sample.promotions = self.promotions.as_ref().map(|of| Promotions {
            over: Duration::from_millis(of.over),
            bounds: of.bounds.bounds().map(Option::unwrap_or_default),
        });
    }
}

impl StateRecord {
    fn new(sample: &Sample) -> Self {
        StateRecord {
            threshold: sample.threshold.map_or(0, |age| age.as_secs()),
            stalled_full: sample.since.as_ref().and_then(|since| since.stalled_full).map(millis),
        }
    }

    /// Completes a sample.
    fn complete(&self, sample: &mut Sample) {
        sample.threshold = (self.threshold > 0).then(|| Duration::from_secs(self.threshold));
        if let Some(since) = &mut sample.since {
            since.stalled_full = self.stalled_full.map(Duration::from_millis);
        }
    }
}

impl MachineRecord {
    fn new(machine: &Machine) -> Self {
        let compressed = |of: Compressed| (blocks(of.stored), blocks(of.occupied));
        MachineRecord {
            free: machine.free.map(blocks),
            zram: machine.zram.map(compressed),
            zswap: machine.zswap.map(compressed),
            disk: machine.disk.map(blocks),
            image: machine.image.map(blocks),
        }
    }

    fn machine(&self) -> Machine {
        let compressed =
            |(stored, occupied): (u64, u64)| Compressed { stored: bytes(stored), occupied: bytes(occupied) };
        Machine {
            free: self.free.map(bytes),
            zram: self.zram.map(compressed),
            zswap: self.zswap.map(compressed),
            disk: self.disk.map(bytes),
            image: self.image.map(bytes),
        }
    }
}

/// Returns the first line of a file.
pub fn header(boot: &str) -> Vec<u8> {
    format!("{MAGIC}{VERSION} {boot}\n").into_bytes()
}

/// Appends the frame of a group.
pub fn put_group(out: &mut Vec<u8>, id: GroupId, path: &Path) {
    put(out, &Frame::Group { id: id.0, path: path.as_os_str().as_bytes().into() });
}

/// Appends the frame of a round: samples with the numbers of their groups.
pub fn put_round(out: &mut Vec<u8>, time: Duration, samples: &[(u32, &Sample)]) {
    let used = samples.iter().map(|(_, sample)| UsedRecord::new(sample)).collect();
    let used = UsedRound { round: CostedRound::new(time, samples), used };
    let states = samples.iter().map(|(_, sample)| StateRecord::new(sample)).collect();
    let machine = samples.iter().find_map(|(_, sample)| sample.machine.as_ref()).map(MachineRecord::new);
    put(out, &Frame::StatedRound(StatedRound { used, states, machine }));
}

fn put(out: &mut Vec<u8>, frame: &Frame) {
    // A frame has only numbers and lists of them, so this cannot fail.
    let Ok(payload) = postcard::to_allocvec(frame) else { return };
    let Ok(length) = u32::try_from(payload.len()) else { return };
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    out.extend_from_slice(&payload);
}

/// Returns the files of a history, oldest first.
pub fn list(folder: &Folder) -> io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    for name in folder.names()? {
        if let Some(number) = number(&name) {
            found.push((number, name));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}

/// Returns the number in a file's name; `None`: not a file of the history.
pub fn number(name: &OsStr) -> Option<u64> {
    let path = Path::new(name);
    let is_ours = path.extension().is_some_and(|extension| extension == EXTENSION);
    is_ours.then(|| path.file_stem()?.to_str()?.parse().ok()).flatten()
}

/// Returns the name of the file with this number.
pub fn name(number: u64) -> OsString {
    format!("{number:08}.{EXTENSION}").into()
}

#[derive(Debug)]
struct Named {
    id: GroupId,
    path: Rc<Path>,
    wanted: bool,
}

/// A file that is being read.
#[derive(Debug)]
pub struct Segment {
    path: PathBuf,
    bytes: Vec<u8>,
    /// The offset of the next frame.
    at: usize,
    boot: Rc<str>,
    groups: Vec<Named>,
}

impl Segment {
    /// Reads the first line of a file with these bytes.
    pub fn new(path: &Path, bytes: Vec<u8>) -> Result<Self, Skipped> {
        let line = bytes.split_inclusive(|&c| c == b'\n').next().unwrap_or_default();
        let text = std::str::from_utf8(line).ok().and_then(|line| line.strip_suffix('\n')?.strip_prefix(MAGIC));
        let (why, boot) = match text.and_then(|text| text.split_once(' ')) {
            Some((version, boot)) if version == VERSION || OLDER_VERSIONS.contains(&version) => (None, boot.into()),
            Some((version, _)) => {
                (Some(format!("of version {version}, and this omr reads up to version {VERSION}")), "".into())
            }
            None => (Some("it does not begin as a file of omr's history".to_owned()), "".into()),
        };
        let at = line.len();
        let segment = Segment { path: path.into(), bytes, at, boot, groups: Vec::new() };
        match why {
            None => Ok(segment),
            Some(why) => Err(Skipped { file: path.into(), bytes: segment.bytes.len() as u64, why }),
        }
    }

    /// Appends the wanted samples of the next round; false: the end. Frames behind a damaged one
    /// are not read, as groups could be missing.
    pub fn next(
        &mut self,
        times: &Range<Duration>,
        wanted: &dyn Fn(&Path) -> bool,
        samples: &mut Vec<Sample>,
    ) -> Result<bool, Skipped> {
        while let Some(rest) = self.bytes.get(self.at..).filter(|rest| !rest.is_empty()) {
            let skipped = |why: &str| Skipped { file: self.path.clone(), bytes: rest.len() as u64, why: why.into() };
            let payload = payload(rest).map_err(skipped)?;
            // Most rounds are of other times, so their samples need not be decoded.
            if round_time(payload).is_some_and(|time| !times.contains(&time)) {
                self.at += HEAD + payload.len();
                continue;
            }
            let frame = postcard::from_bytes(payload).map_err(|_| skipped("its content is not understood"))?;
            self.at += HEAD + payload.len();
            match frame {
                Frame::Group { id, path } => {
                    let path = PathBuf::from(std::ffi::OsString::from_vec(path));
                    self.groups.push(Named { id: GroupId(id), wanted: wanted(&path), path: path.into() });
                }
                Frame::Round(round) => {
                    self.collect(&CostedRound { round, cost: None, nodes: Vec::new() }, Rest::NONE, samples);
                    return Ok(true);
                }
                Frame::CostedRound(round) => {
                    self.collect(&round, Rest::NONE, samples);
                    return Ok(true);
                }
                Frame::UsedRound(UsedRound { round, used }) => {
                    self.collect(&round, Rest { used: &used, ..Rest::NONE }, samples);
                    return Ok(true);
                }
                Frame::StatedRound(StatedRound { used: UsedRound { round, used }, states, machine }) => {
                    let machine = machine.as_ref().map(MachineRecord::machine);
                    self.collect(&round, Rest { used: &used, states: &states, machine }, samples);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Appends the wanted samples of a round.
    fn collect<B: BoundsFormat>(&self, round: &CostedRound<B>, rest: Rest<'_>, samples: &mut Vec<Sample>) {
        let CostedRound { round, cost, nodes } = round;
        let cost = cost.as_ref().map(|cost| Cost { agings: cost.agings, cpu: Duration::from_micros(cost.cpu) });
        // The list is in the order of the records.
        let mut nodes = nodes.iter().peekable();
        for (at, record) in round.records.iter().enumerate() {
            let of_record = nodes.next_if(|(of, _)| *of as usize == at);
            let nodes = of_record.map(|(_, nodes)| nodes.as_slice()).unwrap_or_default();
            let named = self.groups.get(record.group as usize);
            if let Some(named) = named.filter(|named| named.wanted) {
                let nodes = nodes.iter().map(NodeRecord::on_node).collect();
                let mut sample = Sample { nodes, cost, ..record.sample(round.time, &self.boot, named) };
                if let Some(used) = rest.used.get(at) {
                    used.complete(&mut sample);
                }
                if let Some(state) = rest.states.get(at) {
                    state.complete(&mut sample);
                }
                if sample.group.as_os_str().is_empty() {
                    sample.machine = rest.machine;
                }
                samples.push(sample);
            }
        }
    }
}

/// The parts of a round that older versions did not have. The lists have an item for each record, or
/// none at all.
struct Rest<'a> {
    used: &'a [UsedRecord],
    states: &'a [StateRecord],
    machine: Option<Machine>,
}

impl Rest<'_> {
    const NONE: Rest<'static> = Rest { used: &[], states: &[], machine: None };
}

/// Returns the frame at the beginning of these bytes, without its head.
fn payload(bytes: &[u8]) -> Result<&[u8], &'static str> {
    const CUT: &str = "it was not written to its end";
    let number = |from: usize| -> Option<u32> { Some(u32::from_le_bytes(bytes.get(from..from + 4)?.try_into().ok()?)) };
    let (Some(length), Some(checksum)) = (number(0), number(4)) else { return Err(CUT) };
    let payload = bytes.get(HEAD..HEAD.saturating_add(length as usize)).ok_or(CUT)?;
    if crc32fast::hash(payload) != checksum {
        return Err("a checksum is wrong");
    }
    Ok(payload)
}

/// Writes the right checksum before each frame of a file, so that changed frames are decoded; for
/// tests.
#[cfg(any(test, feature = "testing"))]
pub fn mend_checksums(bytes: &mut [u8]) {
    let mut at = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
    while let Some(rest) = bytes.get_mut(at..)
        && let Some((length, rest)) = rest.split_first_chunk_mut::<4>()
        && let Some((checksum, rest)) = rest.split_first_chunk_mut::<4>()
        && let Some(frame) = rest.get(..u32::from_le_bytes(*length) as usize)
    {
        *checksum = crc32fast::hash(frame).to_le_bytes();
        at += HEAD + frame.len();
    }
}

/// Returns the time of a round; `None`: the frame is a group.
fn round_time(payload: &[u8]) -> Option<Duration> {
    #[derive(Deserialize)]
    enum Begin {
        Group,
        Round(u64),
        CostedRound(u64),
        UsedRound(u64),
        StatedRound(u64),
    }
    match postcard::take_from_bytes(payload) {
        Ok((Begin::Round(time) | Begin::CostedRound(time) | Begin::UsedRound(time) | Begin::StatedRound(time), _)) => {
            Some(Duration::from_secs(time))
        }
        Ok((Begin::Group, _)) | Err(_) => None,
    }
}
