//! What somebody has said of groups and processes: `omr foreground`, `omr background`, `omr follow`.
//!
//! What the first two say is kept below `/run`, so that a daemon that is started anew knows it too; processes and groups are known
//! by identities that are not given out again within one boot.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use omr_policy::Class;
use omr_policy::rank::ProcessId;
use omr_units::GroupId;
use serde::{Deserialize, Serialize};

use crate::limits::write_atomically;

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// Nobody works with it.
    Background,
    /// Its user is at the machine, and may work with any part of it: nothing is taken from the group, but of each
    /// process in it may be said that it is in the background.
    Present,
    /// Somebody works with it.
    Foreground,
}

impl Word {
    /// The class.
    pub fn class(self) -> Class {
        match self {
            Word::Present | Word::Foreground => Class::Foreground,
            Word::Background => Class::Background,
        }
    }
}

/// Of whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// A process.
    Process(ProcessId),
    /// A group, by its path below the mount; bytes that are not UTF-8 replaced.
    Group(String),
}

/// The group that a user names, as a request can carry it and as the daemon compares it.
pub fn group(target: &Path) -> String {
    target.strip_prefix(".").unwrap_or(target).to_string_lossy().into_owned()
}

/// Something that is true for as long as whoever says so goes on saying it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Statement {
    /// What; never that something is in the background.
    pub word: Word,
    /// Of whom.
    pub of: Of,
}

/// Words about groups and processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// About groups.
    pub groups: HashMap<GroupId, Word>,
    /// About processes.
    pub processes: HashMap<ProcessId, Word>,
}

impl Words {
    /// Of two words about one, the one that asks for more care counts.
    pub fn add(&mut self, other: &Words) {
        for (id, word) in &other.groups {
            self.groups.entry(*id).and_modify(|known| *known = (*known).max(*word)).or_insert(*word);
        }
        for (id, word) in &other.processes {
            self.processes.entry(*id).and_modify(|known| *known = (*known).max(*word)).or_insert(*word);
        }
    }
}

/// All of it.
#[derive(Debug, Default)]
pub struct Said {
    path: PathBuf,
    known: Known,
    /// What is being said by those who have to go on with it.
    held: Words,
    /// Both together.
    all: Words,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    boot: String,
    #[serde(with = "pairs")]
    groups: HashMap<GroupId, Word>,
    #[serde(with = "pairs")]
    processes: HashMap<ProcessId, Word>,
}

/// Identities are no keys of JSON.
mod pairs {
    use std::collections::HashMap;
    use std::hash::Hash;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Word;

