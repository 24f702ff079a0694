//! The functions of the C library by which the daemon calls the kernel, in the place of the
//! library's own ones: this program is linked with the library dynamically, so that these come
//! first. Each asks [`faults`](super::faults) whether the call fails, and makes the call otherwise.
//!
//! Arguments that are variadic in C (the mode of `open`) are in registers, as others are.

#![expect(clippy::cast_possible_truncation, reason = "a system call's result is one of the C function's")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{
    SYS_close, SYS_faccessat2, SYS_fchmod, SYS_fdatasync, SYS_fgetxattr, SYS_flock, SYS_fsync, SYS_linkat, SYS_lseek,
    SYS_mkdirat, SYS_openat, SYS_pread64, SYS_read, SYS_readlinkat, SYS_renameat2, SYS_unlinkat, SYS_write, mode_t,
    off_t, size_t, ssize_t,
};

use super::faults::{Call, Fault, closed, of_file, of_path, opened};

/// Sets the error of a call that fails.
fn set_error(error: c_int) {
    // SAFETY: the pointer is that of this thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// Makes the call and returns its result.
macro_rules! make {
    ($number:expr $(, $argument:expr)*) => {
        // SAFETY: the arguments are those of the caller, who has called the C library's function.
        unsafe { libc::syscall($number $(, $argument)*) }
    };
}

/// A C function that fails, or makes a system call: its call, and the system call.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty { $fault:expr => $make:expr })*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            match $fault {
                Some(Fault::Error(error)) => {
                    set_error(error);
                    -1
                }
                // A call that cannot be short has no such fault.
                Some(Fault::Short) | None => $make as $result,
            }
        }
    )*};
}

/// The path that a caller of the C library gives.
fn text<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: each caller of these functions gives a path that ends with a NUL, and keeps it.
    unsafe { CStr::from_ptr(path) }.to_bytes()
}

calls! {
    rename(from: *const c_char, to: *const c_char) -> c_int {
        of_path(Call::Name, libc::AT_FDCWD, text(to))
            => make!(SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0)
    }
    renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        of_path(Call::Name, to_dir, text(to)) => make!(SYS_renameat2, from_dir, from, to_dir, to, 0)
    }
    linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        of_path(Call::Name, to_dir, text(to)) => make!(SYS_linkat, from_dir, from, to_dir, to, flags)
    }
    mkdir(dir: *const c_char, mode: mode_t) -> c_int {
        // A directory that is there needs no room: EEXIST.
        match make!(SYS_faccessat2, libc::AT_FDCWD, dir, libc::F_OK, 0) {
            0 => None,
            _ => of_path(Call::Name, libc::AT_FDCWD, text(dir)),
        } => make!(SYS_mkdirat, libc::AT_FDCWD, dir, mode)
    }
    unlink(file: *const c_char) -> c_int {
        of_path(Call::Unlink, libc::AT_FDCWD, text(file)) => make!(SYS_unlinkat, libc::AT_FDCWD, file, 0)
    }
    unlinkat(dir: c_int, file: *const c_char, flags: c_int) -> c_int {
        of_path(Call::Unlink, dir, text(file)) => make!(SYS_unlinkat, dir, file, flags)
    }
    faccessat(dir: c_int, file: *const c_char, mode: c_int, flags: c_int) -> c_int {
        of_path(Call::Look, dir, text(file)) => make!(SYS_faccessat2, dir, file, mode, flags)
    }
    readlinkat(dir: c_int, file: *const c_char, to: *mut c_char, size: size_t) -> ssize_t {
        of_path(Call::Look, dir, text(file)) => make!(SYS_readlinkat, dir, file, to, size)
    }
    fgetxattr(file: c_int, name: *const c_char, to: *mut c_void, size: size_t) -> ssize_t {
        of_file(Call::Look, file) => make!(SYS_fgetxattr, file, name, to, size)
    }
    flock(file: c_int, operation: c_int) -> c_int { of_file(Call::Look, file) => make!(SYS_flock, file, operation) }
    fchmod(file: c_int, mode: mode_t) -> c_int { of_file(Call::Change, file) => make!(SYS_fchmod, file, mode) }
    fsync(file: c_int) -> c_int { of_file(Call::Sync, file) => make!(SYS_fsync, file) }
    fdatasync(file: c_int) -> c_int { of_file(Call::Sync, file) => make!(SYS_fdatasync, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(dir: c_int, file: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let name = text(file);
    let call = if flags & libc::O_CREAT == 0 { Call::Open } else { Call::Create };
    if let Some(Fault::Error(error)) = of_path(call, dir, name) {
        set_error(error);
        return -1;
    }
    let fd = make!(SYS_openat, dir, file, flags, mode) as c_int;
    opened(fd, dir, name);
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(file: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { openat64(libc::AT_FDCWD, file, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    closed(fd);
    make!(SYS_close, fd) as c_int
}

/// [`std::fs::read_dir`] opens a directory by it.
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(dir: *const c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: as the caller promises. The library closes the descriptor with the stream.
    unsafe {
        match open64(dir, flags, 0) {
            -1 => std::ptr::null_mut(),
            fd => {
                closed(fd);
                libc::fdopendir(fd)
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    let fault = of_file(Call::Read, fd);
    if let Some(Fault::Error(error)) = fault {
        set_error(error);
        return -1;
    }
    let got = make!(SYS_read, fd, to, size) as ssize_t;
    if fault.is_none() || got <= 0 {
        return got;
    }
    // The kernel ends a part of a file with a line.
    // SAFETY: the call has filled this many bytes.
    let part = unsafe { std::slice::from_raw_parts(to.cast::<u8>(), got.unsigned_abs()) };
    let end = part.iter().take(part.len() / 2).rposition(|byte| *byte == b'\n').map_or(part.len(), |end| end + 1);
    make!(SYS_lseek, fd, end as off_t - got as off_t, libc::SEEK_CUR);
    end as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, to: *mut c_void, size: size_t, at: off_t) -> ssize_t {
    match of_file(Call::Read, fd) {
        Some(Fault::Error(error)) => {
            set_error(error);
            -1
        }
        Some(Fault::Short) | None => make!(SYS_pread64, fd, to, size, at) as ssize_t,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t {
    match of_file(Call::Write, fd) {
        Some(Fault::Error(error)) => {
            set_error(error);
            -1
        }
        Some(Fault::Short) if size > 1 => make!(SYS_write, fd, from, size / 2) as ssize_t,
        Some(Fault::Short) | None => make!(SYS_write, fd, from, size) as ssize_t,
    }
}
