//! From two snapshots to what the policy decides from.

use std::time::Duration;

use omr_kernel::stat::{CpuTicks, Stat, TICK};
use omr_policy::{CpuIdle, Machine, Signals, Swap};
use omr_units::Permyriad;

use crate::snapshot::Snapshot;

/// Sleep shorter than this is the difference between two readings of two clocks.
const ASLEEP: Duration = Duration::from_secs(1);

/// The signals between two snapshots. A counter that went back is unknown.
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
            swap: now.swap.map(|swap| Swap { total: swap.total, free: swap.free, on_disk: swap.on_disk }),
            image: if now.hibernates {
                now.memory.and_then(|memory| Some(memory.mem_total? - memory.mem_free?))
            } else {
                None
            },
            file_only,
        },
    }
}

/// CPU time between two readings of `/proc/stat`.
struct Cpu {
    /// Not idle and not waiting for I/O, on all CPUs.
    used: Option<Duration>,
    /// Per CPU: number, idle ticks, all ticks.
    idle: Vec<(u32, u64, u64)>,
}

impl Cpu {
    fn between(before: &Stat, now: &Stat) -> Self {
        let mut used = Some(0u64);
        let mut idle = Vec::with_capacity(now.cpus.len());
        for (number, ticks) in &now.cpus {
            // A CPU that came online has no past; the next tick knows it.
            let Some((_, past)) = before.cpus.iter().find(|(n, _)| n == number) else { continue };
            let delta = |of: fn(&CpuTicks) -> u64| of(ticks).checked_sub(of(past));
            let fields: [fn(&CpuTicks) -> u64; 6] =
                [|t| t.user, |t| t.nice, |t| t.system, |t| t.irq, |t| t.softirq, |t| t.steal];
            let busy = fields.into_iter().map(delta).try_fold(0u64, |sum, delta| Some(sum.saturating_add(delta?)));
            used = used.zip(busy).map(|(sum, busy)| sum.saturating_add(busy));
            // Some kernels let idle and iowait go back by a tick; total then is too small, not wrong.
            let (is_idle, waits) = (delta(|t| t.idle).unwrap_or(0), delta(|t| t.iowait).unwrap_or(0));
            let total = busy.unwrap_or(0).saturating_add(is_idle).saturating_add(waits);
            idle.push((*number, is_idle, total));
        }
        if idle.is_empty() {
            used = None;
        }
        Cpu { used: used.and_then(|ticks| TICK.checked_mul(u32::try_from(ticks).ok()?)), idle }
    }

    /// The CPU with the least idle time, after `own` time was taken out of it.
    fn least_idle(&self, own: Duration) -> Option<CpuIdle> {
        let own = u64::try_from(own.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX);
        let share = |idle: u64, total: u64| Permyriad::ratio(idle, total);
        // A CPU that accounted no time at all says nothing: unknown.
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
