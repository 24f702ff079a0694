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
        std::thread::sleep(STEADY);
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
            let total = psi::read_group_some_total(&dir, Resource::Memory, &mut buffer)?;
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
            if let Some(total) = psi::read_group_some_total(dir, Resource::Memory, &mut self.buffer) {
                longest = longest.max(total.saturating_sub(*last));
                *last = total;
            }
        }
        let stop = &self.stop;
        (longest >= stop.stall).then_some(Reason::Stalled { stall: stop.stall, window: stop.window })
    }
}
