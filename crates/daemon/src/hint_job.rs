//! One hint about the anonymous memory of a process: what the worker does for it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use omr_actuate::Advice;
use omr_config::Loaded;
use omr_engine::hint::{Account, Extent, Report, Selection, Subject};
use omr_engine::{Session, reclaim};
use omr_kernel::maps::Backing;
use omr_kernel::memcg::Group;
use omr_kernel::process::{Process, ProcessMemory};
use omr_kernel::ranges::Ranges;
use omr_kernel::vmstat::Vmstat;
use omr_machine::processes;
use omr_policy::End;
use omr_policy::rank::{HintKind, ProcessId};
use omr_units::{Amount, Bytes, Limit};

/// A hint to be given.
#[derive(Clone, Debug)]
pub struct Order {
    /// The process.
    pub id: ProcessId,
    /// The kind of hint.
    pub step: HintKind,
    /// The address ranges it is about; `None`: all memory of the process.
    pub within: Option<Ranges>,
    /// The group that accounts for its memory, below the mount; `None`: the root.
    pub account: Option<PathBuf>,
    /// The memory that may be reclaimed from that group.
    pub room: Bytes,
    /// Its anonymous memory at the last scan.
    pub anon: Bytes,
    /// The amount to page out; `None`: all.
    pub amount: Option<Bytes>,
    /// Swap that stays free.
    pub swap_floor: Bytes,
    /// The configuration, which paces paging out.
    pub loaded: Arc<Loaded>,
}

/// The outcome of a hint.
#[derive(Debug)]
pub enum Given {
    /// The hint was given, if not to the end.
    Hinted(Box<Report>, ProcessMemory),
    /// The process or its group is gone.
    Gone,
    /// It could not be given.
    Failed(String),
}

/// Gives the hint. Returns also how much the machine has written to swap meanwhile: pages may be back in
/// memory when the hint ends, and the process may be gone.
pub fn give(session: &mut Session<'_>, order: &Order) -> (Given, Bytes) {
    let kernel = session.host.kernel;
    let read = || Vmstat::read(kernel, &mut Vec::new()).map(|stat| stat.pswpout.unwrap_or_default());
    let before = match (order.step, read()) {
        (HintKind::PageOut, Err(err)) => return (Given::Failed(err.to_string()), Bytes::ZERO),
        (_, before) => before.unwrap_or_default(),
    };
    let given = try_once(session, order);
    let swapped_out = match (order.step, read()) {
        (HintKind::Deactivate | HintKind::Prefetch, _) => Bytes::ZERO,
        (HintKind::PageOut, Ok(now)) => (now - before).bytes(kernel.page()),
        // Nobody knows; no more than was asked for.
        (HintKind::PageOut, Err(_)) => order.amount.unwrap_or(order.anon).min(order.anon),
    };
    (given, swapped_out)
}

fn try_once(session: &mut Session<'_>, order: &Order) -> Given {
    match try_give(session, order) {
        Ok(Some((report, _))) if report.end == End::Gone => Given::Gone,
        Ok(Some((report, holds))) => Given::Hinted(Box::new(report), holds),
        Ok(None) => Given::Gone,
        Err(err) if reclaim::is_gone(&err) => Given::Gone,
        Err(err) => Given::Failed(format!("{err:#}")),
    }
}

/// The group that accounts for the memory, and what may be reclaimed from it. The scan is up to half a
/// minute old, and protection may have changed since.
fn account(group: Group, order: &Order) -> Result<Account> {
    let buffer = &mut Vec::new();
    let gain = match group.read_protection(buffer)? {
        Limit::Bytes(protected) => order.room.min(group.read_current(buffer)? - protected),
        Limit::Max => Bytes::ZERO,
    };
    Ok(Account { group, gain })
}

fn try_give(session: &mut Session<'_>, order: &Order) -> Result<Option<(Report, ProcessMemory)>> {
    let kernel = session.host.kernel;
    let process = Process::open(kernel, order.id.pid)?;
    if processes::id(&process) != order.id {
        return Ok(None);
    }
    let group = process.read_group()?.unwrap_or_default();
    let account = match &order.account {
        Some(path) => Some(account(Group::open(kernel.cgroup()?, path)?, order)?),
        None => None,
    };
    let subject = Subject { process, group, account };
    let (advice, amount) = match order.step {
        HintKind::Deactivate => (Advice::Cold, Amount::Max),
        HintKind::PageOut => (Advice::PageOut, order.amount.map_or(Amount::Max, Amount::Bytes)),
        HintKind::Prefetch => (Advice::WillNeed, Amount::Max),
    };
    let within = order.within.clone();
    let selection = Selection { within, backing: Some(Backing::Anonymous), ..Selection::all(advice) };
    let extent = Extent { amount, swap_floor: Some(Amount::Bytes(order.swap_floor)) };
    let report = session.hint(&order.loaded.policy, &subject, &selection, extent)?;
    let holds = ProcessMemory::read(subject.process.dir(), &mut Vec::new())?;
    Ok(Some((report, holds)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_kernel::Kernel;
    use omr_testkit::FakeRoot;

    use super::*;
    use crate::settings::{Args, load};

    #[test]
    fn protection_that_changed_since_the_scan_counts() {
        let gain = |low: &str| {
            let root = FakeRoot::new().group("a", &[("memory.current", "1048576\n"), ("memory.low", low)]);
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let order = Order {
                id: ProcessId { pid: 7, start: 1 },
                step: HintKind::PageOut,
                within: None,
                account: Some("a".into()),
                room: Bytes(900_000),
                anon: Bytes::ZERO,
                amount: None,
                swap_floor: Bytes::ZERO,
                loaded: Arc::new(load(root.path(), &Args::default(), &kernel).expect("a configuration")),
            };
            let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
            account(group, &order).expect("readable").gain
        };
        assert_eq!(gain("0\n"), Bytes(900_000), "the control: as the scan found it");
        assert_eq!(gain("1000000\n"), Bytes(48_576));
        assert_eq!(gain("max\n"), Bytes::ZERO);
    }
}
