//! GameMode: games ask it, on the bus of their user's session, for more of the machine, and are registered until they
//! end. It is a game's launcher that does so; what is said of a process counts for its whole group.

use std::time::Duration;

use anyhow::{Context, Result};
use omr_kernel::Kernel;

use super::{Tell, in_foreground};
use crate::bus::{Connection, Message, Reply, Target, Whose};

const NAME: &str = "com.feralinteractive.GameMode";

const GAMEMODE: Target<'static> = Target { destination: NAME, path: "/com/feralinteractive/GameMode", interface: NAME };

/// Asked again after this time though no signal came.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn follow(kernel: &Kernel, tell: Tell<'_>) -> Result<()> {
    let mut bus = Connection::to_bus(Whose::User)?;
    bus.subscribe(&format!("type='signal',interface='{NAME}'"))?;
    bus.subscribe(&format!("type='signal',interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{NAME}'"))?;
    while tell(in_foreground(kernel, games(&mut bus)?)) {
        bus.wait(PATIENCE)?;
    }
    Ok(())
}

/// The processes that are registered; where GameMode does not run, none. It is not started for the question.
fn games(bus: &mut Connection) -> Result<Vec<u32>> {
    match bus.ask(&GAMEMODE, "ListGames", "", &Message::default())? {
        Reply::Nobody => Ok(Vec::new()),
        Reply::Answer(answer) => {
            let games = answer.list("a(io)", |game| Some((game.number()?, game.string()?)));
            let games = games.context("GameMode answers with something else than a list of games")?;
            Ok(games.into_iter().map(|(pid, _)| pid).collect())
        }
    }
}
