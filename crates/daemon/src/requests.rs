//! The answers to clients' requests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use omr_control::protocol::{Answer, Request};
use omr_control::status::Status;
use omr_kernel::memcg::Group;
use omr_policy::Reason;
use omr_policy::statement::{Presence, Subject};
use omr_units::Monotonic;
use serde_json::{Value, to_value};

use crate::daemon::Daemon;
use crate::views::LargestGroups;
use crate::{process_views, statements, views};

/// Carries out a request. Returns the value of the answer.
pub fn answer(daemon: &mut Daemon, request: Request) -> Result<Value> {
    let now = daemon.host.now();
    match request {
        Request::Status => return Ok(to_value(views::status(daemon, now, views::image_view(daemon)))?),
        Request::Explain { group } => {
            return Ok(to_value(views::explain(daemon, now, group.as_deref().map(Path::new))?)?);
        }
        Request::ExplainProcess { pid } => {
            daemon.scan_processes();
            return Ok(to_value(process_views::explain(&daemon.processes, &daemon.host.kernel, now, pid)?)?);
        }
        Request::Processes => return Ok(to_value(process_views::all(&daemon.processes, now))?),
        Request::Say { presence, subject } => record_statement(daemon, presence, &subject)?,
        // They depend on the client, so the loop answers them.
        Request::Hold { .. } | Request::Presence { .. } | Request::Watch => bail!("this needs the client"),
        Request::Pause { seconds } => pause(daemon, now, seconds.map(Duration::from_secs)),
        Request::FallAsleep => fall_asleep(daemon, now),
        Request::Resume => daemon.mind.state.resume(),
        Request::Prepare { purpose, deadline_ms, why } => {
            let effects = daemon.preparation.request(&mut daemon.mind.state, now, purpose, deadline_ms, &why)?;
            daemon.carry_out(effects);
        }
        Request::StandDown => daemon.end_preparing("not announced any more"),
    }
    Ok(Value::Null)
}

/// The room for a status: one with 100 groups has some 16 KB. What is not used costs nothing.
const STATUS: usize = 32 << 10;

/// An answer with the status, as a line. It is written without a copy of the status in between.
pub fn status_line(status: Status<LargestGroups<'_>>) -> Vec<u8> {
    let mut line = Vec::with_capacity(STATUS);
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(&mut line, &Answer::Ok(status));
    line.push(b'\n');
    line
}

/// Records a statement that root makes; `None` withdraws it. It counts at once.
fn record_statement(daemon: &mut Daemon, presence: Option<Presence>, subject: &Subject) -> Result<()> {
    match subject {
        Subject::Process(id) => {
            let before = daemon.statements.processes().get(id).copied();
            let effect = statements::set_process(&daemon.host, &mut daemon.statements, *id, presence)?;
            daemon.carry_out(effect);
            daemon.rescan();
            if let Some(why) = statements::contradiction(&daemon.processes, *id, presence) {
                daemon.statements.set_process(*id, before)?;
                bail!(why);
            }
        }
        Subject::Group(path) => {
            let path = daemon.host.kernel.group_path(Path::new(path)).to_path_buf();
            let known = daemon.world.tree.find(&path).map(|node| node.id);
            let there = daemon.host.kernel.cgroup().and_then(|root| Group::open(root, &path)).map(|group| group.id());
            if known != there.ok() {
                // It is newer than the last scan, as a service that was started again.
                daemon.scan();
            }
            let effect = statements::set_group(&daemon.world, &mut daemon.statements, &path, presence)?;
            daemon.carry_out(effect);
            daemon.rescan();
        }
    }
    let stated = presence.map_or_else(|| "statement withdrawn".to_owned(), |is| format!("omr {}", is.class().name()));
    log::info!("{}: {stated}", statements::name(&daemon.processes, subject));
    Ok(())
}

/// No sweeps and no hints for a time, or until resumed.
fn pause(daemon: &mut Daemon, now: Monotonic, time: Option<Duration>) {
    daemon.mind.state.pause(now, time);
    daemon.stop_all("paused", Reason::Paused { left: time });
}

/// No sweeps and no hints until the machine has slept.
fn fall_asleep(daemon: &mut Daemon, now: Monotonic) {
    let reason = daemon.mind.state.fall_asleep(now);
    // omr-prepare-hibernate.service, which prepares for hibernation, has ended before.
    daemon.end_preparing("the machine is about to sleep");
    daemon.stop_all(&reason.to_string(), reason.clone());
}
