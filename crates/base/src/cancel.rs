//! Cancelling a run. A flag is set by a signal or by the daemon's loop; the reclaiming thread reads
//! it between two writes. An alarm interrupts a write that takes too long.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use omr_kernel::clock;
use omr_units::Monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The cancel flag of a run.
#[derive(Debug, Default)]
pub struct Flag {
    set: AtomicBool,
    held: AtomicBool,
    deadline: Option<Monotonic>,
    /// Who asked for the run.
    peer: Option<OwnedFd>,
}

impl Flag {
    /// Makes a flag that counts as set once `timeout` is over; `None`: no time limit.
    pub fn with_timeout(timeout: Option<Duration>) -> Self {
        Flag { deadline: timeout.map(|time| clock::read_monotonic() + time), ..Flag::default() }
    }

    /// Makes a flag that counts as set once the other end of this connection sends anything or is
    /// gone.
    pub fn of_peer(connection: OwnedFd) -> Self {
        Flag { peer: Some(connection), ..Flag::default() }
    }

    /// Sets the flag.
    pub fn set(&self) {
        self.set.store(true, Ordering::Relaxed);
    }

    /// Clears the flag for the next run, which is not held. The time limit stays.
    pub fn clear(&self) {
        self.set.store(false, Ordering::Relaxed);
        self.held.store(false, Ordering::Relaxed);
    }

    /// Holds the run before its next write, or lets it go on.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Returns true while the run is held.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Waits while the run is held. Returns at once when the run must end.
    pub fn wait_while_held(&self) {
        while self.is_held() && !self.is_set() {
            clock::sleep(Duration::from_millis(10));
        }
    }

    /// Returns true if the run must end: the flag is set, a signal came, the time is up, or who
    /// asked for it wants no more.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed) || signal().is_some() || self.timed_out() || self.has_heard()
    }

    /// Returns true if the other end has sent something or is gone.
    fn has_heard(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Some(peer) = &self.peer else { return false };
        poll(&mut [PollFd::new(peer, PollFlags::IN)], Some(&NOW)) != Ok(0)
    }

    /// Returns true if the time is up.
    pub fn timed_out(&self) -> bool {
        self.deadline.is_some_and(|deadline| clock::read_monotonic() >= deadline)
    }

    /// Sleeps in pieces of 10 ms, and ends early once the flag is set.
    pub fn sleep(&self, time: Duration) {
        let end = clock::read_monotonic() + time;
        while !self.is_set() {
            let left = end.since(clock::read_monotonic());
            if left.is_zero() {
                break;
            }
            clock::sleep(left.min(Duration::from_millis(10)));
        }
    }
}

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// Returns the signal that asked this process to end, if one came since [`catch_signals`].
pub fn signal() -> Option<i32> {
    Some(SIGNAL.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: a zeroed sigaction is a valid one with an empty mask and no flags; the handler only
    // stores to an atomic. Without SA_RESTART a write(2) that runs returns EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// Catches SIGINT, SIGTERM and SIGHUP: they interrupt a running write and set [`signal`].
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, on_signal);
    }
}

extern "C" fn on_alarm(_: libc::c_int) {}

/// Interrupts system calls of the thread that made the alarm, while the alarm is armed.
#[derive(Debug)]
pub struct Alarm(Option<libc::timer_t>);

impl Default for Alarm {
    fn default() -> Self {
        Alarm::new()
    }
}

impl Alarm {
    /// Makes an alarm for the calling thread, not armed. If the kernel has no timer left, nothing
    /// is interrupted.
    pub fn new() -> Self {
        handle(libc::SIGUSR1, on_alarm);
        // SAFETY: sigevent is plain data that is filled in here, the pointers are to locals that
        // outlive the call, and the timer belongs to this value until `drop`.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR1;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::ptr::null_mut();
            let made = !clock::is_simulated() && libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0;
            Alarm(made.then_some(timer))
        }
    }

    /// Runs `call` and interrupts it after `time`, and then every 10 ms until it returns: the first
    /// signal may come just before the system call.
    pub fn limit<T>(&self, time: Duration, call: impl FnOnce() -> T) -> T {
        self.set(time, Duration::from_millis(10));
        let result = call();
        self.set(Duration::ZERO, Duration::ZERO);
        result
    }

    fn set(&self, first: Duration, then: Duration) {
        let spec = |time: Duration| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(time.subsec_nanos()),
        };
        let value = libc::itimerspec { it_value: spec(first), it_interval: spec(then) };
        if let Some(timer) = self.0 {
            // SAFETY: the timer was made by timer_create in `new`, `value` outlives the call.
            unsafe { libc::timer_settime(timer, 0, &value, std::ptr::null_mut()) };
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(timer) = self.0 {
            // SAFETY: the timer was made by timer_create in `new` and is deleted once.
            unsafe { libc::timer_delete(timer) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_run_for_a_peer_ends_when_it_speaks_or_is_gone() {
        let (mut here, mut there) = UnixStream::pair().expect("a connection");
        let flag = Flag::of_peer(here.try_clone().expect("a copy").into());
        assert!(!flag.is_set(), "the control");
        there.write_all(b"\n").expect("written");
        assert!(flag.is_set());
        here.read_exact(&mut [0]).expect("read");
        assert!(!flag.is_set(), "for the next run");
        drop(there);
        assert!(flag.is_set());
    }

    #[test]
    fn a_held_run_waits_until_it_may_go_on_or_must_end() {
        let flag = Flag::default();
        flag.wait_while_held();
        for end in [Flag::set, |flag: &Flag| flag.hold(false), Flag::clear] {
            flag.clear();
            flag.hold(true);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    flag.wait_while_held();
                    done.store(true, Ordering::Relaxed);
                });
                std::thread::sleep(Duration::from_millis(30));
                assert!(!done.load(Ordering::Relaxed));
                end(&flag);
            });
            assert!(done.load(Ordering::Relaxed));
        }
    }
}
