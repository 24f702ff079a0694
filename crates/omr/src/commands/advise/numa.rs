//! `omr advise --numa`: the nodes of the memory that a group uses, and better places for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use omr_actuate::Live;
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_engine::aging;
use omr_engine::aging::observe::Observer;
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_kernel::numa::{self, Nodes};
use omr_machine::groups::tree::no_group;
use omr_policy::numa::{Hint, OnNode, advise};
use omr_policy::short;
use omr_units::Bytes;
use serde::Serialize;

use super::args::Args;

/// Groups with less memory are left out.
const SMALLEST: Bytes = Bytes::mib(16);

#[derive(Serialize)]
struct Summary {
    /// The nodes of each tier, fastest first.
    tiers: Vec<Vec<u32>>,
    /// Reclaim moves memory to slower tiers first; `None`: unknown.
    demotion: Option<bool>,
    look_seconds: f64,
    groups: Vec<GroupOnNodes>,
}

#[derive(Serialize)]
struct GroupOnNodes {
    group: String,
    nodes: Vec<Row>,
    hints: Vec<Hint>,
}

/// A group, with all groups below it, on one node.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    seen: OnNode,
    /// Anonymous and shared memory there, by memory.numa_stat.
    memory: Bytes,
    /// Page cache; its use is unknown.
    page_cache: Bytes,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let nodes = Nodes::read(&kernel)?;
    aging::require_mglru(&kernel)?;
    cancel::catch_signals();
    let stop = Flag::default();
    let mut observer = Observer::new(&kernel);
    let tops = match args.groups.as_slice() {
        [] => vec![PathBuf::new()],
        named => named.iter().map(|group| kernel.group_path(group).to_path_buf()).collect(),
    };
    let hierarchy = kernel.cgroup()?;
    for path in &tops {
        let top =
            Group::open(hierarchy, path).map_err(|err| if err.is_gone() { no_group(path) } else { err.into() })?;
        observer.add_tree(&top)?;
    }
    observer.age_over_window(&mut Live, args.look, &stop, |_| Ok(()))?;
    if stop.is_set() {
        return Err(Exit::Partial.error("stopped before use was measured"));
    }
    // The named groups, or each group with memory that has no group below it.
    let named = !args.groups.is_empty();
    let all: Vec<&Path> = observer.groups().iter().map(|group| group.path.as_path()).collect();
    let is_leaf = |path: &Path| !all.iter().any(|other| *other != path && other.starts_with(path));
    let chosen = all.iter().filter(|path| if named { tops.iter().any(|top| top == **path) } else { is_leaf(path) });
    let mut groups: Vec<GroupOnNodes> =
        chosen.filter_map(|path| read_group(&kernel, &nodes, &observer, path, args)).collect();
    let size = |group: &GroupOnNodes| group.nodes.iter().map(|row| row.memory).sum::<Bytes>();
    groups.retain(|group| named || size(group) >= SMALLEST);
    groups.sort_by_key(|group| (std::cmp::Reverse(size(group)), group.group.clone()));
    let summary =
        Summary { tiers: nodes.tiers.clone(), demotion: nodes.demotion, look_seconds: args.look.as_secs_f64(), groups };
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&summary)?),
        false => print(&summary, args)?,
    }
    Ok(Exit::Done)
}

/// Returns the figures of a group; `None`: the group is gone.
fn read_group(
    kernel: &Kernel,
    nodes: &Nodes,
    observer: &Observer<'_>,
    path: &Path,
    args: &Args,
) -> Option<GroupOnNodes> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let row = |node: u32| Row {
        seen: OnNode { node, tier: nodes.tier(node), ..OnNode::default() },
        memory: Bytes::ZERO,
        page_cache: Bytes::ZERO,
    };
    for node in &nodes.with_memory {
        rows.insert(*node, row(*node));
    }
    let group = Group::open(kernel.cgroup().ok()?, path).ok()?;
    for held in numa::read_group(&group).ok()? {
        let row = rows.entry(held.node).or_insert_with(|| row(held.node));
        row.memory = held.anon + held.shmem;
        row.page_cache = held.file - held.shmem;
    }
    for part in observer.groups().iter().filter(|group| group.path.starts_with(path)).flat_map(|group| group.nodes()) {
        let seen = &mut rows.entry(part.node).or_insert_with(|| row(part.node)).seen;
        let unused = part.idle(args.look).least;
        seen.unused += unused;
        seen.used += part.memory() - unused;
    }
    let seen: Vec<OnNode> = rows.values().map(|row| row.seen).collect();
    Some(GroupOnNodes {
        group: format!("/{}", path.to_string_lossy()),
        nodes: rows.into_values().collect(),
        hints: advise(&seen, nodes.demotes(), SMALLEST),
    })
}

fn print(summary: &Summary, args: &Args) -> Result<()> {
    if summary.groups.is_empty() {
        outln!("no group has {SMALLEST} or more");
    }
    for group in &summary.groups {
        outln!("{}", printable(&group.group));
        outln!(
            "  {:<6}{:<6}{:>10}  {:>18}  {:>10}",
            "NODE",
            "TIER",
            "MEMORY",
            format!("USED IN {}", short(args.look)),
            "CACHE"
        );
        for Row { seen, memory, page_cache } in &group.nodes {
            let tier = seen.tier.map_or_else(|| "?".to_owned(), |tier| (tier + 1).to_string());
            outln!(
                "  {:<6}{tier:<6}{:>10}  {:>18}  {:>10}",
                seen.node,
                memory.to_string(),
                seen.used.to_string(),
                page_cache.to_string()
            );
        }
        for hint in &group.hints {
            outln!("  {}", describe(hint, summary));
        }
        outln!("");
    }
    outln!("measured for {}; figures of use are upper bounds", short(args.look));
    Ok(())
}

fn describe(hint: &Hint, summary: &Summary) -> String {
    let list = |nodes: &[u32]| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let fastest = summary.tiers.first().map(|tier| list(tier)).unwrap_or_default();
    match hint {
        Hint::Promote { bytes } => format!(
            "up to {bytes} of slower memory are in use: write 2 to /proc/sys/kernel/numa_balancing, which moves such pages up, \
             or AllowedMemoryNodes={fastest}"
        ),
        Hint::Demote { bytes } => format!(
            "at least {bytes} of fast memory are not in use: write 1 to /sys/kernel/mm/numa/demotion_enabled, and omr reclaim moves them down"
        ),
        Hint::Stay { node } => format!("nearly all memory in use is on node {node}: run its tasks on that node's CPUs"),
    }
}
