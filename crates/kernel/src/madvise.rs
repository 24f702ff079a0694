//! `process_madvise(2)`: hints about another process's memory. So far only whether it is there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// What a hint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Will be needed soon: read it back from swap. On others not in 5.10, but in 6.1.
    WillNeed = libc::MADV_WILLNEED,
    /// Not used for a while: take it first. Linux 5.10.
    Cold = libc::MADV_COLD,
    /// Take it now. Linux 5.10.
    PageOut = libc::MADV_PAGEOUT,
}

/// Gives this process a hint about none of its memory: tells whether the kernel knows the system
/// call and the hint, and changes nothing. `ENOSYS`: no such call; `EINVAL`: no such hint; `EPERM`:
/// up to 6.1 even a process's own memory needs `CAP_SYS_NICE`.
pub fn probe(advice: Advice) -> io::Result<()> {
    let own: OwnedFd = pidfd_open(getpid(), PidfdFlags::empty())?;
    let ranges: *const libc::iovec = ptr::null();
    // SAFETY: the system call reads as many ranges as it is told there are: none.
    let result =
        unsafe { libc::syscall(libc::SYS_process_madvise, own.as_raw_fd(), ranges, 0usize, advice as i32, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
