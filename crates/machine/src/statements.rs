//! Statements about groups and processes, from `omr foreground`, `omr background`, `omr follow`.
//!
//! All statements are in a file below `/run`: other commands read it, and a new daemon takes over
//! the statements of `omr foreground` and `omr background`. Processes and groups have identities
//! that are not used again within one boot.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_base::folder::read_file;
use omr_base::paths;
use omr_base::storage::write_for_this_boot;
use omr_kernel::is_passing;
use omr_policy::rank::ProcessId;
use omr_policy::statement::Presence;
use omr_units::GroupId;
use serde::{Deserialize, Serialize};

/// Returns the name of a group as a request carries it and as the daemon compares it.
pub fn group_name(target: &Path) -> String {
    target.strip_prefix(".").unwrap_or(target).to_string_lossy().into_owned()
}

/// Statements about groups and processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statements {
    /// Statements about groups.
    #[serde(with = "pairs")]
    pub groups: HashMap<GroupId, Presence>,
    /// Statements about processes.
    #[serde(with = "pairs")]
    pub processes: HashMap<ProcessId, Presence>,
}

impl Statements {
    /// Adds the other statements. Of two statements about one subject, the one that asks for more
    /// care counts.
    pub fn merge(&mut self, other: &Statements) {
        for (id, presence) in &other.groups {
            self.groups.entry(*id).and_modify(|known| *known = (*known).max(*presence)).or_insert(*presence);
        }
        for (id, presence) in &other.processes {
            self.processes.entry(*id).and_modify(|known| *known = (*known).max(*presence)).or_insert(*presence);
        }
    }
}

/// All statements, and the file that holds them.
#[derive(Debug, Default)]
pub struct StatementStore {
    path: PathBuf,
    saved: SavedStatements,
    /// Both kinds of statements, merged.
    all: Statements,
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SavedStatements {
    boot: String,
    #[serde(flatten)]
    statements: Statements,
    /// Statements that count as long as the client that made them stays connected.
    #[serde(default, rename = "held")]
    by_clients: Statements,
}

/// Maps as lists of pairs: identities cannot be keys in JSON.
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
    /// Reads the statements of this boot, for a new daemon. It also takes over the statements by
    /// clients until those clients connect again. If the file is wrong, there are no statements. An
    /// error that passes is one: the statements are still there.
    pub fn load(path: &Path, boot: &str) -> Result<StatementStore> {
        let saved = match SavedStatements::read(path, boot) {
            Ok(saved) => saved,
            Err(err) if err.downcast_ref().is_some_and(is_passing) => return Err(err),
            Err(err) => {
                log::warn!("{err:#}; earlier statements about groups and processes are lost");
                SavedStatements::none(boot)
            }
        };
        Ok(StatementStore::new(path, saved))
    }

    /// Reads the current statements, for everybody but the daemon. Statements by clients count only
    /// while a daemon runs. A file that cannot be read is an error: without it, memory in the
    /// foreground could be reclaimed.
    pub fn read(root: &Path, boot: &str) -> Result<StatementStore> {
        let path = paths::statements(root);
        let mut saved = SavedStatements::read(&path, boot)
            .context("cannot read which groups and processes are in the foreground")?;
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

    /// Replaces the statements by clients. Returns true if they changed.
    pub fn set_client_statements(&mut self, by_clients: Statements) -> bool {
        let is_new = self.saved.by_clients != by_clients;
        if is_new {
            self.saved.by_clients = by_clients;
            self.combine();
            if let Err(err) = self.save() {
                log::warn!("{err:#}; other commands do not know the current statements");
            }
        }
        is_new
    }

    fn save(&self) -> Result<()> {
        write_for_this_boot(&self.path, &serde_json::to_vec(&self.saved)?)
    }

    /// Saves a statement about a group; `None` removes it.
    pub fn set_group(&mut self, id: GroupId, presence: Option<Presence>) -> Result<()> {
        self.note(|statements| set(&mut statements.groups, id, presence))
    }

    /// Saves a statement about a process; `None` removes it.
    pub fn set_process(&mut self, id: ProcessId, presence: Option<Presence>) -> Result<()> {
        self.note(|statements| set(&mut statements.processes, id, presence))
    }

    /// Applies a change and saves the file. If that fails, nothing changes and the caller gets the
    /// error.
    fn note(&mut self, change: impl FnOnce(&mut Statements)) -> Result<()> {
        let before = self.saved.statements.clone();
        change(&mut self.saved.statements);
        let saved = self.save();
        if saved.is_err() {
            self.saved.statements = before;
        }
        self.combine();
        saved.context("the statement was not saved")
    }

    /// All statements about groups.
    pub fn groups(&self) -> &HashMap<GroupId, Presence> {
        &self.all.groups
    }

    /// All statements about processes.
    pub fn processes(&self) -> &HashMap<ProcessId, Presence> {
        &self.all.processes
    }

    /// Forgets processes that have ended. The file follows with the next statement. Clients
    /// withdraw their own statements themselves.
    pub fn retain_processes(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        for statements in [&mut self.saved.statements, &mut self.all] {
            statements.processes.retain(|id, _| is_there(*id));
        }
    }

    /// As [`StatementStore::retain_processes`], for groups.
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

    /// Reads the file. Without a file, or with a file of another boot, there are no statements.
    fn read(path: &Path, boot: &str) -> Result<SavedStatements> {
        let text = match read_file(path) {
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
    format!("read {0} (remove it and state again what is in the foreground)", path.display())
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

    fn load(path: &Path, boot: &str) -> StatementStore {
        StatementStore::load(path, boot).expect("statements")
    }

    #[test]
    fn statements_last_until_the_next_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        let (group, process) = (GroupId(7), ProcessId { pid: 8, start: 9 });
        let mut statements = load(&path, "one");
        statements.set_group(group, Some(Presence::Background)).expect("saved");
        statements.set_group(GroupId(1), Some(Presence::Foreground)).expect("saved");
        statements.set_process(process, Some(Presence::Foreground)).expect("saved");
        statements.set_group(GroupId(1), None).expect("saved");
        let again = load(&path, "one");
        assert_eq!(again.groups(), &HashMap::from([(group, Presence::Background)]));
        assert_eq!(again.processes(), &HashMap::from([(process, Presence::Foreground)]));
        assert!(load(&path, "two").processes().is_empty());
        std::fs::write(&path, "{\"boot\":").expect("written");
        assert!(load(&path, "one").groups().is_empty());
    }

    #[test]
    fn without_a_file_there_are_no_statements_and_one_that_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let saved = SavedStatements::read(&dir.path().join("none"), "one").expect("no statements");
        assert_eq!(saved.boot, "one");
        let err = SavedStatements::read(dir.path(), "one").map(|_| ()).expect_err("a directory");
        assert!(!format!("{err:#}").contains("as root"), "{err:#}");
    }

    #[test]
    fn a_statement_that_cannot_be_saved_has_no_effect() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        let mut statements = load(&path, "one");
        statements.set_group(GroupId(1), Some(Presence::Background)).expect("saved");
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        for presence in [Some(Presence::Foreground), None] {
            let err = statements.set_group(GroupId(1), presence).expect_err("a directory");
            assert!(format!("{err:#}").starts_with("the statement was not saved: write "), "{err:#}");
        }
        statements.set_process(ProcessId { pid: 8, start: 9 }, Some(Presence::Background)).expect_err("a directory");
        assert_eq!(statements.groups(), &HashMap::from([(GroupId(1), Presence::Background)]));
        assert!(statements.processes().is_empty());
    }

