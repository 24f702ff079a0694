//! The figures of all shards together.

use anyhow::{Result, bail};
use omr_base::exit::Exit;
use omr_base::storage::write_as;
use omr_base::text::printable;
use omr_fleet::Policies;
use omr_fleet::summary::Summary;

use super::{Args, MODE, read_result, table};

/// The file with the figures of all shards, beside the results.
const TOTAL: &str = "total.json";
/// Bad shards that are named in the terminal; all of them are in [`TOTAL`].
const NAMED: usize = 10;

/// A shard that was replayed: its name, and the file name of its result or what is wrong with it.
pub type Done = (String, Result<String, String>);

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct BadShard {
    shard: String,
    why: String,
}

/// Adds up the results, writes [`TOTAL`] and prints the table.
pub fn tell(args: &Args, policies: &Policies, mut done: Vec<Done>) -> Result<Exit> {
    done.sort();
    let (mut summary, mut bad) = (Summary::new(policies), Vec::new());
    for (shard, result) in done {
        match result {
            Ok(file) => {
                let path = args.out.join(file);
                let Some(outcome) = read_result(&path, policies) else {
                    bail!("{}: the result is gone, or it is of other policies or another program", path.display());
                };
                summary.add(&outcome);
            }
            Err(why) => bad.push(BadShard { shard, why }),
        }
    }
    let told = summary.told();
    let mut total = serde_json::to_value(&told)?;
    if let Some(total) = total.as_object_mut() {
        total.insert("bad".into(), serde_json::to_value(&bad)?);
    }
    let path = args.out.join(TOTAL);
    write_as(&path, &serde_json::to_vec_pretty(&total)?, MODE)?;
    for BadShard { shard, why } in bad.iter().take(NAMED) {
        eprintln!("omr: bad shard: {}: {}", printable(shard), printable(why));
    }
    if bad.len() > NAMED {
        eprintln!("omr: {} more bad shards; {} names all", bad.len() - NAMED, path.display());
    }
    if args.json {
        outln!("{total}");
    } else {
        outln!("{}", table::text(&told, bad.len()));
    }
    Ok(if bad.is_empty() { Exit::Done } else { Exit::Partial })
}
