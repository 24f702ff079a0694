//! NUMA nodes and memory tiers, below `/sys/devices` and `/sys/kernel/mm/numa`, and
//! `memory.numa_stat` of a group. Tiers tell which memory is fast. With demotion, reclaim moves
//! pages of fast memory to slower memory first, instead of to swap.
//!
//! Source: drivers/base/node.c, mm/memory-tiers.c, mm/memcontrol.c.

use serde::{Deserialize, Serialize};

use crate::text::{parse_u64, split_once};
use crate::{Kernel, Result};

/// The machine's nodes and their tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// Nodes that are online: `/sys/devices/system/node/online` (2.6.24). Sample: `0-1,3`.
    pub online: Vec<u32>,
    /// Nodes with CPUs: `has_cpu` in the same directory.
    pub with_cpus: Vec<u32>,
    /// Nodes with memory: `has_memory` in the same directory (3.8).
    pub with_memory: Vec<u32>,
    /// The nodes of each tier that has any, fastest tier first:
    /// `/sys/devices/virtual/memory_tiering/memory_tierN/nodelist` (6.1). A smaller N is a faster
    /// tier. Empty: the kernel has no tiers.
    pub tiers: Vec<Vec<u32>>,
    /// `/sys/kernel/mm/numa/demotion_enabled` (6.1; sample: `false`). `None`: the file does not
    /// exist.
    pub demotion: Option<bool>,
}

impl Nodes {
    /// Reads the nodes and tiers. All lists are empty where the kernel is built without NUMA.
    pub fn read(kernel: &Kernel) -> Result<Self> {
        let list = |name: &str| -> Result<Vec<u32>> {
            let text = kernel.sys.read_optional(format!("devices/system/node/{name}"))?;
            Ok(text.and_then(|text| parse_list(text.trim())).unwrap_or_default())
        };
        let demotion = match kernel.sys.read_optional("kernel/mm/numa/demotion_enabled")?.as_deref().map(str::trim) {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        };
        Ok(Nodes {
            online: list("online")?,
            with_cpus: list("has_cpu")?,
            with_memory: list("has_memory")?,
            tiers: read_tiers(kernel)?,
            demotion,
        })
    }

    /// Index of a node's tier; 0 is the fastest. `None`: the tier is not known.
    pub fn tier(&self, node: u32) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.contains(&node))
    }

    /// True if reclaim moves pages to a slower tier before it frees any.
    pub fn demotes(&self) -> bool {
        self.demotion == Some(true) && self.tiers.len() > 1
    }
}

fn read_tiers(kernel: &Kernel) -> Result<Vec<Vec<u32>>> {
    const TIERS: &str = "devices/virtual/memory_tiering";
    if !kernel.sys.has(TIERS) {
        return Ok(Vec::new());
    }
    let dir = kernel.sys.sub(TIERS)?;
    let mut tiers = Vec::new();
    for name in dir.names()? {
        let Some(number) = name.to_str().and_then(|name| parse_u64(name.strip_prefix("memory_tier")?.as_bytes()))
        else {
            continue;
        };
        // A tier disappears when it loses its last node.
        let list = dir.sub(&name).and_then(|tier| tier.read_optional("nodelist")).ok().flatten();
        tiers.extend(list.and_then(|list| Some((number, parse_list(list.trim())?))));
    }
    tiers.sort_unstable();
    Ok(tiers.into_iter().map(|(_, nodes)| nodes).filter(|nodes| !nodes.is_empty()).collect())
}

/// Upper bound on the number of nodes, of any kernel (`MAX_NUMNODES`).
const MOST_NODES: u32 = 1024;

/// Parses a list of numbers as the kernel prints it: `0-1,3`. The empty text is the empty list.
/// `None`: the text is in another form.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let number = |text: &str| u32::try_from(parse_u64(text.as_bytes())?).ok().filter(|number| *number < MOST_NODES);
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        match part.split_once('-') {
            Some((first, last)) => numbers.extend(number(first)?..=number(last)?),
            None => numbers.push(number(part)?),
        }
    }
    Some(numbers)
}

/// A group's memory on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnNode {
    /// Number of the node.
    pub node: u32,
    /// Anonymous memory.
    pub anon: omr_units::Bytes,
    /// Page cache, shared memory and swap cache together.
    pub file: omr_units::Bytes,
    /// Shared memory; part of `file`.
    pub shmem: omr_units::Bytes,
}

/// Parses `memory.numa_stat` of a group (5.10). Its numbers include the groups below. Sample line:
/// `anon N0=1052672 N1=0`, in bytes. Source: mm/memcontrol.c, `memory_numa_stat_show()`.
pub fn parse_numa_stat(text: &[u8]) -> Vec<OnNode> {
    let mut nodes: Vec<OnNode> = Vec::new();
    for line in text.split(|&c| c == b'\n') {
        let mut words = line.split(|&c| c == b' ');
        let field: fn(&mut OnNode) -> &mut omr_units::Bytes = match words.next() {
            Some(b"anon") => |node| &mut node.anon,
            Some(b"file") => |node| &mut node.file,
            Some(b"shmem") => |node| &mut node.shmem,
            _ => continue,
        };
        for word in words {
            let Some((node, bytes)) = word.strip_prefix(b"N").and_then(|word| {
                let (node, bytes) = split_once(word, b'=')?;
                Some((u32::try_from(parse_u64(node)?).ok()?, parse_u64(bytes)?))
            }) else {
                continue;
            };
            if nodes.iter().all(|known| known.node != node) {
                nodes.push(OnNode { node, ..OnNode::default() });
            }
            for known in nodes.iter_mut().filter(|known| known.node == node) {
                *field(known) = omr_units::Bytes(bytes);
            }
        }
    }
    nodes
}

/// Reads `memory.numa_stat` of a group.
pub fn read_group(group: &crate::memcg::Group) -> Result<Vec<OnNode>> {
    let mut buffer = Vec::new();
    group.dir().read_at_once("memory.numa_stat", &mut buffer)?;
    Ok(parse_numa_stat(&buffer))
}
