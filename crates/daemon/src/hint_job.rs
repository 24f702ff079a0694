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
use omr_machine::processes;
use omr_policy::End;
use omr_policy::rank::{HintKind, ProcessId};
use omr_units::{Amount, Bytes};

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
    /// The amount to page out; `None`: all.
    pub amount: Option<Bytes>,
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

/// Gives the hint.
pub fn give(session: &mut Session<'_>, order: &Order) -> Given {
    match try_give(session, order) {
        Ok(Some((report, _))) if report.end == End::Gone => Given::Gone,
        Ok(Some((report, holds))) => Given::Hinted(Box::new(report), holds),
        Ok(None) => Given::Gone,
        Err(err) if reclaim::is_gone(&err) => Given::Gone,
        Err(err) => Given::Failed(format!("{err:#}")),
    }
}

fn try_give(session: &mut Session<'_>, order: &Order) -> Result<Option<(Report, ProcessMemory)>> {
    let kernel = session.host.kernel;
    let process = Process::open(kernel, order.id.pid)?;
    if processes::id(&process) != order.id {
        return Ok(None);
    }
    let group = process.read_group()?.unwrap_or_default();
    let account = match &order.account {
        Some(path) => Some(Account { group: Group::open(kernel.cgroup()?, path)?, gain: order.room }),
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
    let extent = Extent { amount, swap_floor: None };
    let report = session.hint(&order.loaded.policy, &subject, &selection, extent)?;
    let holds = ProcessMemory::read(subject.process.dir(), &mut Vec::new())?;
    Ok(Some((report, holds)))
}
