//! The pages that groups had in memory before they lost some of them, so that just those pages can
//! be given back.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use omr_base::cancel::Flag;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, process};
use omr_machine::groups::tree::Tree;
use omr_policy::Class;
use omr_units::GroupId;

use super::record::{Packed, Record, RecordedGroup, RecordedProcess, read_process};
use super::{BACKGROUND, Subject};

/// The most ranges of pages of all groups together. A range takes 16 bytes, which are locked in
/// memory.
const MOST_RANGES: usize = 100_000;
/// Groups of people who log in. systemd starts them here.
const SESSIONS: &str = "user.slice";

/// The pages of groups. It is bounded, because any user can make groups and mappings.
#[derive(Debug, Default)]
pub struct Remembered {
    absence: u64,
    groups: Vec<(GroupId, Vec<RecordedProcess>)>,
    ranges: usize,
}

impl Remembered {
    /// Keeps what the processes of a group have in memory now. `paths`: the group and those below
    /// it. A group that is known stays as it is; groups of another `absence` are forgotten. Fails if
    /// that is not known as a whole.
    pub fn add(&mut self, kernel: &Kernel, absence: u64, id: GroupId, paths: &[PathBuf], cancel: &Flag) -> Result<()> {
        if self.absence != absence {
            *self = Remembered { absence, ..Remembered::default() };
        }
        if self.groups.iter().any(|(known, _)| *known == id) {
            return Ok(());
        }
        let mut processes = Vec::new();
        let mut ranges = self.ranges;
        for path in paths {
            let pids = match Group::open(kernel.cgroup()?, path).and_then(|group| process::read_pids(group.dir())) {
                Ok(pids) => pids,
                Err(err) if err.is_gone() => continue,
                Err(err) => return Err(err.into()),
            };
            for pid in pids {
                if cancel.is_set() {
                    bail!("it was ended before its memory was recorded");
                }
                let (starttime, used, rest) = match read_process(kernel, pid) {
                    Ok(read) => read,
                    Err(err) if err.is_gone() => continue,
                    Err(err) => return Err(err.into()),
                };
                let (used, rest) = (Packed::new(&used, kernel.page()), Packed::new(&rest, kernel.page()));
                ranges += used.len() + rest.len();
                if ranges > MOST_RANGES {
                    bail!("its memory could not be given back: it has more than {MOST_RANGES} ranges of pages");
                }
                if used.len() + rest.len() > 0 {
                    processes.push(RecordedProcess { pid, starttime, used, rest });
                }
            }
        }
        self.ranges = ranges;
        self.groups.push((id, processes));
        Ok(())
    }

    /// Forgets all groups. Returns a record of those at these paths, and their processes: groups in
    /// the foreground first, then those of people who log in, then the others.
    pub fn take(&mut self, kernel: &Kernel, tree: &Tree, ids: &[(GroupId, PathBuf)]) -> Result<(Record, Vec<Subject>)> {
        let mut record = Record::new(kernel.read_boot_id()?, kernel.page(), 0);
        let mut subjects = Vec::new();
        for (id, processes) in std::mem::take(self).groups {
            let Some((_, path)) = ids.iter().find(|(wanted, _)| *wanted == id) else { continue };
            let assignment = tree.find(path).filter(|node| node.id == id).and_then(|node| tree.assignment(node));
            let class = assignment.map_or(Class::Background, |assignment| assignment.class);
            let is_explicit = assignment.is_some_and(|assignment| assignment.explicit);
            let pids = processes.iter().map(|process| process.pid).collect();
            subjects.push(Subject { group: path.clone(), class, rank: rank(class, is_explicit, path), pids });
            let path = path.to_string_lossy().into_owned();
            record.groups.push(RecordedGroup { path, class, processes });
        }
        subjects.sort_by_key(|subject| subject.rank);
        Ok((record, subjects))
    }
}

/// The order in which memory is given back, lowest first.
fn rank(class: Class, is_explicit: bool, path: &Path) -> u8 {
    match class {
        Class::Foreground => 0,
        Class::Background if is_explicit => BACKGROUND,
        _ if path.starts_with(SESSIONS) => 1,
        Class::Protected | Class::Background => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_comes_back_before_services() {
        let rank = |class, is_explicit, path| rank(class, is_explicit, Path::new(path));
        let order = [
            rank(Class::Foreground, true, "a.slice/b.service"),
            rank(Class::Background, false, "user.slice/user-1000.slice/session-1.scope"),
            rank(Class::Background, false, "system.slice/b.service"),
            rank(Class::Background, true, "user.slice/user-1000.slice/batch.scope"),
        ];
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
