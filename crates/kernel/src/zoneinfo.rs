//! `/proc/zoneinfo` (Linux 2.6.13): pages of each zone, free pages, and the watermarks of reclaim.

use omr_units::Pages;
use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Kernel, Result};

/// A zone of a NUMA node, as `/proc/zoneinfo` and `/proc/buddyinfo` name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneId {
    /// Number of the zone's node.
    pub node: u32,
    /// The zone within the node.
    pub kind: ZoneKind,
}

/// The kinds of zones: `enum zone_type`, include/linux/mmzone.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum ZoneKind {
    Dma,
    Dma32,
    Normal,
    HighMem,
    Movable,
    Device,
    /// A zone that this program does not know.
    #[default]
    Other,
}

impl ZoneId {
    /// Parses the words of a line such as `Node 0, zone   Normal`. `None`: the line is another one.
    pub(crate) fn parse<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        if words.next()? != b"Node" {
            return None;
        }
        let node = parse_u64(words.next()?.strip_suffix(b",")?)?;
        let kind = match words.nth(1)? {
            b"DMA" => ZoneKind::Dma,
            b"DMA32" => ZoneKind::Dma32,
            b"Normal" => ZoneKind::Normal,
            b"HighMem" => ZoneKind::HighMem,
            b"Movable" => ZoneKind::Movable,
            b"Device" => ZoneKind::Device,
            _ => ZoneKind::Other,
        };
        Some(ZoneId { node: u32::try_from(node).ok()?, kind })
    }
}

/// One zone of one node. The unit is pages, and the names are the kernel's.
///
/// Sample lines: `Node 0, zone   Normal`, `  pages free     3808`, `        high     32`,
/// `        protection: (0, 433, 433, 433, 433)`, `              count: 117`.
/// Source: mm/vmstat.c, zoneinfo_show_print().
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// Node and kind of the zone.
    pub id: ZoneId,
    /// Free pages, without those in the per-CPU lists.
    pub free: Pages,
    /// Watermark below which kswapd is woken.
    pub low: Pages,
    /// Watermark up to which kswapd reclaims once it runs.
    pub high: Pages,
    /// Page frames from the first to the last, holes included.
    pub spanned: Pages,
    /// Page frames that are memory, including the kernel's own image.
    pub present: Pages,
    /// Page frames that the page allocator manages.
    pub managed: Pages,
    /// The largest entry of the zone's `lowmem_reserve`; the file calls it `protection`.
    pub protection: Pages,
    /// Free pages in the per-CPU lists, all CPUs together.
    pub per_cpu: Pages,
    /// Number of the first page frame.
    pub start_pfn: u64,
}

/// Parses the text. Unknown lines are skipped; an unknown zone is [`ZoneKind::Other`].
pub fn parse(text: &[u8]) -> Vec<Zone> {
    let mut zones: Vec<Zone> = Vec::new();
    for line in text.split(|&c| c == b'\n') {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        // This line also heads the per-node part of a node's first zone.
        if let Some(id) = ZoneId::parse(&mut words.clone()) {
            zones.push(Zone { id, ..Zone::default() });
            continue;
        }
        let Some(first) = words.next() else { continue };
        let Some(zone) = zones.last_mut() else { continue };
        // "high:" with a colon belongs to a per-CPU list.
        let field = match first {
            b"pages" if words.next() == Some(b"free") => &mut zone.free,
            b"low" => &mut zone.low,
            b"high" => &mut zone.high,
            b"spanned" => &mut zone.spanned,
            b"present" => &mut zone.present,
            b"managed" => &mut zone.managed,
            b"protection:" => {
                let digits = |word: &[u8]| word.iter().copied().filter(|c| !b"(,)".contains(c)).collect::<Vec<u8>>();
                let reserves = words.filter_map(|word| parse_u64(&digits(word)));
                zone.protection = reserves.max().map(Pages).unwrap_or_default();
                continue;
            }
            b"start_pfn:" => {
                zone.start_pfn = words.next().and_then(parse_u64).unwrap_or_default();
                continue;
            }
            b"count:" => {
                let count = words.next().and_then(parse_u64).unwrap_or_default();
                zone.per_cpu = zone.per_cpu + Pages(count);
                continue;
            }
            _ => continue,
        };
        if let Some(pages) = words.next().and_then(parse_u64) {
            *field = Pages(pages);
        }
    }
    zones
}

/// Reads `/proc/zoneinfo`.
pub fn read(kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<Vec<Zone>> {
    kernel.proc.read("zoneinfo", buffer)?;
    Ok(parse(buffer))
}
