//! Results that an engine for many machines has made.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Component, Path};

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_fleet::Policies;

use super::{Args, total};

/// A line of the list.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// The name of the shard.
    shard: String,
    /// The file name of its result in the directory of results.
    result: Option<String>,
    /// What is wrong with it instead.
    bad: Option<String>,
}

/// Runs the command for a list of results.
pub fn run(args: &Args, list: &Path, policies: &Policies) -> Result<Exit> {
    let file = File::open(list).with_context(|| format!("read {}", list.display()))?;
    let (mut done, mut shards) = (Vec::new(), HashSet::new());
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("read {}", list.display()))?;
        let wrong = |what: String| Exit::Usage.error(format!("{}: line {}: {what}", list.display(), number + 1));
        let line: Line = serde_json::from_str(&line).map_err(|err| wrong(err.to_string()))?;
        let result = match (line.result, line.bad) {
            (Some(result), None) if is_file_name(&result) => Ok(result),
            (Some(result), None) => return Err(wrong(format!("result is {result:?}; expected a file name"))),
            (None, Some(bad)) => Err(bad),
            _ => return Err(wrong("expected either result or bad".into())),
        };
        if !shards.insert(line.shard.clone()) {
            return Err(wrong(format!("shard {:?} is there twice", line.shard)));
        }
        done.push((line.shard, result));
    }
    if done.is_empty() {
        return Err(Exit::Usage.error(format!("{}: no shard", list.display())));
    }
    total::tell(args, policies, done)
}

fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}
