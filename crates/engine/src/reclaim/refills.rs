//! What the kernel moves between the lists of a group instead of freeing it.

use omr_kernel::memcg::{Group, MemoryStat};
use omr_kernel::{Kernel, Result};
use omr_policy::pace::Pace;
use omr_units::{Bytes, Pages};

/// The count of such pages when it was last read; `None`: the kernel has no such count.
pub(super) struct Refills(Option<Pages>);

impl Refills {
    pub fn new(stat: &MemoryStat) -> Self {
        Refills(stat.pgrefill)
    }

    /// Tells the pace what the kernel has moved, if the last write, which freed `freed`, was in vain.
    pub fn tell(
        &mut self,
        pace: &mut Pace,
        freed: Bytes,
        (kernel, group): (&Kernel, &Group),
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        if pace.is_in_vain(freed) {
            let now = group.read_stat(kernel, buffer)?.pgrefill;
            let before = std::mem::replace(&mut self.0, now);
            let moved = before.zip(now).map(|(before, now)| now - before).unwrap_or_default();
            pace.sorted(moved.bytes(kernel.page()));
        }
        Ok(())
    }
}
