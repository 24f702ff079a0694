//! logind: the sessions that are active, on the bus of the machine.
//!
//! A session is active when its user can see it, or is connected to it from elsewhere. Desktops
//! tell logind when the user is away (idle) or has locked the session. A session on a terminal is
//! idle when nothing was typed for half an hour (`IdleActionSec=`), and logind sends no signal when
//! that changes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_policy::statement::{Presence, Statement, Subject};
use zbus::OwnedObjectPath;

use super::tell::Tell;
use crate::bus::{Connection, LOGIND, Refused, Target, Whose, flag};

/// logind is asked again after this time even without a signal.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn follow(tell: Tell<'_>) -> Result<()> {
    let bus = Connection::to_bus(Whose::System)?;
    subscribe(&bus)?;
    while tell(present(&bus)?.into()) {
        bus.wait(PATIENCE)?;
    }
    Ok(())
}

/// Has the bus send logind's signals about sessions.
pub(super) fn subscribe(bus: &Connection) -> Result<()> {
    let name = LOGIND.destination;
    for what in [
        "interface='org.freedesktop.login1.Manager',member='SessionNew'",
        "interface='org.freedesktop.login1.Manager',member='SessionRemoved'",
        "interface='org.freedesktop.DBus.Properties',path_namespace='/org/freedesktop/login1/session'",
    ] {
        bus.subscribe(&format!("type='signal',sender='{name}',{what}"))?;
    }
    bus.subscribe(&format!("type='signal',interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{name}'"))
}

/// A session that logind knows.
pub(super) struct Found {
    /// Its user.
    pub uid: u32,
    /// The name of its seat; empty: it has none.
    pub seat: String,
    /// Its object.
    pub path: OwnedObjectPath,
}

/// All sessions. `None`: logind does not run.
pub(super) fn sessions(bus: &Connection) -> Result<Option<Vec<Found>>> {
    let Some(answer) = bus.ask(&LOGIND, "ListSessions", &())? else { return Ok(None) };
    // The session's id, the user's id and name, the seat, the session's object.
    let sessions: Vec<(String, u32, String, String, OwnedObjectPath)> =
        answer.body().deserialize().context("logind answers with something else than a list of sessions")?;
    Ok(Some(sessions.into_iter().map(|(_, uid, _, seat, path)| Found { uid, seat, path }).collect()))
}

/// The slices of the users who are at the machine.
fn present(bus: &Connection) -> Result<BTreeSet<Statement>> {
    let mut present = BTreeSet::new();
    for Found { uid, path, .. } in sessions(bus)?.into_iter().flatten() {
        if is_used(bus, &path)? {
            let group = format!("user.slice/user-{uid}.slice");
            present.insert(Statement { presence: Presence::Present, subject: Subject::Group(group) });
        }
    }
    Ok(present)
}

/// Returns true if a user may be at this session. A session that has ended has no user. A missing
/// property does not count as absence.
fn is_used(bus: &Connection, path: &str) -> Result<bool> {
    let session = Target { path, interface: "org.freedesktop.login1.Session", ..LOGIND };
    let is = |name: &str| match bus.property(&session, name) {
        Ok(Some(value)) => Ok(flag(&value)),
        Ok(None) => Ok(Some(false)),
        Err(err) if is_unknown(&err) => Ok(None),
        Err(err) => Err(err),
    };
    let Some(active) = is("Active")? else { return Ok(false) };
    Ok(active && is("IdleHint")? != Some(true) && is("LockedHint")? != Some(true))
}

/// Returns true if logind knows no such session, or no such property.
pub(super) fn is_unknown(err: &anyhow::Error) -> bool {
    let name = err.downcast_ref::<Refused>().map_or("", |refused| refused.name.as_str());
    name.starts_with("org.freedesktop.DBus.Error.Unknown") || name.contains("NoSuchSession")
}
