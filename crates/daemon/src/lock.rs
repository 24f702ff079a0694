//! One daemon at a time.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use rustix::fs::{FlockOperation, flock};

/// Held as long as the daemon lives; the kernel lets go of it when the process ends, however.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "open is what it is for")] File);

impl Lock {
    /// Takes the lock, or names who has it.
    pub fn take(runtime_dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(runtime_dir).with_context(|| format!("create {}", runtime_dir.display()))?;
        let path = runtime_dir.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.with_context(|| format!("open {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = pid.trim();
            return Err(Exit::Failed.error(format!("a daemon is running already (pid {pid}); omr status shows it")));
        }
        file.set_len(0)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())?;
        Ok(Lock(file))
    }
}
