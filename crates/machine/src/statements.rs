//! What somebody has said of groups and processes: `omr foreground`, `omr background`, `omr follow`.
//!
//! All of it is kept below `/run`: for other commands, and what the first two say for a daemon that is started anew. Processes and
//! groups are known by identities that are not given out again within one boot.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_base::paths;
use omr_base::storage::write_atomically;
use omr_policy::rank::ProcessId;
use omr_policy::statement::Word;
use omr_units::GroupId;
use serde::{Deserialize, Serialize};

/// The group that a user names, as a request can carry it and as the daemon compares it.
pub fn group(target: &Path) -> String {
    target.strip_prefix(".").unwrap_or(target).to_string_lossy().into_owned()
}

/// Words about groups and processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// About groups.
    #[serde(with = "pairs")]
    pub groups: HashMap<GroupId, Word>,
    /// About processes.
    #[serde(with = "pairs")]
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
    /// What was said and is held, together.
    all: Words,
}

/// What is on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    boot: String,
    #[serde(flatten)]
    said: Words,
    /// What is being said by those who have to go on with it.
    #[serde(default)]
    held: Words,
}

/// Identities are no keys of JSON.
mod pairs {
    use std::collections::HashMap;
    use std::hash::Hash;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use omr_policy::statement::Word;

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
    /// What was said before, in this boot, for the daemon, which takes over what is held until it knows better. From a file that
    /// cannot be read: nothing.
    pub fn load(path: &Path, boot: &str) -> Said {
        let known = Known::read(path, boot).unwrap_or_else(|err| {
            log::warn!("{err:#}; what was said of groups and processes is not known any more");
            Known::none(boot)
        });
        Said::new(path, known)
    }

    /// What is said now, for everybody but the daemon. What is held counts as long as there is a daemon to hold it. A file that
    /// cannot be read is an error: who takes memory has to know what is in the foreground.
    pub fn read(root: &Path, boot: &str) -> Result<Said> {
        let path = paths::said(root);
        let mut known = Known::read(&path, boot).context("what is in the foreground cannot be told")?;
        let nobody = |err: std::io::Error| matches!(err.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        if UnixStream::connect(paths::socket(root)).is_err_and(nobody) {
            known.held = Words::default();
        }
        Ok(Said::new(&path, known))
    }

    fn new(path: &Path, known: Known) -> Said {
        let mut said = Said { path: path.into(), known, ..Said::default() };
        said.put_together();
        said
    }

    fn put_together(&mut self) {
        self.all = self.known.said.clone();
        self.all.add(&self.known.held);
    }

    /// What is being said from now on by those who have to go on with it. Returns whether that is new.
    pub fn hold(&mut self, held: Words) -> bool {
        let is_new = self.known.held != held;
        if is_new {
            self.known.held = held;
            self.put_together();
            if let Err(err) = self.save() {
                log::warn!("{err:#}; other commands do not know what is in the foreground now");
            }
        }
        is_new
    }

    fn save(&self) -> Result<()> {
        write_atomically(&self.path, &serde_json::to_vec(&self.known)?)
    }

    /// Takes note of a word about a group; `None`: nothing is said any more.
    pub fn of_group(&mut self, id: GroupId, word: Option<Word>) -> Result<()> {
        self.note(|said| set(&mut said.groups, id, word))
    }

    /// As [`Said::of_group`], of a process.
    pub fn of_process(&mut self, id: ProcessId, word: Option<Word>) -> Result<()> {
        self.note(|said| set(&mut said.processes, id, word))
    }

    /// What cannot be kept is not noted: who said it is told so.
    fn note(&mut self, change: impl FnOnce(&mut Words)) -> Result<()> {
        let before = self.known.said.clone();
        change(&mut self.known.said);
        let saved = self.save();
        if saved.is_err() {
            self.known.said = before;
        }
        self.put_together();
        saved.context("nothing was noted")
    }

    /// The groups of which something is said.
    pub fn groups(&self) -> &HashMap<GroupId, Word> {
        &self.all.groups
    }

    /// The processes of which something is said.
    pub fn processes(&self) -> &HashMap<ProcessId, Word> {
        &self.all.processes
    }

    /// Forgets processes that have ended. What is on disk follows with the next word; what is held is its holder's to forget.
    pub fn retain_processes(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        for words in [&mut self.known.said, &mut self.all] {
            words.processes.retain(|id, _| is_there(*id));
        }
    }

    /// As [`Said::retain_processes`], of groups.
    pub fn retain_groups(&mut self, is_there: impl Fn(GroupId) -> bool) {
        for words in [&mut self.known.said, &mut self.all] {
            words.groups.retain(|id, _| is_there(*id));
        }
    }
}

impl Known {
    fn none(boot: &str) -> Known {
        Known { boot: boot.into(), ..Known::default() }
    }

