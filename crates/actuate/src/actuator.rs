//! Every write to the kernel goes through an [`Actuator`]: writes to files, `process_madvise(2)`,
//! `swapon(2)` and `swapoff(2)`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use omr_units::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use omr_kernel::process::Process;
use omr_kernel::ranges::length;
use omr_kernel::{Dir, Error, Result};

use crate::calls;
use crate::words::{self, Advice, AdviseResult, Outcome, Switch};

/// Writes to the kernel, or stands in for the kernel.
pub trait Actuator: Send {
    /// Writes `data` to the file `name` in `dir`. The file is opened, never created. There is one
    /// `write(2)`, because a retry after `EINTR` could not be cancelled.
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome>;

    /// Gives a hint about ranges of a process's memory: one `process_madvise(2)`. The call may do
    /// less than asked, and the caller must ask again for the rest;
    /// [`Batch`](crate::madvise::Batch) does.
    fn advise(&mut self, process: &Process, advice: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult>;

    /// Switches a swap device off or on: one `swapoff(2)` or `swapon(2)`.
    /// [`switch`](crate::swap::switch) finds the path. A stand-in without swap returns
    /// [`Outcome::Unsupported`].
    fn swap(&mut self, _device: &Path, _switch: Switch) -> Result<Outcome> {
        Ok(Outcome::Unsupported)
    }

    /// True if writes reach the kernel. If not, the caller must not wait for their effect.
    fn is_live(&self) -> bool;
}

/// Writes to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live;

impl Actuator for Live {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
        let opened = rustix::fs::openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let result = opened.and_then(|fd| rustix::io::write(&fd, data.as_bytes()));
        match result {
            Ok(_) => Ok(Outcome::Done),
            Err(err) => Outcome::of(err).ok_or_else(|| Error::Write {
                path: dir.path().join(name),
                data: data.into(),
                err: err.into(),
            }),
        }
    }

    fn advise(&mut self, process: &Process, advice: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        match process.pidfd().and_then(|pidfd| calls::process_madvise(pidfd, advice, ranges)) {
            Ok(bytes) => Ok(AdviseResult { bytes, outcome: Outcome::Done }),
            // A part of the range is not mapped, or the process is about to end. The rest was done.
            Err(Errno::NOMEM) => Ok(AdviseResult { bytes: Bytes::ZERO, outcome: Outcome::Partial }),
            Err(err) => match Outcome::of(err) {
                Some(outcome) => Ok(AdviseResult { bytes: Bytes::ZERO, outcome }),
                None => Err(Error::Write {
                    path: process.dir().path().into(),
                    data: words::text(advice, ranges),
                    err: err.into(),
                }),
            },
        }
    }

    fn swap(&mut self, device: &Path, switch: Switch) -> Result<Outcome> {
        match calls::swap(device, switch) {
            Ok(()) => Ok(Outcome::Done),
            Err(err) => Outcome::of(err).ok_or_else(|| Error::Write {
                path: device.into(),
                data: switch.to_string(),
                err: err.into(),
            }),
        }
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// Writes nothing and returns success: for `--dry-run` and `mode = "observe"`.
#[derive(Clone, Copy, Debug, Default)]
pub struct DryRun;

impl Actuator for DryRun {
    fn write(&mut self, _: &Dir, _: &str, _: &str) -> Result<Outcome> {
        Ok(Outcome::Done)
    }

    fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        Ok(AdviseResult { bytes: ranges.iter().map(length).sum(), outcome: Outcome::Done })
    }

    fn swap(&mut self, _: &Path, _: Switch) -> Result<Outcome> {
        Ok(Outcome::Done)
    }

    fn is_live(&self) -> bool {
        false
    }
}

/// Records all writes, and passes them on to another actuator.
#[derive(Clone, Debug)]
pub struct Transcript<A> {
    inner: A,
    lines: Arc<Mutex<Vec<(PathBuf, String)>>>,
}

impl<A: Actuator> Transcript<A> {
    /// A transcript of the writes to `inner`.
    pub fn new(inner: A) -> Self {
        Transcript { inner, lines: Arc::default() }
    }

    /// The writes so far, in order. A write to a file: path and data. A hint: the process's
    /// directory, and for example `willneed 1000-3000 5000-6000`. Swap: the device, and `swapoff`
    /// or `swapon` with its priority.
    pub fn lines(&self) -> Vec<(PathBuf, String)> {
        self.lines.lock().map(|lines| lines.clone()).unwrap_or_default()
    }
}

impl<A: Actuator> Actuator for Transcript<A> {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
        if let Ok(mut lines) = self.lines.lock() {
            lines.push((dir.path().join(name), data.into()));
        }
        self.inner.write(dir, name, data)
    }

    fn advise(&mut self, process: &Process, advice: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        if let Ok(mut lines) = self.lines.lock() {
            lines.push((process.dir().path().into(), words::text(advice, ranges)));
        }
        self.inner.advise(process, advice, ranges)
    }

    fn swap(&mut self, device: &Path, switch: Switch) -> Result<Outcome> {
        if let Ok(mut lines) = self.lines.lock() {
            lines.push((device.into(), switch.to_string()));
        }
        self.inner.swap(device, switch)
    }

    fn is_live(&self) -> bool {
        self.inner.is_live()
    }
}
