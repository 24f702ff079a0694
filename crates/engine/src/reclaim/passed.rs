//! How much of a group the kernel has looked at without freeing it.

use omr_kernel::memcg::{Group, MemoryStat};
use omr_kernel::{Kernel, Result};
use omr_policy::pace::Pace;
use omr_units::{Bytes, Pages};

/// The count of the pages that the kernel had looked at before the next write; `None`: not known.
pub(super) struct Passed(Option<Pages>);

impl Passed {
    pub fn new(stat: &MemoryStat) -> Self {
        Passed(looked_at(stat))
    }

    /// Tells the pace what the kernel has looked at in the last write, which freed `freed` and sent
    /// `sent` to swap, if it was in vain. Of the first such write after a useful one this is not
    /// known: nothing is read after a useful write.
    pub fn tell(
        &mut self,
        pace: &mut Pace,
        (freed, sent): (Bytes, Pages),
        (kernel, group): (&Kernel, &Group),
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        if !pace.is_in_vain(freed) {
            self.0 = None;
            return Ok(());
        }
        let now = looked_at(&group.read_stat(kernel, buffer)?);
        let before = std::mem::replace(&mut self.0, now);
        let looked_at = before.zip(now).map(|(before, now)| now - before).unwrap_or_default();
        pace.passed((looked_at - sent).bytes(kernel.page()));
        Ok(())
    }
}

/// The kernel moves a page that was used to another list, at once (`pgrefill`) or after a closer
/// look (`pgscan`).
fn looked_at(stat: &MemoryStat) -> Option<Pages> {
    Some(stat.pgrefill? + stat.pgscan?)
}
