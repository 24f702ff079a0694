//! One hint about the anonymous memory of a process: what the worker does for it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use omr_actuate::{Actuator, Advice};
use omr_base::cancel::Flag;
use omr_config::Loaded;
use omr_engine::hint::{Account, Extent, Hinter, Report, Selection, Subject};
use omr_engine::reclaim;
use omr_engine::reclaim::limit_journal::Journal;
use omr_kernel::Kernel;
use omr_kernel::maps::Backing;
use omr_kernel::memcg::Group;
use omr_kernel::process::{Process, ProcessMemory};
use omr_kernel::ranges::Ranges;
use omr_machine::processes;
use omr_policy::End;
use omr_policy::rank::{HintKind, ProcessId};
use omr_units::{Amount, Bytes};

/// What is to be hinted.
#[derive(Clone, Debug)]
pub struct Order {
    /// Which process.
    pub id: ProcessId,
    /// How.
    pub step: HintKind,
    /// About which of it; `None`: all.
    pub within: Option<Ranges>,
    /// The group that accounts for its memory, below the mount; `None`: the root.
    pub account: Option<PathBuf>,
    /// What may be taken from that group.
    pub room: Bytes,
    /// How much is to be paged out; `None`: all.
    pub amount: Option<Bytes>,
    /// What paces it.
    pub loaded: Arc<Loaded>,
}

/// What came of it.
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
pub fn give(
    kernel: &Kernel,
    actuator: &mut dyn Actuator,
    journal: Option<&Journal>,
    order: &Order,
    stop: &Flag,
) -> Given {
    match try_give(kernel, actuator, journal, order, stop) {
        Ok(Some((report, _))) if report.end == End::Gone => Given::Gone,
        Ok(Some((report, holds))) => Given::Hinted(Box::new(report), holds),
        Ok(None) => Given::Gone,
        Err(err) if reclaim::is_gone(&err) => Given::Gone,
        Err(err) => Given::Failed(format!("{err:#}")),
    }
}

fn try_give(
    kernel: &Kernel,
    actuator: &mut dyn Actuator,
    journal: Option<&Journal>,
    order: &Order,
    stop: &Flag,
) -> Result<Option<(Report, ProcessMemory)>> {
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
    let selection = Selection { advice, within: order.within.clone(), backing: Some(Backing::Anonymous) };
    let config = &order.loaded.policy;
    let mut hinter = Hinter { kernel, config, actuator, journal, stop, progress: &mut |_| {} };
    let report = hinter.run(&subject, &selection, Extent { amount, swap_floor: None })?;
    let holds = ProcessMemory::read(subject.process.dir(), &mut Vec::new())?;
    Ok(Some((report, holds)))
}
