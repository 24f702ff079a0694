//! `omr web`: groups and charts in the browser.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::{storage, when};
use omr_kernel::Kernel;
use omr_machine::statements;
use omr_web::{Listen, Options, Report, parse_host};

/// Shows groups and eight charts in the browser, now or in the past, as omr top does in the terminal.
/// It changes nothing.
///
/// Without --listen it serves the socket that systemd has opened (omr-web.socket:
/// /run/omr-web/web.sock), to which root and members of the group omr can connect, also by ssh -L.
/// With --listen 127.0.0.1:9099 it prints an address that works once, in one browser. With --export
/// it writes one file and ends.
///
/// Exit codes: 0 done, or ended by a signal; 1 the address is taken, or a file cannot be written; 2 a
/// mistake on the command line, in the token's file or in the configuration, or no place to listen.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// With --export: a control group that gets charts in any case
    #[arg(value_name = "GROUP", requires = "export")]
    group: Option<PathBuf>,

    /// Listen on this IP address and port, or on a Unix socket at this absolute path
    #[arg(long, value_name = "ADDRESS", conflicts_with = "export")]
    listen: Option<Listen>,

    /// Ask for the token in this file: as "Authorization: Bearer TOKEN", or once as /?token=TOKEN in a
    /// browser. Needed where others can reach the address
    #[arg(long, value_name = "FILE", conflicts_with = "export")]
    token_file: Option<PathBuf>,

    /// Another name of this machine that browsers may ask for; can be given several times
    #[arg(long, value_name = "NAME", value_parser = parse_host, conflicts_with = "export")]
    host: Vec<String>,

    /// End when nobody was connected for this time; systemd starts it again
    #[arg(long, value_name = "TIME", value_parser = when::parse_length, conflicts_with = "export")]
    idle: Option<Duration>,

    /// Write the page with its data into one file, which needs no server; - is standard output
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,

    /// With --export: the end of the charts, e.g. 2h (ago) or 2026-11-21T14:00:00Z
    #[arg(long, value_parser = when::parse, value_name = "TIME", requires = "export")]
    at: Option<Duration>,

    /// With --export: the length of the charts, e.g. 1h or 7d
    #[arg(long, value_parser = when::parse_length, value_name = "TIME", default_value = "2h")]
    window: Duration,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let objective = omr_config::load_or_refuse(root, None)?.policy.slo;
    if let Some(file) = &args.export {
        let group = match &args.group {
            Some(group) => statements::group_name(Kernel::open(root)?.group_path(group)),
            None => String::new(),
        };
        let version = env!("CARGO_PKG_VERSION");
        let report = Report { group, at: args.at, span: args.window, version, objective };
        write(file, omr_web::report(root, &report)?.as_bytes())?;
        return Ok(Exit::Done);
    }
    let options = Options {
        listen: args.listen.clone(),
        token_file: args.token_file.clone(),
        hosts: args.host.clone(),
        idle: args.idle,
        objective,
    };
    omr_web::run(root, &options, |address| {
        outln!("{address}");
        Ok(())
    })
}

/// Writes a report, which tells much about a machine: a new file is for its owner only.
fn write(file: &Path, text: &[u8]) -> Result<()> {
    if file == Path::new("-") {
        return std::io::stdout().write_all(text).context("write to standard output");
    }
    // A name alone is in this directory.
    let file = &Path::new(".").join(file);
    let mode = match std::fs::symlink_metadata(file) {
        Ok(there) if there.is_file() => Some(there.permissions().mode() & 0o777),
        Ok(_) => {
            let text = format!("--export {}: exists and is no regular file; choose another name", file.display());
            return Err(Exit::Failed.error(text));
        }
        Err(err) if err.kind() == ErrorKind::NotFound => None,
        Err(err) => return Err(err).with_context(|| format!("--export {}", file.display())),
    };
    storage::write_as(file, text, mode.unwrap_or(0o600))
}
