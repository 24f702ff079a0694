//! Notices foreground work while memory is brought back.

use std::time::Duration;

use anyhow::Result;
use omr_kernel::memcg::Group;
use omr_kernel::psi::{self, Resource};
use omr_kernel::{Dir, Kernel, clock, process};
use omr_machine::groups::tree::Tree;
use omr_machine::sample::cpu::CpuByClass;
use omr_policy::busy::BusyWatch;
use omr_policy::{Config, Reason, Stop};
use omr_units::{Monotonic, Permyriad};

use super::Subject;

/// The most groups whose memory stalls are read.
const MOST_STALLS: usize = 64;
/// Foreground work is over after this time without a sign of it.
const QUIET: Duration = Duration::from_millis(500);

/// Notices foreground work by two signs: CPU time outside background groups, as during a sweep, and
/// memory stalls of the most important groups. The stalls of the whole machine would be no sign, as
/// this program itself waits for memory while it brings memory back.
pub struct BusyMonitor {
    sides: CpuByClass,
    watch: BusyWatch,
    stop: Stop,
    sampled: Monotonic,
    own_cpu: Duration,
    stalls: Vec<(Dir, Duration)>,
    stalls_read: Monotonic,
    busy: Option<(Monotonic, Reason)>,
    quiet: Monotonic,
    buffer: Vec<u8>,
}

impl BusyMonitor {
    /// Starts to monitor, after a short measurement of the machine's steady CPU use.
    pub fn start(kernel: &Kernel, config: &Config, tree: &Tree, subjects: &[Subject]) -> Result<Self> {
        const STEADY: Duration = Duration::from_millis(200);
        let mut sides = CpuByClass::default();
        sides.update(kernel, tree, &[])?;
        sides.non_background.sample();
        let (began, own) = (clock::read_monotonic(), clock::read_own_cpu());
        clock::sleep(STEADY);
        let used =
            sides.non_background.sample().map(|used| used.saturating_sub(clock::read_own_cpu().saturating_sub(own)));
        let now = clock::read_monotonic();
        let steady = Permyriad::ratio(
            used.map_or(0, |used| u64::try_from(used.as_micros()).unwrap_or(0)),
            u64::try_from(now.since(began).as_micros()).unwrap_or(u64::MAX),
        )
        .unwrap_or_default();
        let mut buffer = Vec::new();
        let own_group = process::read_own_group(kernel).ok().flatten().unwrap_or_default();
        let groups = subjects.iter().filter(|subject| !own_group.starts_with(&subject.group)).take(MOST_STALLS);
        let stalls = groups.filter_map(|subject| {
            let dir = Group::open(kernel.cgroup().ok()?, &subject.group).ok()?.into_dir();
            let total = psi::Totals::read_group(&dir, Resource::Memory, &mut buffer).some?;
            Some((dir, total))
        });
        Ok(BusyMonitor {
            stalls: stalls.collect(),
            sides,
            watch: BusyWatch::new(&config.stop, steady),
            stop: config.stop.clone(),
            sampled: now,
            own_cpu: clock::read_own_cpu(),
            stalls_read: now,
            busy: None,
            quiet: now,
            buffer,
        })
    }

    /// Takes a sample if it is due. Returns the reason to end if work has lasted for `patience`.
    pub fn sample(&mut self, patience: Duration) -> Option<String> {
        let now = clock::read_monotonic();
        let dt = now.since(self.sampled);
        if dt < self.stop.sample {
            return None;
        }
        let own_cpu = clock::read_own_cpu();
        let own = own_cpu.saturating_sub(self.own_cpu);
        self.sampled = now;
        self.own_cpu = own_cpu;
        let used = self.sides.non_background.sample().map(|used| used.saturating_sub(own));
        let mut reason = self.watch.sample(dt, used);
        if now.since(self.stalls_read) >= self.stop.window {
            self.stalls_read = now;
            reason = self.read_stalls().or(reason);
        }
        match reason {
            Some(reason) => {
                self.quiet = now;
                self.busy.get_or_insert((now, reason));
            }
            None if now.since(self.quiet) >= QUIET => self.busy = None,
            None => {}
        }
        let (since, reason) = self.busy.as_ref()?;
        (now.since(*since) >= patience).then(|| reason.to_string())
    }

    /// Returns true during foreground work, and shortly after it.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    fn read_stalls(&mut self) -> Option<Reason> {
        let mut longest = Duration::ZERO;
        for (dir, last) in &mut self.stalls {
            if let Some(total) = psi::Totals::read_group(dir, Resource::Memory, &mut self.buffer).some {
                longest = longest.max(total.saturating_sub(*last));
                *last = total;
            }
        }
        let stop = &self.stop;
        (longest >= stop.stall).then_some(Reason::Stalled { stall: stop.stall, window: stop.window })
    }
}

#[cfg(test)]
mod tests {
    use omr_config::Loaded;
    use omr_machine::inventory::read_groups;
    use omr_policy::Class;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{GROUPS, stop_clocks};

