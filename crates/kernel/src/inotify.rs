//! `inotify(7)` (Linux 2.6.13): tells which groups' extended attributes have changed.
//!
//! `setxattr(2)` sends `IN_ATTRIB` on cgroupfs as on any file system (fs/xattr.c; seen on 6.1, 6.12
//! and 7.3). So do `chmod` and `chown`. cgroupfs sends no event when a group is removed (seen on
//! 6.18): its watch stays, and keeps the inode in memory, until the watch is removed.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use omr_units::GroupId;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::{Dir, Error, Result};

/// The groups whose attributes are watched.
#[derive(Debug)]
pub struct Watches {
    fd: OwnedFd,
    watched: HashMap<GroupId, i32>,
    groups: HashMap<i32, GroupId>,
}

/// Changes since the last [`Watches::read`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Groups whose attributes, mode or owner have changed.
    pub groups: Vec<GroupId>,
    /// Events were lost, so other groups may have changed as well. The kernel keeps at most 16384
    /// events (`max_queued_events`).
    pub lost: bool,
}

impl Watches {
    /// No watches.
    pub fn new() -> Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let fd = fd.map_err(|err| Error::read("inotify", err))?;
        Ok(Watches { fd, watched: HashMap::new(), groups: HashMap::new() })
    }

    /// Watches a group. A group that is watched already stays so. `ENOSPC`: the limit
    /// `fs.inotify.max_user_watches` is reached.
    pub fn watch(&mut self, dir: &Dir, id: GroupId) -> Result<()> {
        if self.watched.contains_key(&id) {
            return Ok(());
        }
        // By its descriptor: another group may have the name now, and a path may be too long.
        let link = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        let flags = WatchFlags::ATTRIB | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(&self.fd, link, flags).map_err(|err| Error::read(dir.path(), err))?;
        self.watched.insert(id, watch);
        self.groups.insert(watch, id);
        Ok(())
    }

    /// Removes the watches of all groups for which `is_there` says no.
    pub fn retain(&mut self, is_there: impl Fn(GroupId) -> bool) {
        let Watches { fd, watched, groups } = self;
        watched.retain(|id, watch| {
            let stays = is_there(*id);
            if !stays {
                groups.remove(watch);
                // The kernel may have removed the watch together with the group.
                let _ = inotify::remove_watch(&*fd, *watch);
            }
            stays
        });
    }

    /// The changes since the last call. Does not wait.
    pub fn read(&mut self) -> Changed {
        let mut changed = Changed::default();
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.fd, &mut space);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.lost = true;
            } else if event.events().contains(ReadFlags::IGNORED) {
                if let Some(id) = self.groups.remove(&event.wd()) {
                    self.watched.remove(&id);
                }
            } else if let Some(id) = self.groups.get(&event.wd()) {
                changed.groups.push(*id);
            }
        }
        changed.groups.sort_unstable();
        changed.groups.dedup();
        changed
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_of_watched_directories_only() {
        let temp = tempfile::tempdir().expect("a directory");
        let open = |name: &str| {
            let path = temp.path().join(name);
            std::fs::create_dir(&path).expect("made");
            let dir = Dir::open(&path).expect("open");
            let id = dir.id().expect("an id");
            (dir, id, path)
        };
        let touch = |path: &std::path::Path| {
            let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
            std::fs::set_permissions(path, mode).expect("changed");
        };
        let [(a, a_id, a_path), (b, b_id, b_path), (_, _, c_path)] = ["a", "b", "c"].map(open);
        let mut watches = Watches::new().expect("inotify");
        watches.watch(&a, a_id).expect("watched");
        watches.watch(&a, a_id).expect("watched");
        watches.watch(&b, b_id).expect("watched");
        assert_eq!(watches.read(), Changed::default());
        for path in [&a_path, &a_path, &c_path] {
            touch(path);
        }
        assert_eq!(watches.read(), Changed { groups: vec![a_id], lost: false });
        assert_eq!(watches.read(), Changed::default());
        watches.retain(|id| id != b_id);
        touch(&b_path);
        assert_eq!(watches.read(), Changed::default());
        // A directory is removed, and another one is made under its name.
        std::fs::remove_dir(&a_path).expect("removed");
        let _ = watches.read();
        let (a, a_id, a_path) = open("a");
        watches.watch(&a, a_id).expect("watched");
        touch(&a_path);
        assert_eq!(watches.read().groups, [a_id]);
    }
}
