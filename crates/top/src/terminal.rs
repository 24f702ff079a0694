//! The terminal: set up, and restored whatever happens.

use std::io::{IsTerminal as _, stdin, stdout};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use crossterm::execute;
use omr_base::exit::Exit;
use omr_base::{cancel, memory};
use omr_kernel::clock;
use omr_units::Monotonic;
use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::colours::Colours;
use crate::source::{Source, spawn};
use crate::{Input, Options, State, draw};
use omr_charts::Signs;

/// The time between two questions for the status.
const TICK: Duration = Duration::from_secs(1);
/// The longest time until a key, while an answer may come at any moment.
const SOON: Duration = Duration::from_millis(50);

/// See [`crate::run`].
pub fn run(root: &Path, options: &Options) -> Result<Exit> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        let text = "omr top needs a terminal for input and output; omr status and omr history print once";
        return Err(Exit::Usage.error(text));
    }
    memory::return_soon();
    let source = Source::start(root)?;
    cancel::catch_signals();
    end_with_terminal()?;
    in_terminal(|terminal| show(terminal, &source, options)).map(|()| Exit::Done)
}

/// Sets up the terminal for `run`, and restores it whatever happens.
pub fn in_terminal(run: impl FnOnce(&mut DefaultTerminal) -> Result<()>) -> Result<()> {
    // Ratatui's hook restores the terminal after a panic; the release ends the program there. Mouse
    // capture is ours.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let _ = execute!(stdout(), DisableMouseCapture);
        hook(info);
    }));
    let mut terminal = ratatui::try_init().context("set up the terminal")?;
    let result = execute!(stdout(), EnableMouseCapture).context("set up the mouse").and_then(|()| run(&mut terminal));
    let _ = execute!(stdout(), DisableMouseCapture);
    ratatui::try_restore().context("restore the terminal")?;
    result
}

/// Ends the program when its terminal goes away. Crossterm would read from that terminal for ever.
#[expect(clippy::exit, reason = "crossterm's loop has no other end, and nothing is left to restore")]
fn end_with_terminal() -> Result<()> {
    spawn("omr-top-hangup", || {
        let input = stdin();
        let mut watched = PollFd::new(&input, PollFlags::empty());
        // A terminal that cannot be watched is no reason to end.
        while matches!(poll(std::slice::from_mut(&mut watched), None), Ok(0) | Err(Errno::INTR)) {}
        if watched.revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            std::process::exit(1);
        }
    })
}

fn show(terminal: &mut DefaultTerminal, source: &Source, options: &Options) -> Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let size = terminal.size().context("read the size of the terminal")?;
    let now = || clock::read_wall().as_secs();
    let mut state =
        State::new(options, Colours::detect(variable), Signs::detect(variable), (size.width, size.height), now());
    let mut tick = Monotonic::default();
    while !state.is_over() && cancel::signal().is_none() {
        let mut inputs = Vec::new();
        if clock::read_monotonic() >= tick {
            tick = clock::read_monotonic() + TICK;
            inputs.push(Input::Tick(now()));
        }
        inputs.extend(std::iter::from_fn(|| source.answer()).map(Input::Answer));
        let mut wait = tick.since(clock::read_monotonic());
        if !inputs.is_empty() {
            wait = Duration::ZERO;
        } else if state.is_waiting() {
            wait = wait.min(SOON);
        }
        // All keys that wait are taken in before the next drawing.
        while event::poll(wait).context("read the terminal")? {
            inputs.push(Input::Terminal(event::read().context("read the terminal")?));
            wait = Duration::ZERO;
        }
        if inputs.is_empty() {
            continue;
        }
        for input in inputs {
            state.update(input).into_iter().for_each(|ask| source.ask(ask));
        }
        terminal.draw(|frame| draw(&state, frame)).context("draw")?;
    }
    Ok(())
}
