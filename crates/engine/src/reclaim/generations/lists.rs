//! Ages of memory from the generations of a list, and the part of it that can be evicted.

use std::time::Duration;

use omr_actuate::lru_gen::EvictionOrder;
use omr_kernel::lru_gen::{Generation, Lists};
use omr_kernel::memcg::Group;
use omr_policy::short;
use omr_units::Pages;

/// The generations that the kernel keeps (`MAX_NR_GENS`, include/linux/mmzone.h).
const KEPT: usize = 4;

/// The next step for one of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// This amount can be evicted, up to this generation.
    Evict { up_to: u64, memory: Pages },
    /// Some memory is cold, and can be evicted after an aging.
    Merge,
    /// The remaining memory is younger, or too little.
    Nothing,
}

/// Returns the next step for a list.
pub(super) fn next_step(list: &Lists, older_than: Duration, order: EvictionOrder, smallest: Pages) -> NextStep {
    let generations = list.generations();
    let old = (0..generations.len()).take_while(|&index| idle(generations, index) >= Some(older_than)).count();
    // The kernel evicts nothing of the youngest two.
    let evictable = match order {
        EvictionOrder::AnonOnly => old.min(generations.len().saturating_sub(2)),
        EvictionOrder::AnonFirst => old.min(generations.len().saturating_sub(2)).min(1),
    };
    let sum = |count: usize| Pages(generations[..count].iter().map(|generation| generation.anon.0).sum());
    let memory = sum(evictable);
    if evictable > 0 && memory >= smallest {
        NextStep::Evict { up_to: generations[evictable - 1].number, memory }
    } else if sum(old) >= smallest {
        NextStep::Merge
    } else {
        NextStep::Nothing
    }
}

/// Returns the time since the first aging: all memory in the oldest generation is unused since
/// then.
pub(super) fn reach(list: &Lists) -> Option<Duration> {
    list.generations().get(1).map(|next| next.age)
}

/// Returns true if no memory is that old, as far as the kernel tells: memory was used after its
/// generation was made. The kernel drops the oldest generations when they have no memory left, as in
/// a group that uses all it has (`try_to_inc_min_seq`, mm/vmscan.c). It merges the oldest two only
/// when a fifth begins, so of fewer than four none is merged.
pub(super) fn is_younger(list: &Lists, older_than: Duration) -> bool {
    let generations = list.generations();
    generations.len() < KEPT && generations.first().is_some_and(|oldest| oldest.age < older_than)
}

/// Returns the time for which this generation was surely unused: since the next younger one was
/// made.
fn idle(generations: &[Generation], index: usize) -> Option<Duration> {
    generations.get(index + 1).map(|next| next.age)
}

/// Returns the memory, of that which goes to swap, that is surely unused for an age; `None`: no
/// aging was this long ago.
pub fn cold(list: &Lists, older_than: Duration) -> Option<Pages> {
    reach(list).filter(|reach| *reach >= older_than)?;
    let generations = list.generations();
    let old = (0..generations.len()).take_while(|&index| idle(generations, index) >= Some(older_than));
    Some(Pages(old.map(|index| generations[index].anon.0).sum()))
}

/// True if the kernel evicts up to this generation.
pub(super) fn can_evict(list: &Lists, node: u32, up_to: u64) -> bool {
    list.node == node && up_to.saturating_add(2) <= list.youngest().number
}

/// Page cache of all nodes.
pub(super) fn cache(lists: &[Lists]) -> Pages {
    Pages(lists.iter().map(|list| list.file().0).sum())
}

