//! For every text of `lru_gen`: the parser returns whole lists only, and the same lists however the
//! text is cut into pieces.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use omr_kernel::lru_gen::{Ids, Lists, Parser};

/// All lists of a text that is parsed in pieces of `lines` lines, or the parser's error.
fn parse(text: &[u8], lines: usize) -> Result<Vec<(Vec<u8>, Ids, Lists)>, String> {
    let mut found = Vec::new();
    let mut visit = |path: &[u8], ids, lists: &Lists| {
        found.push((path.to_vec(), ids, *lists));
        ControlFlow::Continue(())
    };
    let mut parser = Parser::default();
    let all: Vec<&[u8]> = text.split_inclusive(|&c| c == b'\n').collect();
    for piece in all.chunks(lines) {
        let _ = parser.feed(&piece.concat(), &mut visit)?;
    }
    let _ = parser.finish(&mut visit);
    Ok(found)
}

fuzz_target!(|text: &[u8]| {
    let whole = parse(text, usize::MAX);
    assert!(whole == parse(text, 1), "cut into lines it is something else");
    for (path, _, lists) in whole.iter().flatten() {
        assert!(!path.contains(&b'\n'));
        let generations = lists.generations();
        // MIN_NR_GENS and MAX_NR_GENS of include/linux/mmzone.h.
        assert!((1..=4).contains(&generations.len()), "{} generations", generations.len());
        assert!(generations.windows(2).all(|pair| pair[0].number < pair[1].number), "numbers in order");
        assert!(lists.youngest().number == generations[generations.len() - 1].number);
        let _ = (lists.anon(), lists.file());
    }
});
