//! One daemon at a time.

use std::path::Path;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::lock::{self, Attempt};

/// The lock that the daemon holds as long as it lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, never used")] lock::Lock);

impl Lock {
    /// Takes the lock. The error names the daemon that holds it.
    pub fn take(runtime_dir: &Path) -> Result<Self> {
        match lock::Lock::try_take(&runtime_dir.join("lock"))? {
            Attempt::Taken(mut lock) => {
                lock.write_pid()?;
                Ok(Lock(lock))
            }
            Attempt::Held(pid) => {
                Err(Exit::Failed.error(format!("a daemon is running already (pid {pid}); omr status shows it")))
            }
        }
    }
}
