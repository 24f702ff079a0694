//! What the daemon has learned about groups, and whether it keeps that: the thresholds in its memory
//! are compared with those in the file, value by value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::os::unix::fs::MetadataExt as _;

use omr_policy::threshold::{Slo, Threshold};
use serde_json::Value;

use super::Nanos;
use super::machine::{MINUTE, Machine};
use crate::thresholds::Learned;

/// A change is written within ten minutes, with the next aging.
const WRITTEN: Nanos = 15 * MINUTE;
const FILE: &str = "var/lib/omr/thresholds.json";

/// Thresholds by the name of the group.
type Thresholds = BTreeMap<String, Threshold>;

/// What was learned.
#[derive(Default)]
pub struct Learning {
    /// The file, and its inode number: each new file is another one.
    file: Thresholds,
    inode: Option<u64>,
    /// The memory of the daemon; `None`: none runs.
    memory: Option<Thresholds>,
    /// The memory is another one than the file since then, and nothing kept it from being written.
    unwritten: Option<Nanos>,
    /// Another file is in its place than the daemon knows.
    is_replaced: bool,
    /// The groups of this life, by inode number.
    groups: BTreeSet<u64>,
}

impl Learning {
    /// A daemon begins. `is_whole`: it could read the file.
    pub fn begin(&mut self, machine: &Machine, memory: Thresholds, is_whole: bool) -> Result<(), String> {
        self.groups.clear();
        (self.unwritten, self.is_replaced) = (None, !is_whole);
        self.read(machine);
        let begun = same("a daemon begins with", &memory, &self.file);
        self.memory = Some(memory);
        if is_whole { begun } else { Ok(()) }
    }

    /// The aging thread has carried out an order. `is_certain`: nothing kept it from writing.
    pub fn report(
        &mut self,
        machine: &Machine,
        now: Nanos,
        memory: Thresholds,
        learned: &[Learned],
        is_certain: bool,
    ) -> Result<(), String> {
        let before = self.memory.take().unwrap_or_default();
        if let Some(name) = before.keys().find(|name| !memory.contains_key(*name)) {
            return Err(format!("the threshold of {name} is forgotten"));
        }
        // A group that is made anew, or that a daemon sees first, goes on where the one before has ended.
        for of in learned {
            let Some(path) = machine.path_of(of.id.0).filter(|_| self.groups.insert(of.id.0)) else { continue };
            if let Some(step) = before.get(path).map(Threshold::step).filter(|step| *step != of.step) {
                return Err(format!("the threshold of {path} was {step:?}, and it begins with {:?}", of.step));
            }
        }
        if self.read(machine) {
            same("the file has", &self.file, &memory)?;
            self.is_replaced = false;
        }
        let is_kept = kept("", &self.file, &memory).is_ok();
        self.unwritten = match is_kept || self.is_replaced || !is_certain {
            true => None,
            false => Some(self.unwritten.unwrap_or(now)),
        };
        self.memory = Some(memory);
        match self.unwritten.is_some_and(|since| since + WRITTEN < now) {
            true => Err("what was learned is not written to its file".into()),
            false => Ok(()),
        }
    }

    /// The daemon was told to end, and has ended. `is_certain`: nothing kept it from writing.
    pub fn end(&mut self, machine: &Machine, is_certain: bool) -> Result<(), String> {
        self.is_replaced &= !self.read(machine);
        match self.memory.take().filter(|_| is_certain && !self.is_replaced) {
            Some(memory) => kept("the file has, after the end of the daemon,", &self.file, &memory),
            None => Ok(()),
        }
    }

    /// A daemon has ended, killed or not. A new file was written at its end.
    pub fn ended(&mut self, machine: &Machine) -> Result<(), String> {
        self.memory = None;
        let before = std::mem::take(&mut self.file);
        match self.read(machine) {
            true => Ok(()),
            false => same("the file has, after the death of the daemon,", &self.file, &before),
        }
    }

    /// The disk went away, or came back with another file.
    pub fn replaced(&mut self, machine: &Machine) {
        self.is_replaced = true;
        self.read(machine);
    }

    /// Reads the file. Returns whether it is a new one.
    fn read(&mut self, machine: &Machine) -> bool {
        let path = machine.root.resolve(FILE);
        let inode = std::fs::metadata(&path).ok().map(|metadata| metadata.ino());
        let is_new = inode.is_some() && inode != self.inode;
        self.inode = inode;
        let text = std::fs::read(path).unwrap_or_default();
        let saved = serde_json::from_slice::<Value>(&text).unwrap_or_default();
        let groups = saved["groups"].as_object().into_iter().flatten();
        let threshold = |saved: &Value| serde_json::from_value(saved["threshold"].clone()).ok();
        self.file = groups.filter_map(|(name, saved)| Some((name.clone(), threshold(saved)?))).collect();
        is_new
    }
}

/// As [`same`], but for what is not written by itself: an absence of a group, which takes effect again
/// when the file is read, and a group of which nothing was learned yet.
fn kept(what: &str, these: &Thresholds, those: &Thresholds) -> Result<(), String> {
    let learned = |all: &Thresholds| -> BTreeMap<String, Value> {
        let fields = |of: &Threshold| {
            let value = serde_json::to_value(of).unwrap_or_default();
            let fields = ["step", "calm", "unclear", "in_vain"];
            fields.iter().map(|field| value[field].clone()).collect::<Vec<_>>()
        };
        let is_new = |of: &&Threshold| fields(of) == fields(&Threshold::new(&Slo::default()));
        let all = all.iter().filter(|(_, threshold)| !is_new(threshold));
        all.map(|(name, threshold)| (name.clone(), Value::Array(fields(threshold)))).collect()
    };
    same(what, &learned(these), &learned(those))
}

fn same<T: PartialEq + Debug>(
    what: &str,
    these: &BTreeMap<String, T>,
    those: &BTreeMap<String, T>,
) -> Result<(), String> {
    let names: BTreeSet<&String> = these.keys().chain(those.keys()).collect();
    match names.into_iter().find(|name| these.get(*name) != those.get(*name)) {
        Some(name) => Err(format!("{what} {:?} for {name}, expected {:?}", these.get(name), those.get(name))),
        None => Ok(()),
    }
}
