//! `omr record`: a machine's recording, for a fleet.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use hmac_sha256::HMAC;
use omr_base::exit::Exit;
use omr_base::{paths, when};
use omr_history::days::Days;
use omr_history::{self as history, Sample};

use super::history::export::{self, Form};

/// The shortest and the longest key for names, in bytes.
const KEY: Range<usize> = 16..4097;

/// Hands over what this machine has recorded.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write what was recorded of all groups to a file, for omr whatif on another machine
    Export(Export),
}

#[derive(Debug, clap::Args)]
struct Export {
    /// The file: Parquet, compressed with zstd; it appears once it is complete
    #[arg(value_name = "FILE.parquet")]
    file: PathBuf,

    /// Only samples since this time, e.g. 7d (ago) or 2026-11-21T14:00:00Z
    #[arg(long, value_parser = when::parse, value_name = "TIME", default_value = "7d")]
    since: Duration,

    /// Only samples until this time; without it, until now
    #[arg(long, value_parser = when::parse, value_name = "TIME")]
    until: Option<Duration>,

    /// Replace each name in a group's path by a hash with the key in this file, of 16 to 4,096 bytes
    ///
    /// The same key gives the same name the same hash on all machines. The tree stays as it is.
    #[arg(long, value_name = "KEY")]
    hash_names: Option<PathBuf>,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    match &args.command {
        Command::Export(args) => export(root, args),
    }
}

fn export(root: &Path, args: &Export) -> Result<Exit> {
    let key = args.hash_names.as_deref().map(read_key).transpose()?;
    let mut samples = history::read(&paths::history(root), args.since..args.until.unwrap_or(Duration::MAX), |_| true)?;
    let days = Days::read(&paths::state_dir(root))?;
    let hashed = samples.by_ref().map(|sample| match &key {
        Some(key) => with_hashed_names(sample, key),
        None => sample,
    });
    let rows = export::write(&args.file, hashed, &days, Form { is_small: true, ..Form::default() })?;
    samples.skipped().iter().for_each(|skipped| eprintln!("omr: {skipped}"));
    if rows == 0 && omr_charts::is_empty(root)? {
        eprintln!("omr: {}", omr_charts::NO_HISTORY);
    }
    outln!("{rows} rows in {}", args.file.display());
    Ok(Exit::Done)
}

fn read_key(path: &Path) -> Result<Vec<u8>> {
    let key = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    if !KEY.contains(&key.len()) {
        let found = key.len();
        return Err(Exit::Usage.error(format!("{}: {found} bytes; expected a key of 16 to 4,096", path.display())));
    }
    Ok(key)
}

/// The sample with a hash for each name in the path of its group.
fn with_hashed_names(mut sample: Sample, key: &[u8]) -> Sample {
    let hashed: PathBuf = sample.group.iter().map(|name| hash(key, name.as_encoded_bytes())).collect();
    sample.group = hashed.into();
    sample
}

/// Twelve digits: names of a fleet hardly ever have the same ones.
fn hash(key: &[u8], name: &[u8]) -> String {
    HMAC::mac(name, key).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
