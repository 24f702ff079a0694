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
use omr_policy::statement::Presence;
use omr_units::GroupId;
use serde::{Deserialize, Serialize};

/// The group that a user names, as a request can carry it and as the daemon compares it.
pub fn group_name(target: &Path) -> String {
    target.strip_prefix(".").unwrap_or(target).to_string_lossy().into_owned()
}

/// Statements about groups and processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statements {
    /// About groups.
    #[serde(with = "pairs")]
    pub groups: HashMap<GroupId, Presence>,
    /// About processes.
    #[serde(with = "pairs")]
    pub processes: HashMap<ProcessId, Presence>,
}

impl Statements {
    /// Of two words about one, the one that asks for more care counts.
    pub fn merge(&mut self, other: &Statements) {
        for (id, presence) in &other.groups {
            self.groups.entry(*id).and_modify(|known| *known = (*known).max(*presence)).or_insert(*presence);
        }
        for (id, presence) in &other.processes {
            self.processes.entry(*id).and_modify(|known| *known = (*known).max(*presence)).or_insert(*presence);
        }
    }
}

/// All of it.
#[derive(Debug, Default)]
pub struct StatementStore {
    path: PathBuf,
    saved: SavedStatements,
    /// What was said and is held, together.
    all: Statements,
}

/// What is on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedStatements {
    boot: String,
    #[serde(flatten)]
    statements: Statements,
    /// Statements that count as long as the client that made them stays connected.
    #[serde(default, rename = "held")]
    by_clients: Statements,
}

/// Identities are no keys of JSON.
mod pairs {
    use std::collections::HashMap;
    use std::hash::Hash;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use omr_policy::statement::Presence;

