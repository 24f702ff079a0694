//! logind: whose session is active, on the bus of the machine.
//!
//! A session is active when its user can see it, or is connected to it from elsewhere. Desktops say when its user is
//! away (idle) or has locked it; of a session on a terminal logind says so when nothing was typed for half an hour
//! (`IdleActionSec=`), and tells nobody when that changes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_policy::statement::{Presence, Statement, Subject};

use super::Tell;
use crate::bus::{Connection, LOGIND, Message, Reply, Target, Whose};

/// Asked again after this time though no signal came.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn follow(tell: Tell<'_>) -> Result<()> {
    let mut bus = Connection::to_bus(Whose::System)?;
    let name = LOGIND.destination;
    for what in [
        "interface='org.freedesktop.login1.Manager',member='SessionNew'",
        "interface='org.freedesktop.login1.Manager',member='SessionRemoved'",
        "interface='org.freedesktop.DBus.Properties',path_namespace='/org/freedesktop/login1/session'",
    ] {
        bus.subscribe(&format!("type='signal',sender='{name}',{what}"))?;
    }
    bus.subscribe(&format!("type='signal',interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{name}'"))?;
    while tell(present(&mut bus)?) {
        bus.wait(PATIENCE)?;
    }
    Ok(())
}

/// The slices of users who are at the machine.
fn present(bus: &mut Connection) -> Result<BTreeSet<Statement>> {
    let Reply::Answer(answer) = bus.ask(&LOGIND, "ListSessions", "", &Message::default())? else {
        return Ok(BTreeSet::new());
    };
    // Its id, the user's id and name, the seat, the session's object.
    let sessions = answer.list("a(susso)", |session| {
        let (_, uid, _, _) = (session.string()?, session.number()?, session.string()?, session.string()?);
        Some((uid, session.string()?))
    });
    let sessions = sessions.context("logind answers with something else than a list of sessions")?;
    let mut present = BTreeSet::new();
    for (uid, path) in sessions {
        if is_used(bus, &path)? {
            let group = format!("user.slice/user-{uid}.slice");
            present.insert(Statement { presence: Presence::Present, subject: Subject::Group(group) });
        }
    }
    Ok(present)
}

/// Whether somebody may be at this session. One that has ended by now has nobody; a word that is missing is none for
/// absence.
fn is_used(bus: &mut Connection, path: &str) -> Result<bool> {
    let session = Target { path, interface: "org.freedesktop.login1.Session", ..LOGIND };
    let mut is = |name: &str| -> Result<Option<bool>> {
        Ok(match bus.property(&session, name) {
            Ok(Reply::Answer(answer)) => answer.flag(),
            Ok(Reply::Nobody) => Some(false),
            Err(err) if is_unknown(&err) => None,
            Err(err) => return Err(err),
        })
    };
    let Some(active) = is("Active")? else { return Ok(false) };
    Ok(active && is("IdleHint")? != Some(true) && is("LockedHint")? != Some(true))
}

/// logind knows no such session, or no such property.
fn is_unknown(err: &anyhow::Error) -> bool {
    let text = format!("{err:#}");
    text.contains("org.freedesktop.DBus.Error.Unknown") || text.contains("NoSuchSession")
}
