//! The server of `omr web`: groups and charts in the browser, now and at any time of the history. It
//! changes nothing.
//!
//! * [`listen`]: the sockets, by systemd or by address.
//! * [`guard`]: who may ask. Each request passes it before anything else.
//! * [`server`]: connections and their limits. Hyper reads and writes HTTP.
//! * [`routes`]: what is asked for, and the answers.
//! * [`live`]: one thread asks the daemon for all clients, and each status goes to all of them.
//! * [`records`]: one thread reads the history and the ledger, one question at a time.
//! * [`report`]: the same page as one file.

#![deny(clippy::indexing_slicing)]

mod answer;
mod guard;
mod listen;
mod live;
mod page;
mod question;
mod records;
mod report;
mod routes;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use omr_policy::Objective;

pub use guard::parse_host;
pub use listen::Listen;
pub use report::{Report, report};
pub use server::run;

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; `None`: on the sockets that systemd has opened.
    pub listen: Option<Listen>,
    /// The file of the token; `None`: a random token in an address that works once.
    pub token_file: Option<PathBuf>,
    /// Other names of this machine that a browser may ask for.
    pub hosts: Vec<String>,
    /// End after this time without a connection; `None`: never.
    pub idle: Option<Duration>,
    /// What the configuration demands of thresholds.
    pub objective: Objective,
}

/// A daemon that has not answered for this time is said to hang.
const HANGS: Duration = Duration::from_secs(3);

/// An error in words.
fn words<T>(result: anyhow::Result<T>) -> Result<T, String> {
    result.map_err(|err| format!("{err:#}"))
}
