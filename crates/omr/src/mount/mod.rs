//! A FUSE file system with the original patch's files, for kernels that lack them. Its directories
//! are the control groups, each with one file, `memory.swap.reclaim`.
//!
//! One thread reads requests and answers the quick ones. Each write has a thread of its own: it
//! lasts as long as the reclaim, and its interrupt arrives as another request.

mod attempts;
mod fuse;
mod request;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use omr_kernel::memcg::Group;
use omr_kernel::{Error, Kernel};
use omr_units::GroupId;
use polyfuse_kernel::{
    FATTR_SIZE, FOPEN_DIRECT_IO, fuse_attr, fuse_attr_out, fuse_batch_forget_in, fuse_entry_out, fuse_forget_in,
    fuse_forget_one, fuse_in_header, fuse_interrupt_in, fuse_kstatfs, fuse_opcode, fuse_open_out, fuse_read_in,
    fuse_release_in, fuse_setattr_in, fuse_statfs_out, fuse_write_in, fuse_write_out,
};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use zerocopy::IntoBytes;

pub use self::attempts::Reclaimer;
use self::attempts::{Asked, Attempts};
pub use self::fuse::{KIND, detach};
use self::fuse::{Session, argument, name, push_entry};

/// The file that each directory holds.
pub const FILE: &str = "memory.swap.reclaim";
/// The kernel's file that gives it owner and permissions.
const LIKE: &str = "memory.reclaim";

/// The size that files show, as in sysfs: sendfile(2), which some versions of cat use, reads
/// nothing from an empty file.
const SIZE: u64 = 4096;

/// FUSE's node number of the root directory. Other directories have the group's id.
const ROOT: u64 = 1;
/// A bit that is set in the node numbers of files.
///
/// Each lookup of a file returns a new node. The kernel locks an inode during a write, and a
/// process that waits for that lock cannot be interrupted until the reclaim ends.
const IS_FILE: u64 = 1 << 63;

/// A directory or file that the kernel knows, with its lookup count.
#[derive(Debug)]
struct Known {
    id: GroupId,
    path: PathBuf,
    lookups: u64,
}

/// The most entries that the open directories of one user hold together, some 8 MiB. Further ones
/// are not opened (`ENFILE`).
const MOST_ENTRIES: usize = 100_000;

/// An open directory listing.
#[derive(Debug)]
struct Listing {
    uid: u32,
    entries: Vec<(OsString, u64, FileType)>,
}

/// The mounted tree; unmounted when it is dropped.
pub struct Mirror {
    session: Arc<Session>,
    kernel: Arc<Kernel>,
    known: HashMap<u64, Known>,
    listings: HashMap<u64, Listing>,
    /// The counter for numbers of files and listings.
    count: u64,
    attempts: Attempts,
    buffer: Vec<u8>,
}

/// The answer to a request.
enum Answer {
    /// An answer that is sent at once.
    Body(Vec<u8>),
    /// A thread sends the answer later.
    Later,
    /// No answer is expected.
    Nothing,
}

impl Answer {
    fn of(message: impl IntoBytes + zerocopy::Immutable) -> Result<Answer, Errno> {
        Ok(Answer::Body(message.as_bytes().to_vec()))
    }

    fn empty() -> Result<Answer, Errno> {
        Ok(Answer::Body(Vec::new()))
    }
}

/// The error for a group that cannot be opened: ENOENT if it is gone.
fn no_entry(err: &Error) -> Errno {
    if err.is_gone() { Errno::NOENT } else { Errno::IO }
}

impl Mirror {
    /// Mounts at `dir`; groups are reclaimed by `reclaimer`.
    pub fn mount(dir: &Path, kernel: Arc<Kernel>, reclaimer: Reclaimer) -> io::Result<Self> {
        Ok(Mirror::over(Session::mount(dir)?, kernel, reclaimer))
    }

