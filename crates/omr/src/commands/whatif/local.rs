//! All shards of a directory, each in a process of its own: one that is damaged in a way that ends
//! the process, or takes all memory, is one bad shard, as on an engine for many machines.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail};
use omr_base::exit::Exit;
use omr_fleet::Policies;

use super::super::terminal::progress;
use super::{Args, path_of, read_result, total};

/// Runs the command for a directory.
pub fn run(args: &Args, dir: &Path, policies: &Policies) -> Result<Exit> {
    let mut shards = Vec::new();
    find(dir, &mut shards)?;
    shards.sort();
    if shards.is_empty() {
        return Err(Exit::Usage.error(format!("{}: no file *.parquet there", dir.display())));
    }
    let (done, failed) = (Mutex::new(Vec::new()), Mutex::new(None));
    let next = AtomicUsize::new(0);
    let progress = progress(shards.len() as u64, "shards")?;
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match one(args, shard, policies) {
                        Ok(result) => done.lock().unwrap_or_else(PoisonError::into_inner).push((shard, result)),
                        Err(err) => {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(err);
                            return;
                        }
                    }
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    // A full disk, say: what was done is there, and the same command goes on.
    if let Some(err) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(err);
    }
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let name = |shard: &Path| shard.strip_prefix(dir).unwrap_or(shard).display().to_string();
    total::tell(args, policies, done.into_iter().map(|(shard, result)| (name(shard), result)).collect())
}

/// All shards below a directory.
fn find(dir: &Path, shards: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry.with_context(|| format!("read {}", dir.display()))?;
        // Links are not followed, so there is no circle.
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() {
            find(&path, shards)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "parquet") {
            shards.push(path);
        }
    }
    Ok(())
}

/// Replays a shard in a process of its own, if that was not done before. Returns the file name of
/// its result, or what is wrong with the shard.
fn one(args: &Args, shard: &Path, policies: &Policies) -> Result<Result<String, String>> {
    let without_name = |why: &str| why.strip_prefix(&format!("{}: ", shard.display())).unwrap_or(why).to_owned();
    let path = match path_of(shard, policies, &args.out) {
        Err(err) if Exit::of(&err) == Exit::Usage => return Ok(Err(without_name(&format!("{err:#}")))),
        path => path?,
    };
    let result = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if read_result(&path, policies).is_some() {
        return Ok(Ok(result));
    }
    let mut command = Command::new(env::current_exe()?);
    command.arg("whatif").arg("--shard").arg(shard).arg("--policies").arg(&args.policies).arg("--out").arg(&args.out);
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
    if ended.status.success() {
        return Ok(Ok(result));
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().next_back().unwrap_or_default();
    let why = without_name(last.strip_prefix("omr: ").unwrap_or(last));
    match ended.status.code() {
        // The shard is bad.
        Some(2) => Ok(Err(why)),
        Some(_) => bail!("{why}"),
        None => Ok(Err(format!("its replay was ended: {}", ended.status))),
    }
}
