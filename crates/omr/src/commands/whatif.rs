//! `omr whatif`: replays recorded weeks of machines through the daemon's policy.

mod local;
mod merge;
mod table;
mod total;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_base::storage::write_as;
use omr_fleet::shard::{Shard, Unusable};
use omr_fleet::{Outcome, Policies, outcome, replay};

use super::options::read_file;

/// The largest shard.
const LARGEST: u64 = 16 << 30;
/// The mode of results: whoever may read the directory.
const MODE: u32 = 0o644;

/// Replays recorded weeks of machines through the policy that the daemon runs, for many policies in
/// one pass: how much memory each would have held out, and what would have come back. It reads files
/// and writes results; it changes nothing on this machine.
///
/// The policies are a JSON file:
///
///   {"swap": "memory", "policies": [{"name": "careful", "slo": {"kept": "99%", "shortest": "15min"}}]}
///
/// "slo" has keys of [slo] in omr.toml. "swap" is memory (zram, zswap) or disk. The daemon's defaults
/// are always compared, as "default".
#[derive(Debug, clap::Args)]
#[command(long_about, group = clap::ArgGroup::new("what").required(true).args(["shard", "local", "merge"]))]
pub struct Args {
    /// Replay this file: the history of one machine, from omr record export
    ///
    /// The result is a file in the directory of --out, named by the hash of the shard, the policies and
    /// this program's version. One that is there is not made again. Exit code 2: the shard is bad, and
    /// to try again is in vain.
    #[arg(long, value_name = "FILE.parquet")]
    shard: Option<PathBuf>,

    /// Replay all files *.parquet below this directory, on all CPUs, and print a table
    ///
    /// It goes on where it was killed. A bad shard is named and counted, and left out.
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,

    /// Print the table of results that were made elsewhere: a file with a line of JSON for each shard
    ///
    /// {"shard": "week=0/machine=3.parquet", "result": "0a1b….json"} with a file in the directory of
    /// --out, or {"shard": …, "bad": "row 8: …"}.
    #[arg(long, value_name = "FILE.jsonl")]
    merge: Option<PathBuf>,

    /// The policies to compare
    #[arg(long, value_name = "FILE.json")]
    policies: PathBuf,

    /// The directory of the results; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print the table as JSON
    #[arg(long, conflicts_with = "shard")]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Exit> {
    let policies = read_file(&args.policies, Policies::parse)?;
    fs::create_dir_all(&args.out).with_context(|| format!("create {}", args.out.display()))?;
    match (&args.shard, &args.local, &args.merge) {
        (Some(shard), ..) => {
            let result = path_of(shard, &policies, &args.out)?;
            if read_result(&result, &policies).is_none() {
                let outcome = outcome_of(shard, &policies, &result)?;
                write_as(&result, &serde_json::to_vec(&outcome)?, MODE)?;
            }
            outln!("{}", result.display());
            Ok(Exit::Done)
        }
        (None, Some(dir), _) => local::run(args, dir, &policies),
        (None, None, Some(list)) => merge::run(args, list, &policies),
        (None, None, None) => Err(Exit::Usage.error("expected --shard, --local or --merge")),
    }
}

/// The path of a shard's result.
fn path_of(shard: &Path, policies: &Policies, out: &Path) -> Result<PathBuf> {
    let name = outcome::name(&digest(shard)?, policies);
    Ok(out.join(format!("{name}.json")))
}

/// The hash of a file.
fn digest(path: &Path) -> Result<[u8; 32]> {
    let named = || path.display().to_string();
    let file = fs::File::open(path).with_context(named)?;
    let metadata = file.metadata().with_context(named)?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Err(Exit::Usage.error(format!("{}: expected a file of at most {} GiB", named(), LARGEST >> 30)));
    }
    outcome::digest(file).with_context(named)
}

fn read_result(path: &Path, policies: &Policies) -> Option<Outcome> {
    Outcome::parse(&fs::read(path).ok()?, policies)
}

fn outcome_of(shard: &Path, policies: &Policies, result: &Path) -> Result<Outcome> {
    let name = result.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let replayed = Shard::open(shard).and_then(|shard| replay(&shard, policies, name));
    replayed.map_err(|err| match err {
        Unusable::Bad(text) => Exit::Usage.error(text),
        Unusable::Unread(text) => anyhow::Error::msg(text),
    })
}
