//! Makes and removes cgroups, and sets their extended attributes (cgroupfs has `user.` attributes
//! since Linux 5.7). Source: kernel/cgroup/cgroup.c, fs/xattr.c.

use std::io;
use std::path::Path;

use omr_kernel::{Dir, Error, Result};
use rustix::fs::{AtFlags, Mode, XattrFlags};

/// Makes a cgroup in this one. A cgroup that exists already is an error.
pub fn make(parent: &Dir, name: impl AsRef<Path>) -> Result<Dir> {
    let name = name.as_ref();
    let made = rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755));
    made.map_err(|e| Error::Make { path: parent.path().join(name), err: e.into() })?;
    parent.sub(name)
}

/// Removes an empty cgroup in this one. A cgroup with a process in it is not empty (`EBUSY`).
pub fn remove(parent: &Dir, name: impl AsRef<Path>) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(parent, name.as_ref(), AtFlags::REMOVEDIR)?)
}

/// Sets an extended attribute of a cgroup.
pub fn set_xattr(group: &Dir, name: &str, value: &str) -> Result<()> {
    rustix::fs::fsetxattr(group, name, value.as_bytes(), XattrFlags::empty()).map_err(|e| Error::Write {
        path: group.path().into(),
        data: format!("{name}={value}"),
        err: e.into(),
    })
}
