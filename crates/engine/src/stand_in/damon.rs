//! A fake DAMON: its files in a fake root, which change as the kernel changes them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use omr_actuate::{Actuator, Advice, AdviseResult, Outcome};
use omr_kernel::process::Process;
use omr_kernel::{Dir, Result, clock};
use omr_testkit::FakeRoot;
use omr_units::Monotonic;

const ADMIN: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// The number of accesses and the age, in samples, of the region that begins here.
type Seen = fn(u64) -> (u32, u32);

/// The fake. It samples once in each interval of its monitor, by the clocks of the calling thread.
#[derive(Clone)]
pub struct FakeDamon {
    dir: PathBuf,
    seen: Seen,
    began: Arc<Mutex<Monotonic>>,
    /// The first of these writes that has this text in its file or data has another outcome.
    refused: Option<(&'static str, Outcome)>,
    /// The files below `kdamonds`, and what was written to them.
    lines: Arc<Mutex<Vec<(String, String)>>>,
}

impl FakeDamon {
    /// Adds DAMON to a root, without a monitor.
    pub fn new(root: &FakeRoot, seen: Seen) -> Self {
        root.write(Path::new(ADMIN).join("nr_kdamonds"), "0\n");
        let (began, lines) = (Arc::new(Mutex::new(Monotonic(0))), Arc::default());
        FakeDamon { dir: root.resolve(ADMIN), seen, began, refused: None, lines }
    }

    /// The same with another outcome of the writes that have this text.
    pub fn refusing(self, text: &'static str, outcome: Outcome) -> Self {
        FakeDamon { refused: Some((text, outcome)), ..self }
    }

    /// The data of all writes to files that end in this name.
    pub fn written(&self, name: &str) -> Vec<String> {
        let lines = self.lines.lock().expect("lines");
        lines.iter().filter(|(file, _)| file.ends_with(name)).map(|(_, data)| data.clone()).collect()
    }

    fn set(&self, name: &str, text: impl ToString) {
        let path = self.dir.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text.to_string() + "\n").expect("written");
    }

    fn number(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    /// All regions, in the order of the targets.
    fn regions(&self) -> Vec<Range<u64>> {
        let targets = "0/contexts/0/targets";
        let of = |target| {
            let regions = format!("{targets}/{target}/regions");
            (0..self.number(&format!("{regions}/nr_regions")))
                .map(move |region| format!("{regions}/{region}"))
                .map(|region| self.number(&format!("{region}/start"))..self.number(&format!("{region}/end")))
        };
        (0..self.number(&format!("{targets}/nr_targets"))).flat_map(of).collect()
    }

    fn change_state(&self, word: &str) {
        match word {
            "on" => *self.began.lock().expect("a time") = clock::read_monotonic(),
            "update_schemes_stats" => {
                let interval = Duration::from_micros(self.number("0/contexts/0/monitoring_attrs/intervals/sample_us"));
                let passed = clock::read_monotonic().since(*self.began.lock().expect("a time"));
                let samples = passed.as_nanos() / interval.as_nanos().max(1);
                let bytes: u64 = self.regions().iter().map(|region| region.end - region.start).sum();
                self.set("0/contexts/0/schemes/0/stats/sz_tried", samples * u128::from(bytes));
            }
            "update_schemes_tried_regions" => {
                let tried = "0/contexts/0/schemes/0/tried_regions";
                fs::create_dir_all(self.dir.join(tried)).expect("made");
                for (number, Range { start, end }) in self.regions().into_iter().enumerate() {
                    let (accesses, age) = (self.seen)(start);
                    self.set(&format!("{tried}/{number}/start"), start);
                    self.set(&format!("{tried}/{number}/end"), end);
                    self.set(&format!("{tried}/{number}/nr_accesses"), accesses);
                    self.set(&format!("{tried}/{number}/age"), age);
                }
            }
            _ => {}
        }
        self.set("0/state", if word == "off" { "off" } else { "on" });
    }
}

impl Actuator for FakeDamon {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
        assert_eq!(dir.path(), self.dir, "nothing else is written");
        self.lines.lock().expect("lines").push((name.into(), data.into()));
        if let Some((text, outcome)) = self.refused
            && format!("{name} {data}").contains(text)
        {
            return Ok(outcome);
        }
        match name {
            "0/state" => self.change_state(data),
            name => {
                self.set(name, data);
                if name == "nr_kdamonds" {
                    let _ = fs::remove_dir_all(self.dir.join("0"));
                }
                if (name, data) == ("nr_kdamonds", "1") {
                    self.set("0/state", "off");
                    self.set("0/contexts/nr_contexts", 0);
                }
            }
        }
        Ok(Outcome::Done)
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<AdviseResult> {
        unreachable!("nothing is hinted")
    }

    fn is_live(&self) -> bool {
        true
    }
}
