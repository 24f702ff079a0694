//! Statements about groups and processes: who may make them, what they change, and their names in
//! messages. The store of them is [`StatementStore`].

use std::path::Path;

use anyhow::{Result, bail};
use omr_base::text::printable;
use omr_control::status::StatementView;
use omr_kernel::memcg::Group;
use omr_kernel::process::{Process, Status};
use omr_machine::groups::class::Origin;
use omr_machine::groups::tree::no_group;
use omr_machine::inventory;
use omr_machine::processes;
use omr_machine::statements::{StatementStore, Statements};
use omr_policy::Class;
use omr_policy::rank::ProcessId;
use omr_policy::statement::{Presence, Statement, Subject};
use omr_units::GroupId;

use crate::effects::{Effect, SparedGroup};
use crate::host::Host;
use crate::processes::{Processes, is_there};
use crate::server::Peer;
use crate::world::World;

/// Applies all statements to the groups. Returns the groups whose class changed.
pub fn apply(host: &Host, world: &mut World, statements: &StatementStore) -> Vec<GroupId> {
    inventory::apply_statements(&host.kernel, &world.classifier, &mut world.tree, statements).unwrap_or_else(|err| {
        log::warn!("{err}");
        Vec::new()
    })
}

/// Returns those of a client's statements that the client may make, and the number of refused ones.
/// A statement about a process or group that is gone is left out. A statement about a subject of
/// another user is refused, unless the client may speak for everybody.
pub fn allowed(host: &Host, statements: &[Statement], peer: Peer) -> Result<(Statements, usize)> {
    if statements.iter().any(|statement| statement.presence == Presence::Background) {
        bail!("a client can only state what is in the foreground; omr background states the opposite, as root");
    }
    let mut allowed = Statements::default();
    let mut refused = 0;
    for Statement { presence, subject } in statements {
        let Some((identity, owner)) = identify(host, subject)? else { continue };
        if !peer.owns(owner) {
            refused += 1;
            continue;
        }
        match identity {
            Identity::Process(id) => allowed.processes.insert(id, *presence),
            Identity::Group(id) => allowed.groups.insert(id, *presence),
        };
    }
    Ok((allowed, refused))
}

enum Identity {
    Process(ProcessId),
    Group(GroupId),
}

/// The identity of a subject and the user id of its owner; `None`: it is gone.
fn identify(host: &Host, subject: &Subject) -> Result<Option<(Identity, u32)>> {
    let found = match subject {
        Subject::Process(id) => process_owner(host, *id).map(|uid| uid.map(|uid| (Identity::Process(*id), uid))),
        // Not by the last scan, which does not know a group that was made since.
        Subject::Group(path) => Group::open(host.kernel.cgroup()?, host.kernel.group_path(Path::new(path)))
            .and_then(|group| Ok(Some((Identity::Group(group.id()), group.dir().owner()?)))),
    };
    match found {
        // The client must not believe that this subject is kept.
        Err(err) if err.is_passing() => Err(err.into()),
        found => Ok(found.unwrap_or_default()),
    }
}

fn process_owner(host: &Host, id: ProcessId) -> omr_kernel::Result<Option<u32>> {
    let process = Process::open(&host.kernel, id.pid)?;
    if processes::id(&process) != id {
        return Ok(None);
    }
    Ok(Status::read(process.dir())?.uid)
}

/// Saves a statement about a process; `None` withdraws it.
pub fn set_process(
    host: &Host,
    store: &mut StatementStore,
    id: ProcessId,
    presence: Option<Presence>,
) -> Result<Option<Effect>> {
    if !is_there(&host.kernel, id) {
        bail!("process {} has ended", id.pid);
    }
    store.set_process(id, presence)?;
    Ok((presence == Some(Presence::Foreground)).then_some(Effect::SpareProcess(id)))
}

/// After a scan: the reason why the process is not in the background in spite of the statement.
pub fn contradiction(processes: &Processes, id: ProcessId, presence: Option<Presence>) -> Option<String> {
    let found = processes.find(id).filter(|found| found.process.class != Class::Background)?;
    let class = found.process.class.name();
    (presence == Some(Presence::Background))
        .then(|| format!("process {} is {class}, which omr background does not change: {}", id.pid, found.origin))
}

/// Saves a statement about a group; `None` withdraws it.
pub fn set_group(
    world: &World,
    store: &mut StatementStore,
    path: &Path,
    presence: Option<Presence>,
) -> Result<Option<Effect>> {
    let Some(node) = world.tree.find(path) else { return Err(no_group(path)) };
    if presence == Some(Presence::Background)
        && let Some(mut assignment) = world.tree.assignment(node).cloned()
        && !assignment.apply_statement(Presence::Background, None)
    {
        let (class, why) = (assignment.class.name(), assignment.explain(path));
        bail!("{} is {class}, which omr background does not change: {why}", printable(&path.to_string_lossy()));
    }
    store.set_group(node.id, presence)?;
    let presence = presence.filter(|presence| *presence == Presence::Foreground);
    Ok(presence.map(|presence| {
        let origin = Origin::Stated(presence, None).to_string();
        Effect::SpareGroup(SparedGroup { path: path.into(), class: presence.class(), origin })
    }))
}

/// The subject of a statement for messages.
pub fn name(processes: &Processes, subject: &Subject) -> String {
    match subject {
        Subject::Process(id) => processes.name(*id),
        Subject::Group(path) if path.is_empty() => "/".into(),
        Subject::Group(path) => printable(path),
    }
}

/// All statements for `omr status`.
pub fn views(world: &World, store: &StatementStore, of: &Processes) -> Vec<StatementView> {
    let groups = store.groups().iter().filter_map(|(id, presence)| {
        let path = world.tree.path(*id)?.to_string_lossy().into_owned();
        Some((*presence, Subject::Group(path)))
    });
    let processes = store.processes().iter().map(|(id, presence)| (*presence, Subject::Process(*id)));
    let mut all: Vec<StatementView> =
        groups.chain(processes).map(|(word, subject)| StatementView { word, what: name(of, &subject) }).collect();
    all.sort_by(|a, b| (a.word.class().name(), &a.what).cmp(&(b.word.class().name(), &b.what)));
    all
}
