//! `/proc/vmstat` (`pgdemote_*` since Linux 5.18): the machine's memory events since boot.

use omr_units::Pages;
use serde::{Deserialize, Serialize};

use crate::text::{for_each_key, leading_u64};
use crate::{Kernel, Result};

/// Counters of `/proc/vmstat` under the kernel's names, in pages or events since boot. A field is
/// `None` when its line is missing. Sample line: `pswpout 51234`. Source: mm/vmstat.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Vmstat {
    pub pswpin: Option<Pages>,
    pub pswpout: Option<Pages>,
    pub allocstall: Option<u64>,
    /// Pages that reclaim moved to slower memory: the sum of all `pgdemote_*`, so from every cause.
    pub pgdemote: Option<Pages>,
}

impl Vmstat {
    /// Parses the text.
    pub fn parse(text: &[u8]) -> Self {
        let mut stat = Vmstat::default();
        for_each_key(text, |key, rest| match key {
            b"pswpin" => stat.pswpin = leading_u64(rest).map(Pages),
            b"pswpout" => stat.pswpout = leading_u64(rest).map(Pages),
            // One line per zone: allocstall_normal, allocstall_movable, ...
            _ if key.starts_with(b"allocstall_") => {
                let sum = |value| stat.allocstall.unwrap_or(0).saturating_add(value);
                stat.allocstall = leading_u64(rest).map(sum).or(stat.allocstall);
            }
            // pgdemote_kswapd, pgdemote_direct, pgdemote_khugepaged (6.5), pgdemote_proactive
            // (6.15).
            _ if key.starts_with(b"pgdemote_") => {
                let sum = |pages| stat.pgdemote.unwrap_or_default() + Pages(pages);
                stat.pgdemote = leading_u64(rest).map(sum).or(stat.pgdemote);
            }
            _ => {}
        });
        stat
    }

    /// Reads `/proc/vmstat`.
    pub fn read(kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<Self> {
        kernel.proc.read("vmstat", buffer)?;
        Ok(Vmstat::parse(buffer))
    }
}
