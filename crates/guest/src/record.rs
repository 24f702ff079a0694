//! Memory figures over time, for the plots.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, json};

use crate::amount::meminfo;
use crate::{clock, place};

const FIELDS: [&str; 8] =
    ["MemTotal", "MemFree", "Cached", "AnonPages", "SwapTotal", "SwapFree", "SwapCached", "Writeback"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time between two lines
    #[arg(long, value_parser = clock::parse_span, default_value = "1s")]
    every: Duration,
    /// Groups whose memory.current is recorded as well
    groups: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    loop {
        let mut line = Map::new();
        line.insert("monotonic_ns".into(), clock::monotonic().into());
        for field in FIELDS {
            line.insert(field.into(), meminfo(field)?.into());
        }
        let groups: Map<_, _> = args
            .groups
            .iter()
            .filter_map(|group| {
                let current = fs::read_to_string(place::directory(group).join("memory.current")).ok()?;
                Some((group.display().to_string(), current.trim().parse::<u64>().ok()?.into()))
            })
            .collect();
        line.insert("groups".into(), groups.into());
        println!("{}", json!(line));
        clock::sleep(args.every);
    }
}
