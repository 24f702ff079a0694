//! `/proc/buddyinfo` (Linux 2.6.10): the number of free blocks of each size.

use omr_units::Pages;
use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::zoneinfo::ZoneId;
use crate::{Kernel, Result};

/// The free blocks of one zone, by order. A block of order N has 2^N pages and begins at a page
/// frame that is a multiple of 2^N.
///
/// Sample line: `Node 0, zone    DMA32      2      4      3 ...`, one number for each order.
/// Source: mm/vmstat.c, frag_show().
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeBlocks {
    /// The zone.
    pub zone: ZoneId,
    /// Number of free blocks of each order, from order 0 to the allocator's largest.
    pub orders: Vec<u64>,
}

impl FreeBlocks {
    /// Number of free blocks of this order or a larger one.
    pub fn from(&self, order: u32) -> u64 {
        self.large(order).fold(0, |sum, (_, blocks)| sum.saturating_add(blocks))
    }

    /// Pages in the free blocks of this order or a larger one.
    pub fn pages_from(&self, order: u32) -> Pages {
        let pages = |(order, blocks): (usize, u64)| {
            let one = u32::try_from(order).ok().and_then(|order| 1u64.checked_shl(order)).unwrap_or(u64::MAX);
            Pages(blocks.saturating_mul(one))
        };
        self.large(order).map(pages).fold(Pages(0), |sum, pages| sum + pages)
    }

    fn large(&self, order: u32) -> impl Iterator<Item = (usize, u64)> + '_ {
        let order = usize::try_from(order).unwrap_or(usize::MAX);
        self.orders.iter().copied().enumerate().skip(order)
    }
}

/// Parses the text. Lines that do not describe a zone are skipped.
pub fn parse(text: &[u8]) -> Vec<FreeBlocks> {
    text.split(|&c| c == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<FreeBlocks> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let zone = ZoneId::parse(&mut words)?;
    Some(FreeBlocks { zone, orders: words.map(parse_u64).collect::<Option<_>>()? })
}

/// Reads `/proc/buddyinfo`.
pub fn read(kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<Vec<FreeBlocks>> {
    kernel.proc.read("buddyinfo", buffer)?;
    Ok(parse(buffer))
}