    fn over(session: Session, kernel: Arc<Kernel>, reclaimer: Reclaimer) -> Self {
        Mirror {
            attempts: Attempts::new(reclaimer),
            session: Arc::new(session),
            kernel,
            known: HashMap::new(),
            listings: HashMap::new(),
            count: 0,
            buffer: Vec::new(),
        }
    }

    /// Answers all pending requests. Fails if the file system is no longer mounted.
    pub fn serve(&mut self) -> io::Result<()> {
        let mut body = std::mem::take(&mut self.buffer);
        while let Some(header) = self.session.receive(&mut body)? {
            match self.answer(&header, &body) {
                Ok(Answer::Body(answer)) => self.session.reply(header.unique, &answer),
                Ok(Answer::Later | Answer::Nothing) => {}
                Err(err) => self.session.fail(header.unique, err),
            }
        }
        self.buffer = body;
        Ok(())
    }

    fn answer(&mut self, header: &fuse_in_header, body: &[u8]) -> Result<Answer, Errno> {
        use fuse_opcode as Op;
        let node = header.nodeid;
        match Op::try_from(header.opcode).map_err(|_| Errno::NOSYS)? {
            Op::FUSE_INIT => {
                self.session.agree(header.unique, body);
                Ok(Answer::Nothing)
            }
            Op::FUSE_LOOKUP => self.look_up(node, name(body)),
            Op::FUSE_FORGET => {
                let forgotten: fuse_forget_in = argument(body).ok_or(Errno::INVAL)?;
                self.forget(node, forgotten.nlookup);
                Ok(Answer::Nothing)
            }
            Op::FUSE_BATCH_FORGET => {
                self.forget_all(body);
                Ok(Answer::Nothing)
            }
            Op::FUSE_GETATTR => self.stat_node(node),
            Op::FUSE_SETATTR => {
                let asked: fuse_setattr_in = argument(body).ok_or(Errno::INVAL)?;
                // A shell's ">" truncates the file first, which is allowed; owner and mode cannot
                // change.
                if node & IS_FILE == 0 || asked.valid & FATTR_SIZE == 0 {
                    return Err(Errno::PERM);
                }
                self.stat_node(node)
            }
            Op::FUSE_OPEN => {
                self.group(node)?;
                // The content changes, so it must not be cached.
                Answer::of(fuse_open_out { open_flags: FOPEN_DIRECT_IO, ..Default::default() })
            }
            Op::FUSE_READ => self.read(node, body),
            Op::FUSE_WRITE => self.write(header, body),
            Op::FUSE_INTERRUPT => {
                let asked: fuse_interrupt_in = argument(body).ok_or(Errno::INVAL)?;
                self.attempts.interrupt(asked.unique);
                Ok(Answer::Nothing)
            }
            Op::FUSE_OPENDIR => {
                let listing = Listing { uid: header.uid, entries: self.list(node, header.uid)? };
                self.count += 1;
                self.listings.insert(self.count, listing);
                Answer::of(fuse_open_out { fh: self.count, ..Default::default() })
            }
            Op::FUSE_READDIR => self.read_listing(body),
            Op::FUSE_RELEASEDIR => {
                let asked: fuse_release_in = argument(body).ok_or(Errno::INVAL)?;
                self.listings.remove(&asked.fh);
                Answer::empty()
            }
            Op::FUSE_RELEASE | Op::FUSE_FLUSH | Op::FUSE_FSYNC | Op::FUSE_DESTROY => Answer::empty(),
            Op::FUSE_STATFS => {
                let st = fuse_kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Default::default() };
                Answer::of(fuse_statfs_out { st })
            }
            Op::FUSE_MKNOD | Op::FUSE_MKDIR | Op::FUSE_CREATE | Op::FUSE_SYMLINK | Op::FUSE_LINK => Err(Errno::PERM),
            Op::FUSE_UNLINK | Op::FUSE_RMDIR | Op::FUSE_RENAME | Op::FUSE_RENAME2 => Err(Errno::PERM),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Opens the group of a node. It may be gone, and another group may have its name.
    fn group(&self, node: u64) -> Result<Group, Errno> {
        let root = self.kernel.cgroup().map_err(|err| no_entry(&err))?;
        if node == ROOT {
            return Group::open(root, Path::new("")).map_err(|err| no_entry(&err));
        }
        let known = self.known.get(&node).ok_or(Errno::NOENT)?;
        let group = Group::open(root, &known.path).map_err(|err| no_entry(&err))?;
        if group.id() == known.id { Ok(group) } else { Err(Errno::NOENT) }
    }

    fn look_up(&mut self, parent: u64, name: &OsStr) -> Result<Answer, Errno> {
        if parent & IS_FILE != 0 {
            return Err(Errno::NOTDIR);
        }
        let above = self.group(parent)?;
        let (group, node) = if name == FILE {
            self.count += 1;
            (above, self.count | IS_FILE)
        } else {
            let root = self.kernel.cgroup().map_err(|err| no_entry(&err))?;
            // Names of files in a real group do not exist here.
            let group = Group::open(root, &above.path().join(name)).map_err(|_| Errno::NOENT)?;
            let id = group.id();
            (group, id.0)
        };
        let attr = stat_group(&group, node)?;
        let new = || Known { id: group.id(), path: group.path().into(), lookups: 0 };
        self.known.entry(node).or_insert_with(new).lookups += 1;
        // The kernel must not cache entries: groups and their permissions change.
        Answer::of(fuse_entry_out { nodeid: node, attr, ..Default::default() })
    }

    fn forget(&mut self, node: u64, lookups: u64) {
        if let Some(known) = self.known.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.known.remove(&node);
            }
        }
    }

    fn forget_all(&mut self, body: &[u8]) {
        let mut rest = body.get(size_of::<fuse_batch_forget_in>()..).unwrap_or_default();
        while let Some(one) = argument::<fuse_forget_one>(rest) {
            self.forget(one.nodeid, one.nlookup);
            rest = rest.get(size_of::<fuse_forget_one>()..).unwrap_or_default();
        }
    }

    fn stat_node(&self, node: u64) -> Result<Answer, Errno> {
        let attr = stat_group(&self.group(node)?, node)?;
        Answer::of(fuse_attr_out { attr, ..Default::default() })
    }

    fn list(&self, node: u64, uid: u32) -> Result<Vec<(OsString, u64, FileType)>, Errno> {
        let of_user = self.listings.values().filter(|listing| listing.uid == uid);
        let held: usize = of_user.map(|listing| listing.entries.len()).sum();
        let group = self.group(node)?;
        let here = group.id().0;
        let mut listing = vec![(".".into(), here, FileType::Directory), ("..".into(), here, FileType::Directory)];
        if group.dir().has(LIKE) {
            listing.push((FILE.into(), here | IS_FILE, FileType::RegularFile));
        }
        let children = group.dir().names().map_err(|err| no_entry(&err))?;
        if uid != 0 && held + children.len() > MOST_ENTRIES {
            return Err(Errno::NFILE);
        }
        for child in children {
            // A child that is gone meanwhile, and a file, are left out.
            if let Ok(dir) = group.dir().sub(&child)
                && let Ok(id) = dir.id()
            {
                listing.push((child, id.0, FileType::Directory));
            }
        }
        Ok(listing)
    }

    fn read_listing(&self, body: &[u8]) -> Result<Answer, Errno> {
        let asked: fuse_read_in = argument(body).ok_or(Errno::INVAL)?;
        let listing = self.listings.get(&asked.fh).ok_or(Errno::BADF)?;
        let mut answer = Vec::new();
        let from = usize::try_from(asked.offset).unwrap_or(usize::MAX);
        for (place, (name, ino, kind)) in listing.entries.iter().enumerate().skip(from) {
            let kind = if *kind == FileType::Directory { libc::DT_DIR } else { libc::DT_REG };
            let next = place as u64 + 1;
            if !push_entry(&mut answer, asked.size as usize, *ino, next, u32::from(kind), name) {
                break;
            }
        }
        Ok(Answer::Body(answer))
    }

    /// Reads the amount that was freed through the file.
    fn read(&self, node: u64, body: &[u8]) -> Result<Answer, Errno> {
        let asked: fuse_read_in = argument(body).ok_or(Errno::INVAL)?;
        let known = self.known.get(&node).ok_or(Errno::NOENT)?;
        let text = format!("{}\n", self.attempts.freed(known.id).0);
        let from = usize::try_from(asked.offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(asked.size as usize).min(text.len());
        Ok(Answer::Body(text.as_bytes().get(from..to).unwrap_or_default().to_vec()))
    }

    fn write(&mut self, header: &fuse_in_header, body: &[u8]) -> Result<Answer, Errno> {
        let asked: fuse_write_in = argument(body).ok_or(Errno::INVAL)?;
        let size = asked.size as usize;
        let data = body.get(size_of::<fuse_write_in>()..).and_then(|data| data.get(..size)).ok_or(Errno::INVAL)?;
        let request = request::parse(data)?;
        // The group existed when the file was opened.
        let group = self.group(header.nodeid).map_err(|err| if err == Errno::NOENT { Errno::NODEV } else { err })?;
        let (session, unique) = (Arc::clone(&self.session), header.unique);
        let done = move |result: Result<(), Errno>| match result {
            Ok(()) => session.reply(unique, fuse_write_out { size: asked.size, padding: 0 }.as_bytes()),
            Err(err) => session.fail(unique, err),
        };
        self.attempts.begin(Asked { unique, uid: header.uid }, group, request, done)?;
        Ok(Answer::Later)
    }
}

