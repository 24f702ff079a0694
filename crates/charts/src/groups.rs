//! The tree of groups, now or at a time in the past.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use omr_control::status::{GroupView, MOST_GROUPS, Status};
use omr_history::Sample;
use omr_policy::Class;
use omr_policy::age::Bounds;
use omr_units::{Bytes, Permyriad};
use serde::Serialize;

use crate::COLD;
use crate::event::is_below;

/// Groups above another one get a row of their own down to this depth. A user can make thousands of
/// groups within each other.
const MOST_ABOVE: usize = 8;

/// The last sample of a group, with all groups below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sampled {
    /// The wall clock, in seconds since 1970.
    pub time: u64,
    /// The path below the mount; empty: the machine.
    pub path: String,
    /// Its memory.
    pub memory: Bytes,
    /// Memory in swap; `None`: unknown.
    pub swap: Option<Bytes>,
    /// Memory that was not used for 2 min; `None`: unknown.
    pub cold: Option<Bounds>,
    /// The share of the time before the sample in which some task waited for memory; `None`: unknown.
    pub stalled: Option<Permyriad>,
}

impl Sampled {
    /// Takes the figures of a sample that the tree shows.
    pub fn new(sample: &Sample) -> Self {
        let since = sample.since.as_ref();
        Sampled {
            time: sample.time.as_secs(),
            path: sample.group.to_string_lossy().into_owned(),
            memory: sample.current,
            swap: sample.swap,
            cold: sample.idle.as_ref().and_then(|idle| idle.of(COLD)),
            stalled: since.and_then(|since| Some(Permyriad::of_time(since.stalled?, since.over))),
        }
    }
}

/// A group of the tree, with all groups below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The path below the mount; empty: the machine.
    pub path: String,
    /// The place of the group above it in the list; `None`: the machine.
    pub above: Option<usize>,
    /// The class; `None`: unknown, or a group without memory of its own.
    pub class: Option<Class>,
    /// Its memory; `None`: unknown.
    pub memory: Option<Bytes>,
    /// Memory in swap at the last sample; `None`: unknown.
    pub swap: Option<Bytes>,
    /// Memory that was not used for 2 min at the last sample; `None`: unknown.
    pub cold: Option<Bounds>,
    /// The share of the time in which some task waited for memory, at the last sample; `None`:
    /// unknown.
    pub stalled: Option<Permyriad>,
    /// Freed by sweeps since the daemon started; `None`: the past.
    pub freed: Option<Bytes>,
    /// Refaults since the first sweep; `None`: the past.
    pub came_back: Option<Bytes>,
    /// The time since the last sweep ended; `None`: never, or the past.
    pub last: Option<Duration>,
    /// It is being swept now.
    pub sweeping: bool,
    /// The age from which on its memory may be taken; `None`: any age, or unknown.
    pub threshold: Option<Duration>,
}

/// The order of groups with the same group above them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The most memory first.
    #[default]
    Memory,
    /// The most cold memory first.
    Cold,
    /// The most memory in swap first.
    Swap,
    /// The most refaults first.
    Back,
    /// By name.
    Name,
}

impl Sort {
    /// All of them.
    pub const ALL: [Sort; 5] = [Sort::Memory, Sort::Cold, Sort::Swap, Sort::Back, Sort::Name];

    /// The name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Memory => "memory",
            Sort::Cold => "cold",
            Sort::Swap => "swap",
            Sort::Back => "back",
            Sort::Name => "name",
        }
    }

    fn compare(self, a: &Group, b: &Group) -> Ordering {
        let key = |of: &Group| {
            Reverse(match self {
                Sort::Memory => of.memory,
                Sort::Cold => of.cold.map(|cold| cold.least),
                Sort::Swap => of.swap,
                Sort::Back => of.came_back,
                Sort::Name => None,
            })
        };
        key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path))
    }
}

/// A row of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The place of the group in the list of groups.
    pub group: usize,
    /// The number of rows above it that it is below of.
    pub depth: usize,
    /// Groups below it are there.
    pub has_below: bool,
    /// Groups below it are hidden.
    pub folded: bool,
}

