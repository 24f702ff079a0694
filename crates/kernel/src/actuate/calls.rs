//! The system calls that act. Each is one call, and an error is the kernel's.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use omr_units::Bytes;
use rustix::io::Errno;

use super::words::{Advice, Switch};
use crate::ranges::length;

/// `process_madvise(2)`: bytes of the ranges that are done, or why the first one was not.
pub(crate) fn process_madvise(process: BorrowedFd<'_>, advice: Advice, ranges: &[Range<u64>]) -> Result<Bytes, Errno> {
    let address = |address: u64| usize::try_from(address).map_err(|_| Errno::INVAL);
    let mut vectors = Vec::with_capacity(ranges.len());
    for range in ranges {
        let base = address(range.start)? as *mut libc::c_void;
        vectors.push(libc::iovec { iov_base: base, iov_len: address(length(range).0)? });
    }
    // SAFETY: the kernel reads `vectors.len()` vectors, which are all there. The addresses in them are
    // of another process, or hints about this one's that change nothing a program can see.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            advice as i32,
            0u32,
        )
    };
    match u64::try_from(done) {
        Ok(done) => Ok(Bytes(done)),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// `swapoff(2)` or `swapon(2)`.
pub(crate) fn swap(device: &Path, switch: Switch) -> rustix::io::Result<()> {
    // include/linux/swap.h: SWAP_FLAG_PREFER, and the priority in the lower 15 bits.
    const PREFER: libc::c_int = 0x8000;
    let path = CString::new(device.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // SAFETY: plain system calls; the path is a string with its end, and outlives them.
    let result = unsafe {
        match switch {
            Switch::Off => libc::swapoff(path.as_ptr()),
            Switch::On { priority } => libc::swapon(path.as_ptr(), PREFER | libc::c_int::from(priority & 0x7fff)),
        }
    };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
