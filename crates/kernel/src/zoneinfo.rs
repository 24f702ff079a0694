//! `/proc/zoneinfo`: how many pages there are, how many are free, and where reclaim begins.

use omr_units::Pages;
use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Kernel, Result};

/// Which zone of which node, as /proc/zoneinfo and /proc/buddyinfo name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneId {
    /// The node it belongs to.
    pub node: u32,
    /// Which of the node's zones.
    pub kind: ZoneKind,
}

/// The zones there are, include/linux/mmzone.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum ZoneKind {
    Dma,
    Dma32,
    Normal,
    HighMem,
    Movable,
    Device,
    /// One that this program does not know.
    #[default]
    Other,
}

impl ZoneId {
    /// From the words of a line such as `Node 0, zone   Normal`.
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

/// One zone of one node (since 2.6.13), pages under the kernel's own names.
///
/// Sample lines: `Node 0, zone   Normal`, `  pages free     3808`, `        high     32`,
/// `        protection: (0, 433, 433, 433, 433)`, `              count: 117`.
/// Source: mm/vmstat.c, zoneinfo_show_print().
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// Which one.
    pub id: ZoneId,
    /// Free pages; those in the per-CPU lists are not among them.
    pub free: Pages,
    /// Watermark below which kswapd is woken.
    pub low: Pages,
    /// Watermark up to which kswapd reclaims once it runs.
    pub high: Pages,
    /// Page frames from the first to the last, holes included.
    pub spanned: Pages,
    /// Page frames that are memory, the kernel itself included.
    pub present: Pages,
    /// Page frames that the allocator has.
    pub managed: Pages,
    /// The largest of the zone's `lowmem_reserve`, in the file as `protection`.
    pub protection: Pages,
    /// Free pages in the lists of all CPUs.
    pub per_cpu: Pages,
    /// Number of the first page frame.
    pub start_pfn: u64,
}

/// Parses the text; lines and zones it does not know are passed over.
pub fn parse(text: &[u8]) -> Vec<Zone> {
    let mut zones: Vec<Zone> = Vec::new();
    for line in text.split(|&c| c == b'\n') {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        // The same head stands above the per-node part of a node's first zone.
        if let Some(id) = ZoneId::parse(&mut words.clone()) {
            zones.push(Zone { id, ..Zone::default() });
            continue;
        }
        let Some(first) = words.next() else { continue };
        let Some(zone) = zones.last_mut() else { continue };
        // "high:" of a per-CPU list has a colon and is another thing.
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

/// Reads it.
pub fn read(kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<Vec<Zone>> {
    kernel.proc.read("zoneinfo", buffer)?;
    Ok(parse(buffer))
}