/// Makes the list of groups of the daemon's status and of the last samples. Each group comes after
/// the group above it; the machine comes first. `status`: `None`: the past, or no answer.
pub fn list(status: Option<&Status>, samples: &[Sampled]) -> Vec<Group> {
    let live = status.map(|status| status.groups.as_slice()).unwrap_or_default();
    let is_whole = status.is_some() && live.len() < MOST_GROUPS;
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    // A group that only the samples know is gone, unless the status has no room for all groups.
    let sampled = samples.iter().filter(|_| !is_whole);
    let paths = live.iter().map(|of| of.group.as_str()).chain(sampled.map(|of| of.path.as_str()));
    for path in paths {
        let above = path.match_indices('/').take(MOST_ABOVE).filter_map(|(at, _)| path.get(..at));
        for path in above.chain(["", path]) {
            groups.entry(Key::new(path)).or_insert_with(|| Group { path: path.to_owned(), ..Group::default() });
        }
    }
    for sample in samples {
        if let Some(group) = groups.get_mut(&Key::new(&sample.path)) {
            group.memory = Some(sample.memory);
            (group.swap, group.cold, group.stalled) = (sample.swap, sample.cold, sample.stalled);
        }
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    set_above(&mut groups);
    if status.is_some() {
        add_live(&mut groups, live, is_whole);
    }
    groups
}

fn set_above(groups: &mut [Group]) {
    let mut above: Vec<(usize, String)> = Vec::new();
    for (index, group) in groups.iter_mut().enumerate() {
        while above.last().is_some_and(|(_, path)| !is_below(&group.path, path)) {
            above.pop();
        }
        group.above = above.last().map(|(index, _)| *index);
        above.push((index, group.path.clone()));
    }
}

/// Adds what the daemon knows now. A group has the memory of all groups below it.
fn add_live(groups: &mut [Group], live: &[GroupView], is_whole: bool) {
    let places: BTreeMap<&str, usize> = groups.iter().enumerate().map(|(at, of)| (of.path.as_str(), at)).collect();
    let places: Vec<usize> = live.iter().filter_map(|of| places.get(of.group.as_str()).copied()).collect();
    let mut sums: Vec<Option<Bytes>> = vec![None; groups.len()];
    for (of, place) in live.iter().zip(places) {
        if let (Some(group), Some(sum)) = (groups.get_mut(place), sums.get_mut(place)) {
            group.class = Some(of.class);
            group.freed = Some(of.freed);
            group.came_back = Some(of.came_back);
            group.last = of.last;
            group.sweeping = of.sweeping;
            group.threshold = of.by_age.as_ref().map(|by_age| by_age.min_age);
            *sum = of.current;
        }
    }
    let add = |to: &mut Option<Bytes>, more: Option<Bytes>| {
        if let Some(more) = more {
            *to = Some(to.unwrap_or_default() + more);
        }
    };
    // Those below come after those above.
    for index in (0..groups.len()).rev() {
        let (Some(group), Some(sum)) = (groups.get(index).cloned(), sums.get(index).copied()) else { continue };
        if let Some((above, above_sum)) = group.above.and_then(|at| Some((groups.get_mut(at)?, sums.get_mut(at)?))) {
            add(above_sum, sum);
            add(&mut above.freed, group.freed);
            add(&mut above.came_back, group.came_back);
            above.sweeping |= group.sweeping;
            above.last = [above.last, group.last].into_iter().flatten().min();
        }
        if let Some(group) = groups.get_mut(index) {
            group.memory = if is_whole { sum } else { sum.max(group.memory) };
        }
    }
}

/// A path whose order puts groups right behind the group above them: a slash comes before any other
/// character.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key(Vec<u8>);

impl Key {
    fn new(path: &str) -> Self {
        Key(path.bytes().map(|byte| if byte == b'/' { 0 } else { byte }).collect())
    }
}

/// Returns the rows of the tree. `filter`: only groups whose path contains it, with the groups above
/// them. `folded`: the paths of groups whose groups below are hidden.
pub fn tree(groups: &[Group], sort: Sort, filter: &str, folded: &BTreeSet<String>) -> Vec<Row> {
    let mut wanted: Vec<bool> = groups.iter().map(|of| filter.is_empty() || of.path.contains(filter)).collect();
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
    for (index, group) in groups.iter().enumerate().rev() {
        let is_wanted = wanted.get(index).copied().unwrap_or_default();
        if let Some(above) = group.above.filter(|_| is_wanted) {
            wanted.get_mut(above).into_iter().for_each(|above| *above = true);
            below.get_mut(above).into_iter().for_each(|list| list.push(index));
        }
    }
    for list in &mut below {
        // The last one is taken first.
        list.sort_by(|a, b| match (groups.get(*a), groups.get(*b)) {
            (Some(a), Some(b)) => sort.compare(b, a),
            _ => Ordering::Equal,
        });
    }
    let mut rows = Vec::new();
    let mut open: Vec<(usize, usize)> = wanted.first().filter(|wanted| **wanted).map(|_| (0, 0)).into_iter().collect();
    while let Some((index, depth)) = open.pop() {
        let (Some(group), Some(list)) = (groups.get(index), below.get(index)) else { continue };
        // A filter shows what it finds.
        let is_folded = filter.is_empty() && folded.contains(&group.path);
        rows.push(Row { group: index, depth, has_below: !list.is_empty(), folded: is_folded && !list.is_empty() });
        if !is_folded {
            open.extend(list.iter().map(|index| (*index, depth + 1)));
        }
    }
    rows
}

/// Returns all groups in the order of the rows of their tree: each comes after the group above it.
pub fn ordered(groups: &[Group], sort: Sort) -> Vec<Group> {
    let order: Vec<usize> = tree(groups, sort, "", &BTreeSet::new()).iter().map(|row| row.group).collect();
    let mut places = vec![None; groups.len()];
    for (place, index) in order.iter().enumerate() {
        places.get_mut(*index).into_iter().for_each(|of| *of = Some(place));
    }
    let group = |index: &usize| {
        let group = groups.get(*index)?;
        Some(Group { above: group.above.and_then(|above| places.get(above).copied().flatten()), ..group.clone() })
    };
    order.iter().filter_map(group).collect()
}
