//! GameMode: games register with it, on the bus of their user's session, for as long as they run.
//! Mostly the launcher of a game registers; a statement about a process counts for its whole group.

use std::time::Duration;

use anyhow::{Context, Result};
use omr_kernel::Kernel;
use zbus::OwnedObjectPath;

use super::tell::{Tell, in_foreground};
use crate::bus::{Connection, Target, Whose};

const NAME: &str = "com.feralinteractive.GameMode";

const GAMEMODE: Target<'static> = Target { destination: NAME, path: "/com/feralinteractive/GameMode", interface: NAME };

/// GameMode is asked again after this time even without a signal.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn follow(kernel: &Kernel, tell: Tell<'_>) -> Result<()> {
    let bus = Connection::to_bus(Whose::User)?;
    bus.subscribe(&format!("type='signal',interface='{NAME}'"))?;
    bus.subscribe(&format!("type='signal',interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{NAME}'"))?;
    while tell(in_foreground(kernel, games(&bus)?).into()) {
        bus.wait(PATIENCE)?;
    }
    Ok(())
}

/// The processes that are registered; none where GameMode does not run. The question does not start
/// it.
fn games(bus: &Connection) -> Result<Vec<u32>> {
    let Some(answer) = bus.ask(&GAMEMODE, "ListGames", &())? else { return Ok(Vec::new()) };
    // The process and the object of each.
    let games: Vec<(i32, OwnedObjectPath)> =
        answer.body().deserialize().context("GameMode answers with something else than a list of games")?;
    Ok(games.into_iter().filter_map(|(pid, _)| pid.try_into().ok()).collect())
}
