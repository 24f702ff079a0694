//! What the generations of a list say about the age of its memory, and what can be evicted of it.

use std::time::Duration;

use omr_actuate::lru_gen::EvictionOrder;
use omr_kernel::lru_gen::{Generation, Lists};
use omr_kernel::memcg::Group;
use omr_policy::short;
use omr_units::Pages;

/// What to do next with one of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// This much can be evicted, up to this generation.
    Evict { up_to: u64, memory: Pages },
    /// Some memory is cold, and can be evicted after an aging.
    Merge,
    /// All that is left is younger, or too little.
    Nothing,
}

pub(super) fn act(list: &Lists, older_than: Duration, order: EvictionOrder, smallest: Pages) -> Act {
    let generations = list.generations();
    let old = (0..generations.len()).take_while(|&index| idle(generations, index) >= Some(older_than)).count();
    // The kernel evicts nothing of the youngest two.
    let takable = match order {
        EvictionOrder::AnonOnly => old.min(generations.len().saturating_sub(2)),
        EvictionOrder::AnonFirst => old.min(generations.len().saturating_sub(2)).min(1),
    };
    let sum = |count: usize| Pages(generations[..count].iter().map(|generation| generation.anon.0).sum());
    let memory = sum(takable);
    if takable > 0 && memory >= smallest {
        Act::Evict { up_to: generations[takable - 1].number, memory }
    } else if sum(old) >= smallest {
        Act::Merge
    } else {
        Act::Nothing
    }
}

/// How long ago the first aging was: everything in the oldest generation was not used since then.
pub(super) fn reach(list: &Lists) -> Option<Duration> {
    list.generations().get(1).map(|next| next.age)
}

/// How long the generation at this place was surely not used: since the next younger one was made.
fn idle(generations: &[Generation], index: usize) -> Option<Duration> {
    generations.get(index + 1).map(|next| next.age)
}

/// How much of the memory that goes to swap was surely not used for an age; `None`: no aging was that
/// long ago.
pub fn old(list: &Lists, older_than: Duration) -> Option<Pages> {
    reach(list).filter(|reach| *reach >= older_than)?;
    let generations = list.generations();
    let old = (0..generations.len()).take_while(|&index| idle(generations, index) >= Some(older_than));
    Some(Pages(old.map(|index| generations[index].anon.0).sum()))
}

/// True if the kernel evicts up to this generation.
pub(super) fn is_takable(list: &Lists, node: u32, up_to: u64) -> bool {
    list.node == node && up_to.saturating_add(2) <= list.youngest().number
}

/// Page cache of all nodes.
pub(super) fn cache(lists: &[Lists]) -> Pages {
    Pages(lists.iter().map(|list| list.file().0).sum())
}

/// Says that no aging was long enough ago, and what to do about it.
pub(super) fn not_aged(group: &Group, lists: &[Lists], older_than: Duration) -> String {
    let (group, time) = (omr_base::text::printable(&group.path().to_string_lossy()), short(older_than));
    let reach = match lists.iter().filter_map(reach).max() {
        Some(reach) => format!("its ages are known for the last {} only", short(reach)),
        None => "its ages are not known".into(),
    };
    let window = humantime::format_duration(older_than);
    format!(
        "{reach}, not for {time}: --wait looks first, as does omr wss {group} --window {}",
        window.to_string().replace(' ', "")
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::ops::ControlFlow;

    use omr_kernel::lru_gen::Parser;

    use super::*;

    /// Generations from number 3 on: age in seconds, anonymous pages, file pages.
    pub fn list(generations: &[(u64, u64, u64)]) -> Lists {
        let mut text = "memcg     1 /\n node     0\n".to_owned();
        for (number, (age, anon, file)) in (3..).zip(generations) {
            text += &format!(" {number} {} {anon}  {file} \n", age * 1000);
        }
        let mut found = None;
        let mut visit = |_: &[u8], _, lists: &Lists| {
            found = Some(*lists);
            ControlFlow::Continue(())
        };
        let mut parser = Parser::default();
        assert_eq!(parser.feed(text.as_bytes(), &mut visit), Ok(ControlFlow::Continue(())));
        let _ = parser.finish(&mut visit);
        found.expect("lists")
    }

    fn evict(up_to: u64, memory: u64) -> Act {
        Act::Evict { up_to, memory: Pages(memory) }
    }

    #[test]
    fn each_list_gives_what_it_can() {
        let full: &[_] = &[(400, 100, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)];
        let emptied: &[_] = &[(400, 0, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)];
        let young: &[_] = &[(9, 100, 7), (9, 200, 7), (9, 400, 7), (1, 800, 7)];
        // After one aging, long ago: all but the youngest is old, and the kernel wants two younger ones.
        let once: &[_] = &[(400, 0, 7), (400, 0, 7), (400, 100, 7), (300, 5, 7)];
        for (what, generations, seconds, only, first) in [
            ("oldest only", full, 120, evict(3, 100), evict(3, 100)),
            ("exactly as old", full, 180, evict(3, 100), evict(3, 100)),
            ("two are old enough", full, 60, evict(4, 300), evict(3, 100)),
            ("nothing as old", full, 181, Act::Nothing, Act::Nothing),
            ("of three the third is of the youngest two", full, 1, evict(4, 300), evict(3, 100)),
            ("page cache stands in the way", emptied, 60, evict(4, 200), Act::Merge),
            ("all is young", young, 10, Act::Nothing, Act::Nothing),
            ("aged once", once, 120, Act::Merge, Act::Merge),
            ("two generations", &[(400, 100, 7), (300, 5, 7)], 120, Act::Merge, Act::Merge),
            ("one generation", &[(400, 100, 7)], 120, Act::Nothing, Act::Nothing),
        ] {
            let act = |order| act(&list(generations), Duration::from_secs(seconds), order, Pages(32));
            assert_eq!(act(EvictionOrder::AnonOnly), only, "{what}");
            assert_eq!(act(EvictionOrder::AnonFirst), first, "{what}");
        }
        assert_eq!(
            act(&list(full), Duration::from_secs(120), EvictionOrder::AnonFirst, Pages(101)),
            Act::Nothing,
            "too little"
        );
    }
}