    #[test]
    fn statements_by_clients_ask_for_more_care_and_end_with_the_client() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        let (said_of, other, process) = (GroupId(1), GroupId(2), ProcessId { pid: 8, start: 9 });
        let mut statements = load(&path, "one");
        statements.set_group(said_of, Some(Presence::Background)).expect("saved");
        statements.set_process(process, Some(Presence::Foreground)).expect("saved");
        let held = Statements {
            groups: HashMap::from([(said_of, Presence::Present), (other, Presence::Foreground)]),
            processes: HashMap::from([(process, Presence::Present)]),
        };
        assert!(statements.set_client_statements(held.clone()) && !statements.set_client_statements(held));
        assert_eq!(statements.groups(), &HashMap::from([(said_of, Presence::Present), (other, Presence::Foreground)]));
        assert_eq!(statements.processes(), &HashMap::from([(process, Presence::Foreground)]));
        // The next daemon takes the statements over until the clients connect to it.
        let mut again = load(&path, "one");
        assert_eq!(again.groups(), statements.groups());
        assert!(again.set_client_statements(Statements::default()));
        assert_eq!(again.groups(), &HashMap::from([(said_of, Presence::Background)]));
        assert_eq!(load(&path, "one").groups(), again.groups());
        // A process that has ended is forgotten, and that is no change.
        let held = Statements { processes: HashMap::from([(process, Presence::Foreground)]), ..Statements::default() };
        assert!(statements.set_client_statements(held.clone()));
        statements.retain_processes(|_| false);
        assert!(statements.processes().is_empty() && !statements.set_client_statements(held));
    }

    #[test]
    fn other_commands_see_statements_by_clients_while_a_daemon_may_run() {
        let root = tempfile::tempdir().expect("a directory");
        let path = paths::statements(root.path());
        std::fs::create_dir_all(paths::runtime_dir(root.path())).expect("made");
        let group = GroupId(1);
        let mut statements = load(&path, "one");
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
        // The state of the daemon is unknown.
        std::fs::remove_file(paths::socket(root.path())).expect("removed");
        std::os::unix::fs::symlink("omr.sock", paths::socket(root.path())).expect("a loop");
        assert_eq!(read(), Some(Presence::Foreground));
        assert_eq!(StatementStore::read(root.path(), "two").expect("readable").groups(), &HashMap::new());
        std::fs::write(&path, "{\"boot\":").expect("written");
        let err = StatementStore::read(root.path(), "one").expect_err("cut off");
        assert!(
            format!("{err:#}").starts_with("cannot read which groups and processes are in the foreground: read "),
            "{err:#}"
        );
    }

    #[test]
    fn no_file_makes_it_panic() {
        let texts = [r#"{"boot":"one","groups":{"7":"background"},"processes":{"8@9":"foreground"}}"#, "{}"];
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("statements.json");
        omr_testkit::fuzz::feed(&texts, |text| {
            std::fs::write(&path, text).expect("written");
            let _ = SavedStatements::read(&path, "one");
        });
    }
}
