//! The record of the last hibernation: a machine that hibernates in practice gains from a small
//! image, one that only could does not.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_base::paths;
use omr_base::storage::{make_root_state_dir, write_atomically};
use omr_kernel::Kernel;
use serde::{Deserialize, Serialize};

const FILE: &str = "hibernated.json";

#[derive(Serialize, Deserialize)]
struct Saved {
    /// Seconds since 1970.
    time: u64,
}

/// Records that the machine hibernates now.
pub fn record(kernel: &Kernel, root: &Path) -> Result<()> {
    let dir = make_root_state_dir(root)?;
    let saved = Saved { time: kernel.clock.wall().as_secs() };
    write_atomically(&dir.join(FILE), &serde_json::to_vec(&saved)?)
}

/// The time since the machine last hibernated. `None`: no record, or one of the future: the clock
/// was set.
pub fn ago(kernel: &Kernel, root: &Path) -> Option<Duration> {
    let text = std::fs::read(paths::root_state_dir(root).join(FILE)).ok()?;
    let saved: Saved = serde_json::from_slice(&text).ok()?;
    kernel.clock.wall().as_secs().checked_sub(saved.time).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use omr_testkit::FakeRoot;

    use super::*;

    #[test]
    fn a_hibernation_is_remembered_and_a_broken_record_is_none() {
        let root = FakeRoot::new();
        let kernel = Kernel::open(root.path()).expect("a fake root opens");
        let file = "var/lib/omr-root/hibernated.json";
        assert_eq!(ago(&kernel, root.path()), None);
        record(&kernel, root.path()).expect("recorded");
        let passed = ago(&kernel, root.path()).expect("a record");
        assert!(passed < Duration::from_secs(60), "{passed:?}");
        for text in ["", "{", "{}", r#"{"time":-1}"#, r#"{"time":99999999999}"#] {
            root.write(file, text);
            assert_eq!(ago(&kernel, root.path()), None, "{text}");
        }
        root.write(file, r#"{"time":0}"#);
        assert!(ago(&kernel, root.path()).is_some_and(|passed| passed > Duration::from_secs(86_400)));
    }
}
