//! Signals that the main loop receives in turn, without a handler.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals in the calling thread and in the threads that it starts later, so that
    /// the signals wait for [`Self::wait`].
    pub(crate) fn block(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set it is given, and cannot fail with a valid
        // pointer.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for &signal in signals {
            // SAFETY: the set is initialised; a bad signal number is reported, not undefined.
            if unsafe { libc::sigaddset(&raw mut set, signal) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: both pointers are valid for the call; the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) } {
            0 => Ok(Self(set)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// The next signal. `None`: the timeout, or a freeze for hibernation has ended the wait early.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<i32>> {
        let timeout = timeout.map(|span| libc::timespec {
            tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: span.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the set is initialised, siginfo is not asked for, and the timeout is null or
        // points to a live value.
        match unsafe { libc::sigtimedwait(&raw const self.0, ptr::null_mut(), timeout) } {
            -1 => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
                error => Err(error),
            },
            signal => Ok(Some(signal)),
        }
    }
}
