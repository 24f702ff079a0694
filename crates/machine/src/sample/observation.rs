//! Rates between two snapshots: the input of the policy.

use std::time::Duration;

use omr_kernel::meminfo::Meminfo;
use omr_kernel::stat::{CpuTicks, Stat, TICK};
use omr_policy::cost::CostFacts;
use omr_policy::{CpuIdle, Machine, Memory, Signals, Swap};
use omr_units::Permyriad;

use crate::sample::snapshot::Snapshot;

/// A shorter time asleep is only the difference between two clocks that are read one after the
/// other.
const ASLEEP: Duration = Duration::from_secs(1);

/// Returns the signals between two snapshots. A counter that went back is unknown.
pub fn between(before: &Snapshot, now: &Snapshot, file_only: bool) -> Signals {
    let own = now.own_cpu.saturating_sub(before.own_cpu);
    let cpu = before.stat.as_ref().zip(now.stat.as_ref()).map(|(before, now)| Cpu::between(before, now));
    let used = cpu.as_ref().and_then(|cpu| cpu.used);
    let stall = |index: usize| now.stall[index]?.checked_sub(before.stall[index]?);
    Signals {
        now: now.at,
        hour: now.wall.as_secs() / 3600,
        slept: now.asleep.saturating_sub(before.asleep) > ASLEEP,
        machine: Machine {
            dt: now.at.since(before.at),
            cpus: now.stat.as_ref().map_or(0, |stat| u32::try_from(stat.cpus.len()).unwrap_or(u32::MAX)),
            least_idle: cpu.and_then(|cpu| cpu.least_idle(own)),
            load: used.zip(now.background).map(|(used, background)| used.saturating_sub(background + own)),
            foreground: now.foreground,
            stall_cpu: stall(0),
            stall_io: stall(1),
            stall_memory: stall(2),
            swap: now.swap.map(Swap::from),
            memory: now.memory.as_ref().and_then(memory),
            image: if now.hibernates {
                now.memory.and_then(|memory| Some(memory.mem_total? - memory.mem_free?))
            } else {
                None
            },
            hibernated: None,
            hibernates_by: None,
            disk_rate: None,
            free_page_reporting: None,
            presence: None,
            gives_back: false,
            file_only,
            cost: CostFacts::default(),
        },
    }
}

/// CPU time between two readings of `/proc/stat`.
struct Cpu {
    /// The time that all CPUs together were neither idle nor waiting for I/O.
    used: Option<Duration>,
    /// For each CPU: number, idle ticks, all ticks.
    idle: Vec<(u32, u64, u64)>,
}

/// Returns total and available memory of the machine.
pub fn memory(memory: &Meminfo) -> Option<Memory> {
    Some(Memory { total: memory.mem_total?, available: memory.mem_available? })
}

impl Cpu {
    fn between(before: &Stat, now: &Stat) -> Self {
        let mut used = Some(0u64);
        let mut idle = Vec::with_capacity(now.cpus.len());
        for (number, ticks) in &now.cpus {
            // A CPU that just came online has no earlier reading; the next tick counts it.
            let Some((_, past)) = before.cpus.iter().find(|(n, _)| n == number) else { continue };
            let delta = |of: fn(&CpuTicks) -> u64| of(ticks).checked_sub(of(past));
            let fields: [fn(&CpuTicks) -> u64; 6] =
                [|t| t.user, |t| t.nice, |t| t.system, |t| t.irq, |t| t.softirq, |t| t.steal];
            let busy = fields.into_iter().map(delta).try_fold(0u64, |sum, delta| Some(sum.saturating_add(delta?)));
            used = used.zip(busy).map(|(sum, busy)| sum.saturating_add(busy));
            // On some kernels idle and iowait go back by a tick. The total is then too small by a
            // tick.
            let (is_idle, waits) = (delta(|t| t.idle).unwrap_or(0), delta(|t| t.iowait).unwrap_or(0));
            let total = busy.unwrap_or(0).saturating_add(is_idle).saturating_add(waits);
            idle.push((*number, is_idle, total));
        }
        if idle.is_empty() {
            used = None;
        }
        Cpu { used: used.and_then(|ticks| TICK.checked_mul(u32::try_from(ticks).ok()?)), idle }
    }

