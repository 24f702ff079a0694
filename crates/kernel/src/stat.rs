//! `/proc/stat` (`steal` since Linux 2.6.11): CPU time of each CPU.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Error, Kernel, Result};

/// CPU time since boot, in ticks of 10 ms (`USER_HZ`, 100 on every architecture Linux supports).
///
/// Sample line: `cpu0 15431 0 8362 1202332 1733 0 211 94 0 0`. Source: fs/proc/stat.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct CpuTicks {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
}

/// Length of one tick: 10 ms.
pub const TICK: Duration = Duration::from_millis(10);

impl CpuTicks {
    fn parse(fields: &[u8]) -> Option<Self> {
        let mut numbers = fields.split(|&c| c == b' ').filter(|f| !f.is_empty()).map(parse_u64);
        let mut next = || numbers.next().flatten();
        Some(CpuTicks {
            user: next()?,
            nice: next()?,
            system: next()?,
            idle: next()?,
            iowait: next()?,
            irq: next()?,
            softirq: next()?,
            // Since Linux 2.6.11; a line that ends before it is truncated.
            steal: next()?,
        })
    }

    /// The sum of all fields. Guest time is part of `user` and `nice` already.
    pub fn total(&self) -> u64 {
        [self.user, self.nice, self.system, self.idle, self.iowait, self.irq, self.softirq, self.steal]
            .iter()
            .fold(0, |sum, &n| sum.saturating_add(n))
    }
}

/// The CPUs of `/proc/stat`. A CPU that is offline has no line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Number and CPU time of each CPU that is online.
    pub cpus: Vec<(u32, CpuTicks)>,
}

impl Stat {
    /// Parses the text. `None`: there is no CPU line, or one of them is truncated.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut stat = Stat::default();
        for line in text.split(|&c| c == b'\n') {
            // The "cpu " line is the sum of the others. The CPU lines are the first of the file.
            let Some(rest) = line.strip_prefix(b"cpu") else { break };
            let Some(space) = rest.iter().position(|&c| c == b' ') else { continue };
            let (number, fields) = rest.split_at(space);
            let Some(number) = parse_u64(number).and_then(|n| u32::try_from(n).ok()) else { continue };
            stat.cpus.push((number, CpuTicks::parse(fields)?));
        }
        (!stat.cpus.is_empty()).then_some(stat)
    }

    /// Reads `/proc/stat`.
    pub fn read(kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<Self> {
        kernel.proc.read("stat", buffer)?;
        Stat::parse(buffer).ok_or_else(|| {
            Error::parse(kernel.proc.path().join("stat"), "no whole line \"cpuN user nice system idle ...\"")
        })
    }
}
