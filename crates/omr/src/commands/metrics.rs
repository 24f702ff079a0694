//! `omr metrics`: metrics for Prometheus.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::storage::write_for_all;
use omr_base::{paths, text::printable};
use omr_control::client::Client;
use omr_control::status::Status;
use omr_kernel::clock;
use omr_metrics::{Format, MOST_GROUPS, Options, Records};

/// Prints metrics as OpenMetrics text, or writes them to a file for the textfile collector of
/// node_exporter. Without the daemon the metrics say so (omr_up 0) and tell what the history knows.
/// docs/use/metrics.md lists all metrics.
#[derive(Debug, clap::Args)]
#[command(long_about)]
pub struct Args {
    /// Write this file instead, in the older text format of Prometheus; the name ends with .prom
    ///
    /// The file appears complete, and every user may read it.
    #[arg(long, value_name = "FILE.prom")]
    textfile: Option<PathBuf>,

    /// The number of groups with metrics of their own, from 0 to 200: the largest ones; the others
    /// are one group, "other"
    #[arg(long, value_name = "N", default_value_t = Options::default().groups, value_parser = parse_groups)]
    groups: usize,
}

fn parse_groups(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= MOST_GROUPS);
    number.ok_or_else(|| format!("expected a number from 0 to {MOST_GROUPS}"))
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let format = if args.textfile.is_some() { Format::Prometheus } else { Format::OpenMetrics };
    if let Some(file) = &args.textfile
        && file.extension().is_none_or(|extension| extension != "prom")
    {
        let message = format!("{}: node_exporter reads only files whose name ends with .prom", file.display());
        return Err(Exit::Usage.error(message));
    }
    let status = status(root);
    let now = clock::read_wall();
    let records = Records::read(root, now);
    for why in &records.unreadable {
        eprintln!("omr: {}", printable(why));
    }
    let text = omr_metrics::text(status.as_ref(), &records, now, Options { groups: args.groups, format });
    match &args.textfile {
        Some(file) => {
            // A name without a directory is in this one.
            let is_bare = file.parent().is_some_and(|dir| dir.as_os_str().is_empty());
            let file = if is_bare { &Path::new(".").join(file) } else { file };
            write_for_all(file, text.as_bytes())?;
        }
        None => io::Write::write_all(&mut io::stdout(), text.as_bytes()).context("write to standard output")?,
    }
    Ok(Exit::Done)
}

/// Asks the daemon; `None`: it does not answer, or not this user.
fn status(root: &Path) -> Option<Status> {
    match Client::new(paths::socket(root)).status() {
        Ok(status) => Some(status),
        Err(err) => {
            eprintln!("omr: {}", printable(&format!("{err:#}")));
            None
        }
    }
}