/// Ends all reclaim, which answers the waiting writers, and unmounts.
impl Drop for Mirror {
    fn drop(&mut self) {
        self.attempts.end();
        self.session.unmount();
    }
}

impl AsFd for Mirror {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }
}

/// Returns the attributes of a group's directory, or of its file.
fn stat_group(group: &Group, node: u64) -> Result<fuse_attr, Errno> {
    let stat: Stat = if node & IS_FILE == 0 {
        rustix::fs::fstat(group.dir())?
    } else {
        rustix::fs::statat(group.dir(), LIKE, AtFlags::SYMLINK_NOFOLLOW)?
    };
    let mode = match node & IS_FILE {
        // Files cannot be created or removed in the directory.
        0 => libc::S_IFDIR | (stat.st_mode & 0o555),
        // Write permission is that of memory.reclaim. Anybody may read the count, as with counters
        // of the kernel.
        _ => libc::S_IFREG | (stat.st_mode & 0o222) | 0o444,
    };
    let id = group.id().0;
    let (ino, nlink, size) = if node & IS_FILE == 0 { (id, 2, 0) } else { (id | IS_FILE, 1, SIZE) };
    Ok(fuse_attr { ino, mode, nlink, size, uid: stat.st_uid, gid: stat.st_gid, blksize: 4096, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use omr_config::Loaded;
    use omr_engine::reclaim::backend::Backend;
    use omr_testkit::{FakeRoot, Release};
    use polyfuse_kernel::{fuse_in_header, fuse_init_in, fuse_out_header};

    use super::*;

    fn request(opcode: fuse_opcode, nodeid: u64, body: &[u8]) -> Vec<u8> {
        let header = fuse_in_header { opcode: opcode as u32, nodeid, unique: 7, uid: 1000, ..Default::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn no_request_makes_it_panic_and_each_has_one_answer_at_most() {
        use fuse_opcode as Op;
        let root = FakeRoot::captured(Release::V6_12).busy_group("a.slice/b.service");
        let kernel = Arc::new(Kernel::open(root.path()).expect("a kernel"));
        let (device, asking) = UnixDatagram::pair().expect("a pair");
        for socket in [&device, &asking] {
            socket.set_nonblocking(true).expect("set");
        }
        let reclaimer = Reclaimer {
            kernel: Arc::clone(&kernel),
            root: root.path().into(),
            loaded: Loaded::built_in(),
            backend: Backend::MemoryReclaim { swappiness: false, waits: false },
        };
        let session = Session::of(File::from(OwnedFd::from(device)), &root.resolve("mnt"));
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a.slice")).expect("a group").id().0;
        let file = IS_FILE | 2;
        let all = u32::MAX;
        let write = fuse_write_in { size: 4, ..Default::default() };
        let read = fuse_read_in { fh: 1, size: all, ..Default::default() };
        let requests = [
            request(Op::FUSE_INIT, 0, fuse_init_in { major: 7, minor: 36, ..Default::default() }.as_bytes()),
            request(Op::FUSE_LOOKUP, ROOT, b"a.slice\0"),
            request(Op::FUSE_LOOKUP, ROOT, b"memory.swap.reclaim\0"),
            request(Op::FUSE_LOOKUP, group, b"b.service\0"),
            request(Op::FUSE_GETATTR, group, &[0; 16]),
            request(Op::FUSE_SETATTR, file, fuse_setattr_in { valid: FATTR_SIZE, ..Default::default() }.as_bytes()),
            request(Op::FUSE_OPEN, file, &[0; 8]),
            request(Op::FUSE_READ, file, read.as_bytes()),
            request(Op::FUSE_WRITE, file, &[write.as_bytes(), b"64K\n"].concat()),
            request(Op::FUSE_INTERRUPT, 0, fuse_interrupt_in { unique: 7 }.as_bytes()),
            request(Op::FUSE_OPENDIR, ROOT, &[0; 8]),
            request(Op::FUSE_READDIR, ROOT, read.as_bytes()),
            request(Op::FUSE_RELEASEDIR, ROOT, fuse_release_in { fh: 1, ..Default::default() }.as_bytes()),
            request(Op::FUSE_FORGET, group, fuse_forget_in { nlookup: u64::MAX }.as_bytes()),
            request(Op::FUSE_BATCH_FORGET, 0, &[&[2, 0, 0, 0, 0, 0, 0, 0], [1u8; 32].as_slice()].concat()),
            request(Op::FUSE_STATFS, ROOT, b""),
        ];
        let mirror = RefCell::new(Mirror::over(session, kernel, reclaimer));
        let (answered, accepted) = (Cell::new(0), Cell::new(0));
        let mut buffer = vec![0; 1 << 20];
        let buffer = RefCell::new(&mut buffer);
        omr_testkit::fuzz::feed(&requests, |request| {
            // The kernel says how long it is, and sends no more than a request.
            let request = &request[..request.len().min(4096)];
            asking.send(request).expect("sent");
            let mut mirror = mirror.borrow_mut();
            // Without a whole header it is no request, and the file system ends.
            assert_eq!(mirror.serve().is_ok(), request.len() >= size_of::<fuse_in_header>());
            // The answer to a write comes from a thread.
            let buffer = &mut *buffer.borrow_mut();
            let mut answers = 0;
            while let Ok(length) = asking.recv(buffer) {
                let answer: fuse_out_header = argument(&buffer[..length]).expect("a header");
                assert_eq!(answer.len as usize, length);
                assert!((-200..=0).contains(&answer.error), "{}", answer.error);
                answers += 1;
                accepted.set(accepted.get() + usize::from(answer.error == 0));
            }
            assert!(answers <= 1 + MOST_ATTEMPTS, "{answers} answers");
            answered.set(answered.get() + answers);
            if mirror.known.len() + mirror.listings.len() > 10_000 {
                mirror.known.clear();
                mirror.listings.clear();
            }
        });
        assert!(accepted.get() >= 8 && answered.get() > accepted.get(), "{} of {}", accepted.get(), answered.get());
    }

    /// Attempts that ended meanwhile.
    const MOST_ATTEMPTS: usize = 64;
}