    pub fn serialize<K: Serialize, S: Serializer>(map: &HashMap<K, Word>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, K: Deserialize<'de> + Eq + Hash, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<HashMap<K, Word>, D::Error> {
        Ok(Vec::<(K, Word)>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl Said {
    /// What was said before, in this boot. From a file that cannot be read: nothing.
    pub fn load(path: &Path, boot: &str) -> Said {
        let nothing = || Known { boot: boot.into(), ..Known::default() };
        let known = match std::fs::read(path).map(|text| serde_json::from_slice::<Known>(&text)) {
            Ok(Ok(known)) if known.boot == boot => known,
            Ok(Ok(_)) => nothing(),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => nothing(),
            Ok(Err(err)) => lost(path, &err, nothing()),
            Err(err) => lost(path, &err, nothing()),
        };
        let mut said = Said { path: path.into(), known, ..Said::default() };
        said.put_together();
        said
    }

    fn put_together(&mut self) {
        self.all = Words { groups: self.known.groups.clone(), processes: self.known.processes.clone() };
        self.all.add(&self.held);
    }

    /// What is being said from now on by those who have to go on with it. Returns whether that is new.
    pub fn hold(&mut self, held: Words) -> bool {
        let is_new = self.held != held;
        if is_new {
            self.held = held;
            self.put_together();
        }
        is_new
    }

    fn save(&self) -> Result<()> {
        write_atomically(&self.path, &serde_json::to_vec(&self.known)?)
    }

    /// Takes note of a word about a group; `None`: nothing is said any more.
    pub fn of_group(&mut self, id: GroupId, word: Option<Word>) -> Result<()> {
        set(&mut self.known.groups, id, word);
        self.put_together();
        self.save()
    }

    /// As [`Said::of_group`], of a process.
    pub fn of_process(&mut self, id: ProcessId, word: Option<Word>) -> Result<()> {
        set(&mut self.known.processes, id, word);
        self.put_together();
        self.save()
    }

    /// The groups of which something is said.
    pub fn groups(&self) -> &HashMap<GroupId, Word> {
        &self.all.groups
    }

    /// The processes of which something is said.
    pub fn processes(&self) -> &HashMap<ProcessId, Word> {
        &self.all.processes
    }

    /// Forgets processes that have ended. What is on disk follows with the next word.
    pub fn retain_processes(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        for words in [&mut self.known.processes, &mut self.held.processes, &mut self.all.processes] {
            words.retain(|id, _| is_there(*id));
        }
    }

    /// Forgets groups that are gone.
    pub fn retain_groups(&mut self, is_there: impl Fn(GroupId) -> bool) {
        for words in [&mut self.known.groups, &mut self.held.groups, &mut self.all.groups] {
            words.retain(|id, _| is_there(*id));
        }
    }
}

fn set<K: Eq + std::hash::Hash>(map: &mut HashMap<K, Word>, id: K, word: Option<Word>) {
    match word {
        Some(word) => map.insert(id, word),
        None => map.remove(&id),
    };
}

fn lost(path: &Path, err: &dyn std::fmt::Display, nothing: Known) -> Known {
    log::warn!("{}: {err}; what was said of groups and processes is not known any more", path.display());
    nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_known_to_the_next_daemon_of_this_boot_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("said.json");
        let (group, process) = (GroupId(7), ProcessId { pid: 8, start: 9 });
        let mut said = Said::load(&path, "one");
        said.of_group(group, Some(Word::Background)).expect("saved");
        said.of_group(GroupId(1), Some(Word::Foreground)).expect("saved");
        said.of_process(process, Some(Word::Foreground)).expect("saved");
        said.of_group(GroupId(1), None).expect("saved");
        let again = Said::load(&path, "one");
        assert_eq!(again.groups(), &HashMap::from([(group, Word::Background)]));
        assert_eq!(again.processes(), &HashMap::from([(process, Word::Foreground)]));
        assert!(Said::load(&path, "two").processes().is_empty());
        std::fs::write(&path, "{\"boot\":").expect("written");
        assert!(Said::load(&path, "one").groups().is_empty());
    }

    #[test]
    fn what_is_held_asks_for_more_care_and_is_gone_with_its_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("said.json");
        let (said_of, other, process) = (GroupId(1), GroupId(2), ProcessId { pid: 8, start: 9 });
        let mut said = Said::load(&path, "one");
        said.of_group(said_of, Some(Word::Background)).expect("saved");
        said.of_process(process, Some(Word::Foreground)).expect("saved");
        let held = Words {
            groups: HashMap::from([(said_of, Word::Present), (other, Word::Foreground)]),
            processes: HashMap::from([(process, Word::Present)]),
        };
        assert!(said.hold(held.clone()) && !said.hold(held));
        assert_eq!(said.groups(), &HashMap::from([(said_of, Word::Present), (other, Word::Foreground)]));
        assert_eq!(said.processes(), &HashMap::from([(process, Word::Foreground)]));
        // Nobody else knows of it.
        assert_eq!(Said::load(&path, "one").groups(), &HashMap::from([(said_of, Word::Background)]));
        assert!(said.hold(Words::default()));
        assert_eq!(said.groups(), &HashMap::from([(said_of, Word::Background)]));
    }
}
