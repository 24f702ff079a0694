//! `/dev/kmsg` (Linux 3.5): the kernel's log, from a chosen moment on. Reading it takes
//! `CAP_SYSLOG` where `kernel.dmesg_restrict` is set, as on Debian.
//!
//! Sample record: `6,1053,68123456,-;PM: hibernation: Need to copy 17181 pages`. Source:
//! kernel/printk/printk.c.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::{Error, Result};

/// Upper bound on the length of a record, in bytes.
const RECORD: usize = 8192;

/// The kernel's log from a moment on.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens the log at its end: [`Log::read`] returns messages that are logged after this call.
    pub fn from_now(root: &Path) -> Result<Self> {
        let path = root.join("dev/kmsg");
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let open = || {
            let mut file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
            file.seek(SeekFrom::End(0))?;
            Ok(Log(file))
        };
        open().map_err(|err| Error::Read { path: path.clone(), err })
    }

    /// The messages since the log was opened, or since the last call. Messages that the kernel has
    /// overwritten meanwhile are missing.
    pub fn read(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        let mut record = [0; RECORD];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => return messages,
                Ok(length) => messages.extend(record.get(..length).and_then(parse_record)),
                Err(err) if err.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {}
                Err(_) => return messages,
            }
        }
    }
}

/// The text of a record, without its prefix and the lines of its dictionary. `None`: no record.
pub fn parse_record(record: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let (_, message) = text.split_once(';')?;
    Some(message.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_taken_apart() {
        let record = b"6,1053,68123456,-;PM: hibernation: Need to copy 17181 pages\n SUBSYSTEM=x\n";
        assert_eq!(parse_record(record).as_deref(), Some("PM: hibernation: Need to copy 17181 pages"));
        assert_eq!(parse_record(b"6,1,2,-;\n").as_deref(), Some(""));
        assert_eq!(parse_record(b"\xff nothing"), None);
    }
}