/// Returns the message that no aging was long enough ago, with the remedy.
pub(super) fn not_aged(group: &Group, lists: &[Lists], older_than: Duration) -> String {
    let (group, time) = (omr_base::text::printable(&group.path().to_string_lossy()), short(older_than));
    let reach = match lists.iter().filter_map(reach).max() {
        Some(reach) => format!("its ages are known for the last {} only", short(reach)),
        None => "its ages are not known".into(),
    };
    let window = humantime::format_duration(older_than);
    format!(
        "{reach}, not for {time}: --wait ages it first, as does omr wss {group} --window {}",
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

    #[test]
    fn cold_memory_is_known_as_far_back_as_the_first_aging() {
        let full = list(&[(400, 100, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)]);
        let cold = |seconds| cold(&full, Duration::from_secs(seconds));
        assert_eq!(reach(&full), Some(Duration::from_secs(180)));
        assert_eq!(
            [cold(181), cold(180), cold(61), cold(60), cold(1)],
            [None, Some(100), Some(100), Some(300), Some(700)].map(|pages| pages.map(Pages))
        );
        assert_eq!(reach(&list(&[(400, 100, 7)])), None);
    }

    #[test]
    fn what_can_be_evicted_is_older_than_the_youngest_two_generations_of_its_node() {
        // Generations 3 to 6 on node 0.
        let list = list(&[(400, 1, 7), (180, 2, 7), (60, 3, 7), (1, 4, 7)]);
        assert!(can_evict(&list, 0, 4) && !can_evict(&list, 0, 5) && !can_evict(&list, 1, 3));
        assert_eq!(cache(&[list, list]), Pages(56));
    }

    #[test]
    fn a_group_that_was_not_aged_is_named_with_the_remedy() {
        let root = omr_testkit::FakeRoot::new().group("a\nb", &[("x", "")]);
        let kernel = omr_kernel::Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), std::path::Path::new("a\nb")).expect("a group");
        let words = |lists: &[Lists]| not_aged(&group, lists, Duration::from_secs(7200));
        let aged = list(&[(400, 1, 7), (180, 2, 7), (60, 3, 7)]);
        let young = list(&[(9, 1, 7), (5, 1, 7), (1, 1, 7)]);
        assert!(
            words(&[young, aged]).starts_with("its ages are known for the last 3 min only, not for 2 h:"),
            "{}",
            words(&[aged])
        );
        assert!(words(&[]).starts_with("its ages are not known, not for 2 h:"));
        assert!(words(&[]).ends_with("omr wss a\\nb --window 2h"), "{}", words(&[]));
    }

    fn evict(up_to: u64, memory: u64) -> NextStep {
        NextStep::Evict { up_to, memory: Pages(memory) }
    }

    #[test]
    fn each_list_gives_what_it_can() {
        let full: &[_] = &[(400, 100, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)];
        let emptied: &[_] = &[(400, 0, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)];
        let young: &[_] = &[(9, 100, 7), (9, 200, 7), (9, 400, 7), (1, 800, 7)];
        // After one aging, long ago: all but the youngest is old, and the kernel wants two younger
        // ones.
        let once: &[_] = &[(400, 0, 7), (400, 0, 7), (400, 100, 7), (300, 5, 7)];
        for (what, generations, seconds, only, first) in [
            ("oldest only", full, 120, evict(3, 100), evict(3, 100)),
            ("exactly as old", full, 180, evict(3, 100), evict(3, 100)),
            ("two are old enough", full, 60, evict(4, 300), evict(3, 100)),
            ("nothing as old", full, 181, NextStep::Nothing, NextStep::Nothing),
            ("of three the third is of the youngest two", full, 1, evict(4, 300), evict(3, 100)),
            ("page cache stands in the way", emptied, 60, evict(4, 200), NextStep::Merge),
            ("all is young", young, 10, NextStep::Nothing, NextStep::Nothing),
            ("aged once", once, 120, NextStep::Merge, NextStep::Merge),
            ("two generations", &[(400, 100, 7), (300, 5, 7)], 120, NextStep::Merge, NextStep::Merge),
            ("one generation", &[(400, 100, 7)], 120, NextStep::Nothing, NextStep::Nothing),
        ] {
            let act = |order| next_step(&list(generations), Duration::from_secs(seconds), order, Pages(32));
            assert_eq!(act(EvictionOrder::AnonOnly), only, "{what}");
            assert_eq!(act(EvictionOrder::AnonFirst), first, "{what}");
        }
        assert_eq!(
            next_step(&list(full), Duration::from_secs(120), EvictionOrder::AnonFirst, Pages(101)),
            NextStep::Nothing,
            "too little"
        );
    }
}
