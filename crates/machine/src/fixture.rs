//! Fake roots with groups and processes, for unit tests.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use omr_kernel::Kernel;
use omr_kernel::clock::Clock;
use omr_testkit::FakeRoot;
use omr_units::{Bytes, Monotonic};

use crate::groups::class::Classifier;
use crate::groups::tree::{Node, Tree};

/// Adds a group with a memory controller and without protection.
pub fn add_group(root: &FakeRoot, path: &str, current: Bytes) {
    let dir = Path::new("sys/fs/cgroup").join(path);
    for (file, text) in
        [("memory.current", current.0.to_string()), ("memory.min", "0".into()), ("memory.low", "0".into())]
    {
        root.write(dir.join(file), text + "\n");
    }
    root.write(dir.join("cgroup.procs"), "");
}

/// Writes a file of a group.
pub fn set(root: &FakeRoot, path: &str, file: &str, text: &str) {
    root.write(Path::new("sys/fs/cgroup").join(path).join(file), text);
}

/// Adds a process of user 1000 with 2 MiB of memory.
pub fn add_process(root: &FakeRoot, pid: u32, program: &str, group: &str) {
    let stat = format!("{pid} ({program}) S 1 1 1 0 -1 4194304 0 0 0 0 11 12 0 0 20 0 1 0 {} 0 390 1\n", 1000 + pid);
    let status = format!(
        "Name:\t{program}\nUid:\t1000\t1000\t1000\t1000\nVmRSS:\t2048 kB\nRssAnon:\t1024 kB\nVmSwap:\t512 kB\n"
    );
    for (file, text) in [
        ("stat", stat),
        ("status", status),
        ("cgroup", format!("0::/{group}\n")),
        ("cmdline", format!("/usr/bin/{program}\0--quiet\0")),
        ("oom_score_adj", "200\n".into()),
    ] {
        root.write(format!("proc/{pid}/{file}"), text);
    }
    let _ = std::os::unix::fs::symlink(format!("/usr/bin/{program}"), root.resolve(format!("proc/{pid}/exe")));
}

/// The kernel of a root.
pub fn kernel(root: &FakeRoot) -> Kernel {
    Kernel::open(root.path()).expect("a kernel")
}

/// A classifier with these rules for groups.
pub fn classifier(rules: &str) -> Classifier {
    Classifier::new(&omr_config::rules(rules), Path::new(""))
}

/// The groups of a root with their memory, by these rules.
pub fn scan(root: &FakeRoot, rules: &str) -> Tree {
    let mut tree = Tree::default();
    tree.scan(&kernel(root), &classifier(rules), true).expect("a scan");
    tree
}

/// The group at this path.
pub fn node<'t>(tree: &'t Tree, path: &str) -> &'t Node {
    tree.find(Path::new(path)).unwrap_or_else(|| panic!("no group {path}"))
}

/// A clock that a test moves.
#[derive(Clone, Debug, Default)]
pub struct TestClock(Arc<AtomicU64>);

impl TestClock {
    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).expect("a time"), Ordering::Relaxed);
    }

    /// The kernel of a root, with this clock.
    pub fn kernel(&self, root: &FakeRoot) -> Kernel {
        kernel(root).with_clock(Arc::new(self.clone()))
    }
}

impl Clock for TestClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        Duration::ZERO
    }

    fn asleep(&self) -> Duration {
        Duration::ZERO
    }

    fn own_cpu(&self) -> Duration {
        Duration::ZERO
    }

    fn thread_cpu(&self) -> Duration {
        Duration::ZERO
    }
}