    /// Returns the CPU with the least idle time, after omr's own time is subtracted.
    fn least_idle(&self, own: Duration) -> Option<CpuIdle> {
        let own = u64::try_from(own.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX);
        let share = |idle: u64, total: u64| Permyriad::ratio(idle, total);
        // A CPU without any accounted time makes the result unknown.
        let (place, _) = self
            .idle
            .iter()
            .enumerate()
            .map(|(place, &(_, idle, total))| share(idle, total).map(|share| (place, share)))
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .min_by_key(|&(_, share)| share)?;
        self.idle
            .iter()
            .enumerate()
            .map(|(index, &(cpu, idle, total))| {
                let idle = if index == place { idle.saturating_add(own).min(total) } else { idle };
                share(idle, total).map(|idle| CpuIdle { cpu, idle })
            })
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .min_by_key(|cpu| cpu.idle)
    }
}

#[cfg(test)]
mod tests {
    use omr_kernel::meminfo::Meminfo;
    use omr_units::{Bytes, Monotonic};
    use proptest::prelude::*;

    use super::*;
    use crate::sample::snapshot::SwapSpace;

    const SECOND: Duration = Duration::from_secs(1);

    fn ticks(user: u64, idle: u64) -> CpuTicks {
        CpuTicks { user, idle, ..CpuTicks::default() }
    }

    /// A snapshot of two CPUs with all values known.
    fn snapshot(at: u64, cpus: [CpuTicks; 2]) -> Snapshot {
        let [first, second] = cpus;
        Snapshot {
            at: Monotonic(0) + SECOND * u32::try_from(at).expect("seconds"),
            wall: Duration::from_secs(7200 + at),
            asleep: Duration::ZERO,
            own_cpu: Duration::ZERO,
            stat: Some(Stat { cpus: vec![(0, first), (1, second)] }),
            memory: Some(Meminfo {
                mem_total: Some(Bytes::mib(100)),
                mem_free: Some(Bytes::mib(40)),
                ..Meminfo::default()
            }),
            stall: [Some(Duration::ZERO); 3],
            background: Some(Duration::ZERO),
            foreground: Some(Duration::ZERO),
            swap: Some(SwapSpace {
                total: Bytes::mib(10),
                free: Bytes::mib(5),
                on_disk: true,
                free_outside_image: Bytes::mib(1),
            }),
            hibernates: false,
        }
    }

    #[test]
    fn rates_are_differences_between_two_snapshots() {
        let before = snapshot(10, [ticks(100, 1000), ticks(0, 1000)]);
        let mut now = snapshot(11, [ticks(130, 1070), ticks(20, 1080)]);
        now.background = Some(Duration::from_millis(100));
        now.own_cpu = Duration::from_millis(50);
        now.stall = [Some(Duration::from_millis(7)); 3];
        let signals = between(&before, &now, true);
        let machine = &signals.machine;
        assert_eq!((signals.hour, signals.slept), (2, false));
        assert_eq!((machine.dt, machine.cpus), (SECOND, 2));
        // 50 ticks of 10 ms, less what the background and omr itself used.
        assert_eq!(machine.load, Some(Duration::from_millis(350)));
        assert_eq!(machine.stall_io, Some(Duration::from_millis(7)));
        // 70 of 100 ticks, and five of omr itself.
        assert_eq!(machine.least_idle, Some(CpuIdle { cpu: 0, idle: Permyriad::percent(75) }));
        assert_eq!((machine.image, machine.file_only), (None, true));
        let hibernates = Snapshot { hibernates: true, ..now };
        assert_eq!(between(&before, &hibernates, true).machine.image, Some(Bytes::mib(60)));
    }

