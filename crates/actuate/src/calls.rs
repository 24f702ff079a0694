//! The raw system calls of [`Live`](crate::Live): `process_madvise(2)` (Linux 5.10; mm/madvise.c),
//! `swapon(2)` and `swapoff(2)` (mm/swapfile.c). Each function makes one call and returns the
//! kernel's error.

use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use omr_units::Bytes;
use rustix::io::Errno;

use crate::words::{Advice, Switch};
use omr_kernel::ranges::length;

/// `process_madvise(2)`: returns the bytes of the ranges that are done. An error concerns the first
/// range.
pub(crate) fn process_madvise(process: BorrowedFd<'_>, advice: Advice, ranges: &[Range<u64>]) -> Result<Bytes, Errno> {
    let address = |address: u64| usize::try_from(address).map_err(|_| Errno::INVAL);
    let mut vectors = Vec::with_capacity(ranges.len());
    for range in ranges {
        let base = address(range.start)? as *mut libc::c_void;
        vectors.push(libc::iovec { iov_base: base, iov_len: address(length(range).0)? });
    }
    // SAFETY: the kernel reads `vectors.len()` vectors of a live list. The addresses in them belong
    // to another process; if they belong to this one, the hint changes nothing that a program can
    // see.
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
    // SAFETY: plain system calls; the path ends with a NUL and outlives the call.
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
