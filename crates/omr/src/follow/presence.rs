//! Who is there, by logind on the bus of the machine: the active sessions of people with the time
//! of their last input, and whether a program holds an idle inhibitor.
//!
//! With UPower, it also tells whether the machine hibernates by itself.
//!
//! Every answer that is missing or of another kind ends the source, and who is there is unknown
//! until logind answers again.
//!
//! Reasons: docs/design/decisions/016-presence.md.

mod session;
mod sleep;
mod terminals;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use omr_kernel::Kernel;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::{Facts, Place, Sessions};
use zbus::OwnedObjectPath;

use self::session::{Inputs, Moment, Properties, Session};
use self::sleep::CriticalBattery;
use super::logind;
use super::tell::{Looked, Tell, Told};
use crate::bus::{Connection, LOGIND, Target, Whose, flag, text};

/// logind is asked again after this time even without a signal: it sends none when somebody types
/// into a terminal. The kernel counts such input in steps of 8 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// logind is not asked again sooner, however many signals come.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn follow(kernel: &Kernel, root: &Path, tell: Tell<'_>) -> Result<()> {
    let bus = Connection::to_bus(Whose::System)?;
    logind::subscribe(&bus)?;
    let manager = "interface='org.freedesktop.DBus.Properties',path='/org/freedesktop/login1'";
    bus.subscribe(&format!("type='signal',sender='{}',{manager}", LOGIND.destination))?;
    let mut inputs = Inputs::default();
    let mut battery = CriticalBattery::default();
    loop {
        let at = Instant::now();
        let looked = Look { bus: &bus, kernel, root }.look(&mut inputs)?;
        let presence = looked.map(|(facts, hibernates)| {
            let hibernates = hibernates.or_else(|| battery.hibernates(&bus).then_some(HibernatesBy::CriticalBattery));
            Looked { facts, hibernates, at }
        });
        if !tell(Told { statements: BTreeSet::new(), presence }) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
        bus.wait(PATIENCE)?;
    }
}

/// One look at logind and at terminals.
struct Look<'a> {
    bus: &'a Connection,
    kernel: &'a Kernel,
    root: &'a Path,
}

impl Look<'_> {
    /// The facts, and logind's setting by which the machine hibernates; `None`: logind does not
    /// run.
    fn look(&self, inputs: &mut Inputs) -> Result<Option<(Facts, Option<HibernatesBy>)>> {
        let Some(sessions) = logind::sessions(self.bus)? else { return Ok(None) };
        let Some(manager) = self.bus.properties(&LOGIND)? else { return Ok(None) };
        let mut facts = Facts { inhibited: is_inhibited(&manager)?, ..Facts::default() };
        let clock = &self.kernel.clock;
        let now = Moment { monotonic: clock.monotonic(), wall: clock.wall() };
        inputs.retain(|path| sessions.iter().any(|session| session.path.as_str() == path));
        for found in &sessions {
            let Some(session) = self.session(found)? else { continue };
            let Some(idle) = inputs.idle(&found.path, &session, now) else { continue };
            let all = match session.place {
                Place::Local => &mut facts.local,
                Place::Remote => &mut facts.remote,
            };
            let idle = if all.active > 0 { all.idle.min(idle) } else { idle };
            *all = Sessions { active: all.active.saturating_add(1), idle };
        }
        Ok(Some((facts, sleep::by_logind(&manager))))
    }

    /// A session of a person, with the last input to its terminals if logind does not know it.
    /// `None`: it has ended, or is none of a person at work.
    fn session(&self, found: &logind::Found) -> Result<Option<Session>> {
        let target = Target { path: &found.path, interface: "org.freedesktop.login1.Session", ..LOGIND };
        let properties = match self.bus.properties(&target) {
            Ok(Some(properties)) => properties,
            Ok(None) => return Ok(None),
            Err(err) if logind::is_unknown(&err) => return Ok(None),
            Err(err) => return Err(err),
        };
        let Some(mut session) = Session::read(&properties)? else { return Ok(None) };
        if session.needs_terminals() {
            // A failure is no reason to forget the other sessions: this one counts as in use.
            let last = terminals::last_input(self.kernel, self.root, found.uid, &session.scope);
            session.set_terminals(last.inspect_err(|err| log::debug!("{err:#}")));
        }
        if session.is_on_console() && self.can_show_graphics(&found.seat)? {
            session.hide_input();
        }
        Ok(Some(session))
    }

    /// Returns true if a compositor can run at this seat.
    fn can_show_graphics(&self, seat: &str) -> Result<bool> {
        if seat.is_empty() {
            return Ok(false);
        }
        let Some(answer) = self.bus.ask(&LOGIND, "GetSeat", &seat)? else { return Ok(true) };
        let path: OwnedObjectPath =
            answer.body().deserialize().context("logind answers with something else than a seat")?;
        let target = Target { path: &path, interface: "org.freedesktop.login1.Seat", ..LOGIND };
        let answer = self.bus.property(&target, "CanGraphical")?;
        Ok(answer.and_then(|answer| flag(&answer)) != Some(false))
    }
}

/// Returns true if a program holds an idle inhibitor.
fn is_inhibited(manager: &Properties) -> Result<bool> {
    // BlockWeakInhibited: since systemd 257.
    let [strong, weak] = ["BlockInhibited", "BlockWeakInhibited"].map(|name| manager.get(name));
    let has_idle = |value: &zbus::OwnedVariant| {
        let what = text(value).context("logind answers with something else than a list of inhibitors")?;
        anyhow::Ok(what.split(':').any(|what| what == "idle"))
    };
    let strong = has_idle(strong.context("logind does not tell which inhibitors are held")?)?;
    Ok(strong || weak.map(has_idle).transpose()?.unwrap_or(false))
}