    /// From a file that is not there, or of another boot: nothing.
    fn read(path: &Path, boot: &str) -> Result<Known> {
        let text = match std::fs::read(path) {
            Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Known::none(boot)),
            Err(err) if err.kind() == ErrorKind::PermissionDenied => {
                return Err(err)
                    .with_context(|| format!("read {}, as root or a member of the group omr", path.display()));
            }
            text => text.with_context(|| unreadable(path))?,
        };
        let known: Known = serde_json::from_slice(&text).with_context(|| unreadable(path))?;
        Ok(if known.boot == boot { known } else { Known::none(boot) })
    }
}

fn unreadable(path: &Path) -> String {
    format!("read {0} (remove it, and say again what is in the foreground)", path.display())
}

fn set<K: Eq + std::hash::Hash>(map: &mut HashMap<K, Word>, id: K, word: Option<Word>) {
    match word {
        Some(word) => map.insert(id, word),
        None => map.remove(&id),
    };
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
    fn what_cannot_be_kept_is_not_noted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("said.json");
        let mut said = Said::load(&path, "one");
        said.of_group(GroupId(1), Some(Word::Background)).expect("saved");
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        for word in [Some(Word::Foreground), None] {
            let err = said.of_group(GroupId(1), word).expect_err("a directory");
            assert!(format!("{err:#}").starts_with("nothing was noted: write "), "{err:#}");
        }
        said.of_process(ProcessId { pid: 8, start: 9 }, Some(Word::Background)).expect_err("a directory");
        assert_eq!(said.groups(), &HashMap::from([(GroupId(1), Word::Background)]));
        assert!(said.processes().is_empty());
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
        // The next daemon takes it over, until those who hold it have told that one.
        let mut again = Said::load(&path, "one");
        assert_eq!(again.groups(), said.groups());
        assert!(again.hold(Words::default()));
        assert_eq!(again.groups(), &HashMap::from([(said_of, Word::Background)]));
        assert_eq!(Said::load(&path, "one").groups(), again.groups());
        // One that has ended is forgotten, held or not, and that is nothing new.
        let held = Words { processes: HashMap::from([(process, Word::Foreground)]), ..Words::default() };
        assert!(said.hold(held.clone()));
        said.retain_processes(|_| false);
        assert!(said.processes().is_empty() && !said.hold(held));
    }

    #[test]
    fn what_is_held_is_known_to_others_while_there_is_a_daemon_or_that_cannot_be_told() {
        let root = tempfile::tempdir().expect("a directory");
        let path = paths::said(root.path());
        std::fs::create_dir_all(paths::runtime_dir(root.path())).expect("made");
        let group = GroupId(1);
        let mut said = Said::load(&path, "one");
        said.of_group(group, Some(Word::Background)).expect("saved");
        said.hold(Words { groups: HashMap::from([(group, Word::Foreground)]), ..Words::default() });
        let read = || Said::read(root.path(), "one").expect("readable").groups().get(&group).copied();
        assert_eq!(read(), Some(Word::Background), "there is no socket");
        let socket = std::os::unix::net::UnixListener::bind(paths::socket(root.path())).expect("a socket");
        assert_eq!(read(), Some(Word::Foreground));
        drop(socket);
        assert_eq!(read(), Some(Word::Background), "the daemon was killed: nobody listens");
        // It cannot be asked.
        std::fs::remove_file(paths::socket(root.path())).expect("removed");
        std::os::unix::fs::symlink("omr.sock", paths::socket(root.path())).expect("a loop");
        assert_eq!(read(), Some(Word::Foreground));
        assert_eq!(Said::read(root.path(), "two").expect("readable").groups(), &HashMap::new());
        std::fs::write(&path, "{\"boot\":").expect("written");
        let err = Said::read(root.path(), "one").expect_err("cut off");
        assert!(format!("{err:#}").starts_with("what is in the foreground cannot be told: read "), "{err:#}");
    }
}