    pub fn serialize<K: Serialize, S: Serializer>(
        map: &HashMap<K, Presence>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, K: Deserialize<'de> + Eq + Hash, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<HashMap<K, Presence>, D::Error> {
        Ok(Vec::<(K, Presence)>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl StatementStore {
    /// What was said before, in this boot, for the daemon, which takes over what is held until it knows better. From a file that
    /// cannot be read: nothing.
    pub fn load(path: &Path, boot: &str) -> StatementStore {
        let saved = SavedStatements::read(path, boot).unwrap_or_else(|err| {
            log::warn!("{err:#}; what was said of groups and processes is not known any more");
            SavedStatements::none(boot)
        });
        StatementStore::new(path, saved)
    }

    /// What is said now, for everybody but the daemon. What is held counts as long as there is a daemon to hold it. A file that
    /// cannot be read is an error: who takes memory has to know what is in the foreground.
    pub fn read(root: &Path, boot: &str) -> Result<StatementStore> {
        let path = paths::statements(root);
        let mut saved = SavedStatements::read(&path, boot).context("what is in the foreground cannot be told")?;
        let nobody = |err: std::io::Error| matches!(err.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        if UnixStream::connect(paths::socket(root)).is_err_and(nobody) {
            saved.by_clients = Statements::default();
        }
        Ok(StatementStore::new(&path, saved))
    }

    fn new(path: &Path, saved: SavedStatements) -> StatementStore {
        let mut statements = StatementStore { path: path.into(), saved, ..StatementStore::default() };
        statements.combine();
        statements
    }

    fn combine(&mut self) {
        self.all = self.saved.statements.clone();
        self.all.merge(&self.saved.by_clients);
    }

    /// What is being said from now on by those who have to go on with it. Returns whether that is new.
    pub fn set_client_statements(&mut self, by_clients: Statements) -> bool {
        let is_new = self.saved.by_clients != by_clients;
        if is_new {
            self.saved.by_clients = by_clients;
            self.combine();
            if let Err(err) = self.save() {
                log::warn!("{err:#}; other commands do not know what is in the foreground now");
            }
        }
        is_new
    }

    fn save(&self) -> Result<()> {
        write_atomically(&self.path, &serde_json::to_vec(&self.saved)?)
    }

    /// Takes note of a word about a group; `None`: nothing is said any more.
    pub fn set_group(&mut self, id: GroupId, presence: Option<Presence>) -> Result<()> {
        self.note(|statements| set(&mut statements.groups, id, presence))
    }

    /// As [`StatementStore::of_group`], of a process.
    pub fn set_process(&mut self, id: ProcessId, presence: Option<Presence>) -> Result<()> {
        self.note(|statements| set(&mut statements.processes, id, presence))
    }

    /// What cannot be kept is not noted: who said it is told so.
    fn note(&mut self, change: impl FnOnce(&mut Statements)) -> Result<()> {
        let before = self.saved.statements.clone();
        change(&mut self.saved.statements);
        let saved = self.save();
        if saved.is_err() {
            self.saved.statements = before;
        }
        self.combine();
        saved.context("nothing was noted")
    }

    /// The groups of which something is said.
    pub fn groups(&self) -> &HashMap<GroupId, Presence> {
        &self.all.groups
    }

    /// The processes of which something is said.
    pub fn processes(&self) -> &HashMap<ProcessId, Presence> {
        &self.all.processes
    }

    /// Forgets processes that have ended. What is on disk follows with the next word; what is held is its holder's to forget.
    pub fn retain_processes(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        for statements in [&mut self.saved.statements, &mut self.all] {
            statements.processes.retain(|id, _| is_there(*id));
        }
    }

    /// As [`StatementStore::retain_processes`], of groups.
    pub fn retain_groups(&mut self, is_there: impl Fn(GroupId) -> bool) {
        for statements in [&mut self.saved.statements, &mut self.all] {
            statements.groups.retain(|id, _| is_there(*id));
        }
    }
}

impl SavedStatements {
    fn none(boot: &str) -> SavedStatements {
        SavedStatements { boot: boot.into(), ..SavedStatements::default() }
    }

    /// From a file that is not there, or of another boot: nothing.
    fn read(path: &Path, boot: &str) -> Result<SavedStatements> {
        let text = match std::fs::read(path) {
            Err(err) if err.kind() == ErrorKind::NotFound => return Ok(SavedStatements::none(boot)),
            Err(err) if err.kind() == ErrorKind::PermissionDenied => {
                return Err(err)
                    .with_context(|| format!("read {}, as root or a member of the group omr", path.display()));
            }
            text => text.with_context(|| unreadable(path))?,
        };
        let saved: SavedStatements = serde_json::from_slice(&text).with_context(|| unreadable(path))?;
        Ok(if saved.boot == boot { saved } else { SavedStatements::none(boot) })
    }
}

fn unreadable(path: &Path) -> String {
    format!("read {0} (remove it, and say again what is in the foreground)", path.display())
}

fn set<K: Eq + std::hash::Hash>(map: &mut HashMap<K, Presence>, id: K, presence: Option<Presence>) {
    match presence {
        Some(presence) => map.insert(id, presence),
        None => map.remove(&id),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_known_to_the_next_daemon_of_this_boot_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        let (group, process) = (GroupId(7), ProcessId { pid: 8, start: 9 });
        let mut statements = StatementStore::load(&path, "one");
        statements.set_group(group, Some(Presence::Background)).expect("saved");
        statements.set_group(GroupId(1), Some(Presence::Foreground)).expect("saved");
        statements.set_process(process, Some(Presence::Foreground)).expect("saved");
        statements.set_group(GroupId(1), None).expect("saved");
        let again = StatementStore::load(&path, "one");
        assert_eq!(again.groups(), &HashMap::from([(group, Presence::Background)]));
        assert_eq!(again.processes(), &HashMap::from([(process, Presence::Foreground)]));
        assert!(StatementStore::load(&path, "two").processes().is_empty());
        std::fs::write(&path, "{\"boot\":").expect("written");
        assert!(StatementStore::load(&path, "one").groups().is_empty());
    }

    #[test]
    fn what_cannot_be_kept_is_not_noted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        let mut statements = StatementStore::load(&path, "one");
        statements.set_group(GroupId(1), Some(Presence::Background)).expect("saved");
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        for presence in [Some(Presence::Foreground), None] {
            let err = statements.set_group(GroupId(1), presence).expect_err("a directory");
            assert!(format!("{err:#}").starts_with("nothing was noted: write "), "{err:#}");
        }
        statements.set_process(ProcessId { pid: 8, start: 9 }, Some(Presence::Background)).expect_err("a directory");
        assert_eq!(statements.groups(), &HashMap::from([(GroupId(1), Presence::Background)]));
        assert!(statements.processes().is_empty());
    }

    #[test]
    fn what_is_held_asks_for_more_care_and_is_gone_with_its_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        let (said_of, other, process) = (GroupId(1), GroupId(2), ProcessId { pid: 8, start: 9 });
        let mut statements = StatementStore::load(&path, "one");
        statements.set_group(said_of, Some(Presence::Background)).expect("saved");
        statements.set_process(process, Some(Presence::Foreground)).expect("saved");
        let held = Statements {
            groups: HashMap::from([(said_of, Presence::Present), (other, Presence::Foreground)]),
            processes: HashMap::from([(process, Presence::Present)]),
        };
        assert!(statements.set_client_statements(held.clone()) && !statements.set_client_statements(held));
        assert_eq!(statements.groups(), &HashMap::from([(said_of, Presence::Present), (other, Presence::Foreground)]));
        assert_eq!(statements.processes(), &HashMap::from([(process, Presence::Foreground)]));
        // The next daemon takes it over, until those who hold it have told that one.
        let mut again = StatementStore::load(&path, "one");
        assert_eq!(again.groups(), statements.groups());
        assert!(again.set_client_statements(Statements::default()));
        assert_eq!(again.groups(), &HashMap::from([(said_of, Presence::Background)]));
        assert_eq!(StatementStore::load(&path, "one").groups(), again.groups());
        // One that has ended is forgotten, held or not, and that is nothing new.
        let held = Statements { processes: HashMap::from([(process, Presence::Foreground)]), ..Statements::default() };
        assert!(statements.set_client_statements(held.clone()));
        statements.retain_processes(|_| false);
        assert!(statements.processes().is_empty() && !statements.set_client_statements(held));
    }

    #[test]
    fn what_is_held_is_known_to_others_while_there_is_a_daemon_or_that_cannot_be_told() {
        let root = tempfile::tempdir().expect("a directory");
        let path = paths::statements(root.path());
        std::fs::create_dir_all(paths::runtime_dir(root.path())).expect("made");
        let group = GroupId(1);
        let mut statements = StatementStore::load(&path, "one");
        statements.set_group(group, Some(Presence::Background)).expect("saved");
        statements.set_client_statements(Statements {
            groups: HashMap::from([(group, Presence::Foreground)]),
            ..Statements::default()
        });
        let read = || StatementStore::read(root.path(), "one").expect("readable").groups().get(&group).copied();
        assert_eq!(read(), Some(Presence::Background), "there is no socket");
        let socket = std::os::unix::net::UnixListener::bind(paths::socket(root.path())).expect("a socket");
        assert_eq!(read(), Some(Presence::Foreground));
        drop(socket);
        assert_eq!(read(), Some(Presence::Background), "the daemon was killed: nobody listens");
        // It cannot be asked.
        std::fs::remove_file(paths::socket(root.path())).expect("removed");
        std::os::unix::fs::symlink("omr.sock", paths::socket(root.path())).expect("a loop");
        assert_eq!(read(), Some(Presence::Foreground));
        assert_eq!(StatementStore::read(root.path(), "two").expect("readable").groups(), &HashMap::new());
        std::fs::write(&path, "{\"boot\":").expect("written");
        let err = StatementStore::read(root.path(), "one").expect_err("cut off");
        assert!(format!("{err:#}").starts_with("what is in the foreground cannot be told: read "), "{err:#}");
    }
}
