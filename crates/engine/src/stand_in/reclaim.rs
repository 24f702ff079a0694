//! A fake kernel that reclaims: memory that is asked for leaves its group.

use std::ops::Range;
use std::path::Path;

use omr_actuate::{Actuator, Advice, AdviseResult, Outcome};
use omr_kernel::process::Process;
use omr_kernel::{Dir, Result};
use omr_testkit::FakeRoot;
use omr_units::{Bytes, Limit};

use super::{GROUPS, PAGE, set_line};

/// Adds a group with this memory and without limits, in MiB.
pub fn add_group(root: &FakeRoot, path: &str, anon: u64, file: u64) {
    let group = Path::new(GROUPS).join(path);
    for (name, text) in [
        ("memory.current", ((anon + file) << 20).to_string()),
        (
            "memory.stat",
            format!(
                "anon {}\nfile {}\nfile_mapped 0\nfile_writeback 0\nshmem 0\nswapcached 0\npgscan 6\npgrefill 5\n\
                 workingset_refault_anon 3\nworkingset_refault_file 4",
                anon << 20,
                file << 20
            ),
        ),
        ("memory.swap.current", "0".into()),
        ("memory.min", "0".into()),
        ("memory.low", "0".into()),
        ("memory.high", "max".into()),
        ("memory.max", "max".into()),
        ("memory.swap.max", "max".into()),
        ("memory.reclaim", String::new()),
        ("memory.pressure", "some avg10=0 avg60=0 avg300=0 total=0".into()),
        ("cgroup.events", "populated 1".into()),
        ("cgroup.procs", String::new()),
    ] {
        root.write(group.join(name), text + "\n");
    }
}

/// The machine has this swap, all of it free, in MiB.
pub fn set_swap(root: &FakeRoot, device: &str, size: u64) {
    let kib = size << 10;
    root.write("proc/swaps", format!("Filename Type Size Used Priority\n/dev/{device} partition {kib} 0 5\n"));
    set_line(root, "proc/meminfo", "SwapTotal:", &format!("{kib} kB"));
    set_line(root, "proc/meminfo", "SwapFree:", &format!("{kib} kB"));
}

/// The kernel. It takes what is asked for: anonymous memory first, unless only page cache is wanted.
pub struct Reclaims<'a> {
    pub root: &'a FakeRoot,
    /// The outcome of each request, after it was carried out.
    pub outcome: Outcome,
    /// The number of requests that are interrupted before anything is freed.
    pub interrupted: usize,
    /// The number of pages that each of them looks at and does not free.
    pub passed: u64,
    /// The count of memory.stat that has these pages.
    pub passed_in: &'static str,
    /// All writes: the file below the groups, and the data.
    pub lines: Vec<String>,
    /// Called after each write with its line.
    pub then: Box<dyn FnMut(&str) + Send + 'a>,
}

impl<'a> Reclaims<'a> {
    /// A kernel on which all goes well.
    pub fn new(root: &'a FakeRoot) -> Self {
        Reclaims {
            root,
            outcome: Outcome::Done,
            interrupted: 0,
            passed: 0,
            passed_in: "pgrefill",
            lines: Vec::new(),
            then: Box::new(|_| {}),
        }
    }

    fn reclaim(&self, group: &Path, request: &str) {
        let mut words = request.split(' ');
        let mut left: u64 = words.next().and_then(|bytes| bytes.parse().ok()).expect("bytes");
        let file_only = words.next() == Some("swappiness=0");
        for key in ["anon", "file"] {
            if key == "anon" && file_only {
                continue;
            }
            let took = left.min(self.number(&group.join("memory.stat"), key));
            left -= took;
            self.add(&group.join("memory.stat"), key, took.wrapping_neg());
            let current = self.root.read(group.join("memory.current")).trim().parse::<u64>().expect("bytes") - took;
            self.root.write(group.join("memory.current"), format!("{current}\n"));
            if key == "anon" && took > 0 {
                self.add(Path::new("proc/vmstat"), "pswpout", took / PAGE);
                let free = self.number(Path::new("proc/meminfo"), "SwapFree:") - took / 1024;
                set_line(self.root, "proc/meminfo", "SwapFree:", &format!("{free} kB"));
                let swapped = self.root.read(group.join("memory.swap.current")).trim().parse::<u64>().expect("bytes");
                self.root.write(group.join("memory.swap.current"), format!("{}\n", swapped + took));
            }
        }
    }

    fn number(&self, path: &Path, key: &str) -> u64 {
        let text = self.root.read(path);
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).expect("a line");
        line.trim().split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    }

    fn add(&self, path: &Path, key: &str, more: u64) {
        let sum = self.number(path, key).wrapping_add(more);
        set_line(self.root, path.to_str().expect("text"), key, &sum.to_string());
    }
}

impl Actuator for Reclaims<'_> {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
        let below = dir.path().strip_prefix(self.root.path()).expect("below the root").to_owned();
        let shown = below.strip_prefix(GROUPS).unwrap_or(&below).join(name);
        self.lines.push(format!("{} {data}", shown.display()));
        if self.interrupted > 0 && !data.starts_with("0 ") {
            self.interrupted -= 1;
            self.add(&below.join("memory.stat"), self.passed_in, self.passed);
            return Ok(Outcome::Interrupted);
        }
        match name {
            "memory.reclaim" | "memory.swap.reclaim" => self.reclaim(&below, data),
            "kernel/debug/lru_gen" => {}
            name => {
                // The kernel keeps whole pages, and reclaims down to a limit that is lower.
                let limit: Limit = data.parse().expect("a limit");
                if let Limit::Bytes(Bytes(most)) = limit {
                    let current: u64 = self.root.read(below.join("memory.current")).trim().parse().expect("bytes");
                    if name == "memory.high" && current > most {
                        self.reclaim(&below, &(current - most).to_string());
                    }
                    self.root.write(below.join(name), format!("{}\n", most / PAGE * PAGE));
                } else {
                    self.root.write(below.join(name), "max\n");
                }
            }
        }
        let line = self.lines.last().expect("a line").clone();
        (self.then)(&line);
        Ok(self.outcome)
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<AdviseResult> {
        unreachable!("nothing is hinted")
    }

    fn is_live(&self) -> bool {
        true
    }
}