    #[test]
    fn a_counter_that_went_back_is_unknown() {
        let before = snapshot(10, [ticks(100, 1000), ticks(100, 1000)]);
        let mut now = snapshot(11, [ticks(99, 1100), ticks(100, 1100)]);
        now.stall[2] = None;
        let mut earlier = before.clone();
        earlier.stall[1] = Some(SECOND);
        let machine = between(&earlier, &now, false).machine;
        assert_eq!((machine.load, machine.stall_io, machine.stall_memory), (None, None, None));
        assert_eq!(machine.stall_cpu, Some(Duration::ZERO));
        // Idle time may go back by a tick on some kernels. The load stays known.
        let now = snapshot(11, [ticks(100, 999), ticks(110, 1090)]);
        let machine = between(&before, &now, false).machine;
        assert_eq!(machine.load, Some(Duration::from_millis(100)));
    }

    #[test]
    fn without_the_cpu_time_of_groups_the_load_is_unknown() {
        let before = snapshot(10, [ticks(0, 0), ticks(0, 0)]);
        let now = snapshot(11, [ticks(0, 100), ticks(0, 100)]);
        let all = between(&before, &now, false).machine;
        assert_eq!((all.load, all.foreground), (Some(Duration::ZERO), Some(Duration::ZERO)));
        let blind = Snapshot { background: None, foreground: None, swap: None, ..now.clone() };
        let machine = between(&before, &blind, false).machine;
        assert_eq!((machine.load, machine.foreground, machine.swap), (None, None, None));
        let blind = Snapshot { stat: None, ..now };
        let machine = between(&before, &blind, false).machine;
        assert_eq!((machine.load, machine.least_idle, machine.cpus), (None, None, 0));
    }

    #[test]
    fn a_cpu_that_comes_online_has_no_past() {
        let mut before = snapshot(10, [ticks(0, 0), ticks(0, 0)]);
        let now = snapshot(11, [ticks(20, 80), ticks(u64::MAX / 2, 0)]);
        before.stat.as_mut().expect("a stat").cpus.truncate(1);
        let machine = between(&before, &now, false).machine;
        assert_eq!((machine.load, machine.cpus), (Some(Duration::from_millis(200)), 2));
        // All CPUs are new, so the load is unknown.
        before.stat = Some(Stat { cpus: vec![(7, ticks(0, 0))] });
        assert_eq!(between(&before, &now, false).machine.load, None);
    }

    #[test]
    fn sleep_and_clocks_that_are_set() {
        let before = snapshot(10, [ticks(0, 0), ticks(0, 0)]);
        let mut now = snapshot(11, [ticks(0, 100), ticks(0, 100)]);
        // Two clocks that are read one after the other differ a little.
        now.asleep = ASLEEP;
        assert!(!between(&before, &now, false).slept);
        now.asleep = Duration::from_secs(3600);
        assert!(between(&before, &now, false).slept);
        // If the wall clock is set to 1970 or far ahead, only the hour changes.
        for (wall, hour) in [(Duration::ZERO, 0), (Duration::MAX, u64::MAX / 3600)] {
            now.wall = wall;
            let signals = between(&before, &now, false);
            assert_eq!((signals.hour, signals.machine.dt), (hour, SECOND));
        }
        // The monotonic clock never goes back. If it did, no time would have passed.
        now.at = Monotonic(0);
        assert_eq!(between(&before, &now, false).machine.dt, Duration::ZERO);
    }

    proptest! {
        #[test]
        fn any_counters_give_signals(numbers in proptest::collection::vec(any::<u64>(), 16), own in any::<u64>()) {
            let cpu = |n: &[u64]| CpuTicks {
                user: n[0], nice: n[1], system: n[2], idle: n[3], iowait: n[4], irq: n[5], softirq: n[6], steal: n[7],
            };
            let stat = |n: &[u64]| Some(Stat { cpus: vec![(0, cpu(n))] });
            let before = Snapshot { stat: stat(&numbers[..8]), ..Snapshot::default() };
            let mut now = Snapshot { stat: stat(&numbers[8..]), at: Monotonic(numbers[0]), ..Snapshot::default() };
            now.own_cpu = Duration::from_nanos(own);
            now.background = Some(Duration::from_micros(numbers[1]));
            let machine = between(&before, &now, false).machine;
            // A CPU is never more than 100 % idle.
            prop_assert!(machine.least_idle.is_none_or(|least| least.idle <= Permyriad::ONE));
        }
    }
}