    /// A machine with one group that has work, and the group of this process.
    fn machine() -> FakeRoot {
        let stalls = "some avg10=0 avg60=0 avg300=0 total=0\n";
        let files = [("cpu.stat", "usage_usec 0\n"), ("memory.pressure", stalls)];
        FakeRoot::in_memory(Release::V6_12)
            .proc("self/cgroup", "0::/own/inner\n")
            .group("a", &files)
            .group("own", &files)
    }

    fn start(root: &FakeRoot) -> BusyMonitor {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let (tree, _) = read_groups(&kernel, root.path(), &Loaded::built_in(), false).expect("groups");
        let subject = |group: &str| Subject { group: group.into(), class: Class::Foreground, rank: 0, pids: vec![7] };
        BusyMonitor::start(&kernel, &Config::default(), &tree, &[subject("own"), subject("a")]).expect("a monitor")
    }

    /// The group has used this CPU time, in milliseconds.
    fn use_cpu(root: &FakeRoot, millis: u64) {
        for group in ["", "a"] {
            root.write(format!("{GROUPS}/{group}/cpu.stat"), format!("usage_usec {}\n", millis * 1000));
        }
    }

    const PATIENCE: Duration = Duration::from_millis(300);
    const SAMPLE: Duration = Duration::from_millis(100);

    #[test]
    fn work_is_noticed_after_two_samples_and_is_over_half_a_second_later() {
        let clocks = stop_clocks();
        let root = machine();
        use_cpu(&root, 0);
        let mut monitor = start(&root);
        assert_eq!(clocks.passed(), Duration::from_millis(200), "the time of the steady load");
        // A sample of a CPU of which this process uses a quarter.
        let mut used = 0;
        let mut sample = |time: Duration, more: u64| {
            clocks.pass(time);
            used += more;
            use_cpu(&root, used);
            (monitor.sample(PATIENCE).is_some(), monitor.is_busy())
        };
        let (none, busy, end) = ((false, false), (false, true), (true, true));
        assert_eq!([sample(SAMPLE, 100), sample(SAMPLE, 100)], [none, busy]);
        // Less than the least time between two samples: the work is counted with the next one.
        assert_eq!(sample(Duration::from_millis(19), 0), busy);
        assert_eq!([sample(SAMPLE, 100), sample(SAMPLE, 100), sample(SAMPLE, 100)], [busy, busy, end]);
        // Half of the last two samples was work. The quiet time begins with the second idle one.
        assert_eq!([sample(SAMPLE, 0), sample(SAMPLE, 0)], [end, end]);
        for _ in 0..3 {
            assert_eq!(sample(SAMPLE, 0), end);
        }
        assert_eq!([sample(SAMPLE, 0), sample(SAMPLE, 0)], [none, none]);
    }

    #[test]
    fn the_own_cpu_time_and_the_steady_load_are_no_work() {
        for (steady, load, is_busy) in [(0, 49, false), (0, 52, true), (60, 84, false), (60, 88, true)] {
            let clocks = stop_clocks();
            let root = machine();
            let path = root.path().to_owned();
            // The load in percent of a CPU, with the quarter that this process uses.
            clocks.each_time(move |now| {
                let begin = Duration::from_millis(200);
                let first = now.min(begin).as_micros() * steady / 100;
                let usec = first + now.saturating_sub(begin).as_micros() * load / 100;
                for group in ["", "a"] {
                    let file = path.join(GROUPS).join(group).join("cpu.stat");
                    std::fs::write(file, format!("usage_usec {usec}\n")).expect("written");
                }
            });
            let mut monitor = start(&root);
            for _ in 0..2 {
                clocks.pass(SAMPLE);
                monitor.sample(PATIENCE);
            }
            assert_eq!(monitor.is_busy(), is_busy, "{steady} {load}");
        }
    }

    #[test]
    fn memory_stalls_of_other_groups_are_work() {
        let stalled = |group: &str, passed: u64, millis: u64| {
            let clocks = stop_clocks();
            let root = machine();
            use_cpu(&root, 0);
            let mut monitor = start(&root);
            clocks.pass(Duration::from_millis(passed));
            let text = format!("some avg10=0 avg60=0 avg300=0 total={}\n", millis * 1000);
            root.write(format!("{GROUPS}/{group}/memory.pressure"), text);
            let said = monitor.sample(Duration::ZERO);
            // The same total again is no new stall.
            clocks.pass(Duration::from_millis(600));
            monitor.sample(Duration::ZERO);
            (said.is_some(), monitor.is_busy())
        };
        assert_eq!(stalled("a", 500, 50), (true, false));
        assert_eq!(stalled("a", 500, 49), (false, false), "too short");
        assert_eq!(stalled("a", 499, 50), (false, true), "the window was not over");
        assert_eq!(stalled("own", 500, 50), (false, false), "this process itself waits for memory");
    }
}
