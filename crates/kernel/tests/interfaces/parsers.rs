//! All parsers of the kernel's files, for both fuzzers. `fuzz/` includes this file.

use std::ops::ControlFlow;
use std::path::Path;

use omr_kernel::hibernate::{HibernationLog, parse_availability};
use omr_kernel::lockdown::Lockdown;
use omr_kernel::lru_gen::{Ids, Lists};
use omr_kernel::memcg::MemoryStat;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::process::{ProcessMemory, ProcessStat, Status, parse_group, parse_is_first_user_namespace};
use omr_kernel::stat::Stat;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{buddyinfo, crypto, kmsg, lru_gen, maps, mounts, numa, psi, swap, zoneinfo};

/// Gives a text to a parser. The first byte of the input chooses the parser.
pub fn parse(input: &[u8]) {
    let Some((which, text)) = input.split_first() else { return };
    match which % 21 {
        0 => maps::parse(text, |mapping| assert!(mapping.range.start <= mapping.range.end)),
        1 => maps::parse_smaps(text, |_| {}),
        2 => drop(MemoryStat::parse(text)),
        3 => drop(Meminfo::parse(text)),
        4 => drop(Vmstat::parse(text)),
        5 => drop(Stat::parse(text)),
        6 => drop(ProcessStat::parse(text)),
        7 => drop(Status::parse(text)),
        8 => drop(ProcessMemory::parse(text)),
        9 => drop((parse_group(text), parse_is_first_user_namespace(text))),
        10 => drop(psi::Totals::parse(text)),
        11 => drop(zoneinfo::parse(text)),
        12 => drop(buddyinfo::parse(text)),
        13 => drop(kmsg::parse_record(text)),
        14 => {
            mounts::MountDevice::parse(text);
            let _ = mounts::find(&mounts::parse(text), Path::new("/a"), b"cgroup2");
        }
        15 => drop(swap::parse(text)),
        16 => {
            numa::parse_numa_stat(text);
            std::str::from_utf8(text).map(numa::parse_list).ok();
        }
        17 => {
            parse_availability(text, text);
            lru_gen::Enabled::parse(text);
            Lockdown::parse(text);
        }
        18 => {
            let lines = String::from_utf8_lossy(text);
            HibernationLog::parse(&lines.lines().map(str::to_owned).collect::<Vec<_>>());
        }
        20 => drop(crypto::parse(&String::from_utf8_lossy(text), "lz4")),
        _ => parse_generations(text),
    }
}

/// For every text of `lru_gen`: the parser returns whole lists only, and the same lists however the
/// text is cut into pieces.
pub fn parse_generations(text: &[u8]) {
    let whole = generations_in_pieces(text, usize::MAX);
    assert!(whole == generations_in_pieces(text, 1), "cut into lines it is something else");
    for (path, _, lists) in whole.iter().flatten() {
        assert!(!path.contains(&b'\n'));
        let generations = lists.generations();
        // MIN_NR_GENS and MAX_NR_GENS of include/linux/mmzone.h.
        assert!((1..=4).contains(&generations.len()), "{} generations", generations.len());
        assert!(generations.windows(2).all(|pair| pair[0].number < pair[1].number), "numbers in order");
        assert!(lists.youngest().number == generations[generations.len() - 1].number);
        let _ = (lists.anon(), lists.file());
    }
}

/// All lists of a text that is parsed in pieces of `lines` lines, or the parser's error.
fn generations_in_pieces(text: &[u8], lines: usize) -> Result<Vec<(Vec<u8>, Ids, Lists)>, String> {
    let mut found = Vec::new();
    let mut visit = |path: &[u8], ids, lists: &Lists| {
        found.push((path.to_vec(), ids, *lists));
        ControlFlow::Continue(())
    };
    let mut parser = lru_gen::Parser::default();
    let all: Vec<&[u8]> = text.split_inclusive(|&c| c == b'\n').collect();
    for piece in all.chunks(lines) {
        let _ = parser.feed(&piece.concat(), &mut visit)?;
    }
    let _ = parser.finish(&mut visit);
    Ok(found)
}
