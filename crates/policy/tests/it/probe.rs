//! The probe of a group without ages: cases, laws for every input, and a modelled group.

use std::time::Duration;

use omr_policy::probe::{
    Answer, EVERY, FIRST_WAIT, HALF, LARGEST_STEP, LONGEST_WAIT, Look, MOST, Probe, STEP, WAIT_BEYOND_HALF, Why,
};
use omr_policy::threshold::{PromotionRate, Slo};
use omr_units::{Bytes, Monotonic};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::desk::seconds;

/// Memory that is back as fast as that of zswap, so that P is 0.2 % a minute.
const FAST: Option<Duration> = Some(Duration::from_micros(6));

fn at(second: u64) -> Monotonic {
    Monotonic(0) + seconds(second)
}

fn look(second: u64, size: u64, back: u64) -> Look {
    Look { now: at(second), size: Some(Bytes::mib(size)), refaults: Some(Bytes::kib(back)), swap_in: FAST }
}

/// Takes at once what the probe offers.
fn look_and_take(probe: &mut Probe, look: &Look) -> Answer {
    let answer = probe.look(&Slo::default(), look);
    if let Answer::Take { bytes, .. } = answer {
        probe.begin(look.now, bytes);
    }
    answer
}

/// Looks each second until `to`, with the same counter. Returns what was taken, in KiB, and when.
fn watch(probe: &mut Probe, from: u64, to: u64, back: u64) -> Vec<(u64, u64)> {
    let looks = from..to;
    let takes = looks.filter_map(|second| match look_and_take(probe, &look(second, 1000, back)) {
        Answer::Take { bytes, .. } => Some((second, bytes.0 >> 10)),
        Answer::Hold(_) => None,
    });
    takes.collect()
}

#[test]
fn little_leaves_every_half_minute_from_ten_minutes_on() {
    let mut probe = Probe::new(at(100));
    assert_eq!(watch(&mut probe, 100, 761, 0), [(700, 5120), (730, 5145), (760, 10342)]);
    let out = probe.out();
    // A step that took less counts as that.
    probe.took(Bytes::mib(5), Bytes::mib(1));
    assert_eq!(probe.out() + Bytes::mib(4), out);
    // Linux 6.1 may take twice the amount.
    probe.took(Bytes::mib(5), Bytes::mib(10));
    assert_eq!(probe.out(), out + Bytes::mib(1));
    // A probe that begins late watches for a minute first.
    let mut late = Probe::new(at(0));
    assert_eq!(watch(&mut late, 5000, 5061, 0), [(5060, 5120)]);
}

#[test]
fn what_comes_back_holds_it_and_then_stops_it() {
    let mut probe = Probe::new(at(0));
    watch(&mut probe, 500, 620, 0);
    // P is 2,048 KiB a minute. A little is no reason to stop.
    let mut less = probe.clone();
    assert!(matches!(less.look(&Slo::default(), &look(630, 1000, 1000)), Answer::Take { .. }));
    let mut near = probe.clone();
    let (back, allowed) = (Bytes::kib(1100), Bytes(1000 * 1024 * 1024 / 500));
    assert_eq!(near.look(&Slo::default(), &look(630, 1000, 1100)), Answer::Hold(Why::Near { back, allowed }));
    let answer = probe.look(&Slo::default(), &look(630, 1000, 2100));
    assert!(matches!(answer, Answer::Hold(Why::Waiting { left: FIRST_WAIT, .. })), "{answer:?}");
    assert_eq!(watch(&mut probe, 631, 750, 2100), []);
    assert_eq!(watch(&mut probe, 750, 751, 2100).len(), 1);
    // The second wait is twice as long, and so on, up to a day.
    let (mut second, mut back, mut waits) = (751, 2100, Vec::new());
    for _ in 0..13 {
        back += 5000;
        let Answer::Hold(Why::Waiting { left, .. }) = probe.look(&Slo::default(), &look(second, 1000, back)) else {
            panic!("it went on");
        };
        waits.push(left.as_secs());
        let end = second + left.as_secs();
        assert_eq!(watch(&mut probe, end - 70, end, back), []);
        second = end;
    }
    assert_eq!((waits[0], waits[1], waits[2]), (240, 480, 960));
    assert_eq!(waits.last(), Some(&LONGEST_WAIT.as_secs()));
    // A day without it, and the next wait is the first again.
    second += LONGEST_WAIT.as_secs();
    watch(&mut probe, second, second + 62, back);
    let answer = probe.look(&Slo::default(), &look(second + 62, 1000, back + 5000));
    assert!(matches!(answer, Answer::Hold(Why::Waiting { left: FIRST_WAIT, .. })), "{answer:?}");
}

#[test]
fn a_slow_device_allows_less_and_a_small_group_has_a_readahead_free() {
    let mut probe = Probe::new(at(0));
    watch(&mut probe, 500, 620, 0);
    let slow = Look { swap_in: Some(Duration::from_millis(1)), ..look(630, 1000, 300) };
    assert!(matches!(probe.clone().look(&Slo::default(), &slow), Answer::Hold(Why::Waiting { .. })));
    let unknown = Look { swap_in: None, ..slow };
    assert!(matches!(probe.clone().look(&Slo::default(), &unknown), Answer::Hold(Why::Waiting { .. })));
    let small = Look { swap_in: None, ..look(630, 100, 15) };
    assert!(matches!(probe.clone().look(&Slo::default(), &small), Answer::Take { .. }));
    assert_eq!(PromotionRate::FAST.for_device(None), PromotionRate::FLOOR);
    let tiny = look(630, 10, 0);
    assert!(matches!(probe.look(&Slo::default(), &tiny), Answer::Hold(Why::Small { .. })));
}

#[test]
fn a_tenth_of_a_group_stays_and_a_smaller_step_than_the_smallest_is_not_taken() {
    let ready = |out| {
        let mut probe = Probe::new(at(0));
        watch(&mut probe, 500, 570, 0);
        probe.begin(at(0), Bytes::mib(out));
        probe
    };
    let size = 100;
    let answer = |out| ready(out).look(&Slo::default(), &look(630, size, 0));
    // 0.5 % of what is in and out are a step; nine tenths of 1000 MiB may be out.
    assert!(matches!(answer(80), Answer::Take { bytes, .. } if bytes == Bytes::mib(180).share(STEP)));
    assert!(matches!(answer(600), Answer::Take { bytes, .. } if bytes == Bytes::mib(700).share(STEP)));
    assert!(matches!(answer(890), Answer::Take { bytes, .. } if bytes == Bytes::mib(1)), "{:?}", answer(890));
    for out in [900, 901, 3000] {
        assert!(matches!(answer(out), Answer::Hold(Why::MostOut { .. })), "{out}: {:?}", answer(out));
    }
    // A step of 50 KiB is smaller than one write to the kernel.
    assert!(matches!(ready(0).look(&Slo::default(), &look(630, 10, 0)), Answer::Hold(Why::Small { .. })));
}

#[test]
fn with_half_of_the_group_out_it_waits_for_an_hour() {
    let wait = |out| {
        let mut probe = Probe::new(at(0));
        watch(&mut probe, 500, 570, 0);
        probe.begin(at(0), Bytes::mib(out));
        let mut waits = Vec::new();
        for (second, back) in [(630, 5000), (4300, 10_000)] {
            watch(&mut probe, second - 70, second, back - 5000);
            let Answer::Hold(Why::Waiting { left, .. }) = probe.look(&Slo::default(), &look(second, 1000, back)) else {
                panic!("it went on");
            };
            waits.push(left);
        }
        waits
    };
    assert_eq!(wait(1100), [WAIT_BEYOND_HALF, 2 * WAIT_BEYOND_HALF]);
    assert_eq!(wait(900), [FIRST_WAIT, 2 * FIRST_WAIT]);
}

#[test]
fn steps_grow_while_hardly_anything_comes_back_until_half_is_out() {
    // A group of 1000 MiB of which what is taken leaves.
    let run = |back_kib: u64| {
        let (mut probe, mut size, mut steps) = (Probe::new(at(0)), 1000 << 10, Vec::new());
        for second in 500..3000u64 {
            // What comes back comes evenly, from minute 20 on.
            let back = back_kib * second.saturating_sub(1200) / 60;
            let seen = Look { size: Some(Bytes::kib(size)), ..look(second, 0, back) };
            let taken = look_and_take(&mut probe, &seen).bytes().0 >> 10;
            size -= taken;
            steps.extend((taken > 0).then_some((second, taken * 1000 / (1000 << 10))));
        }
        (steps, 1000 - (size >> 10))
    };
    let (steps, out) = run(0);
    let shares: Vec<u64> = steps.iter().take(8).map(|(_, share)| *share).collect();
    assert_eq!(shares, [5, 5, 10, 10, 20, 20, 20, 20], "thousandths, every 30 s: {steps:?}");
    // Then small steps.
    assert!(steps.iter().rev().take(30).all(|(_, share)| (4..=5).contains(share)), "{steps:?}");
    assert!((700..800).contains(&out), "{out}");
    // 600 KiB a minute are more than P/4 and less than P/2: small steps from then on.
    let (steps, less) = run(600);
    assert!(steps.iter().filter(|(second, _)| *second > 1290).all(|(_, share)| (4..=5).contains(share)), "{steps:?}");
    assert!(less < out && steps.len() > 20, "{less}, {steps:?}");
}

#[test]
fn what_comes_back_is_not_out_any_more_whatever_came_back_before() {
    let before = 1 << 20;
    let mut probe = Probe::new(at(0));
    assert_eq!(watch(&mut probe, 500, 620, before), [(600, 5120)]);
    probe.look(&Slo::default(), &look(620, 1000, before + 100));
    assert_eq!(probe.out(), Bytes::kib(5120 - 100));
}

#[test]
fn what_is_not_known_takes_nothing_and_is_watched_anew() {
    for broken in [
        Look { size: None, ..look(630, 0, 0) },
        Look { refaults: None, ..look(630, 1000, 0) },
        // The counter went back; nobody looked for two minutes.
        look(630, 1000, 4),
        look(740, 1000, 5),
    ] {
        let mut probe = Probe::new(at(0));
        watch(&mut probe, 500, 620, 5);
        let mut control = probe.clone();
        assert!(control.look(&Slo::default(), &look(630, 1000, 5)).bytes() > Bytes::ZERO);
        assert_eq!(probe.look(&Slo::default(), &broken).bytes(), Bytes::ZERO, "{broken:?}");
    }
}

#[test]
fn an_offer_stands_until_it_is_taken_and_a_warm_up_is_as_long_as_the_objective_says() {
    let mut probe = Probe::new(at(500));
    let slo = Slo { warm_up: seconds(5), ..Slo::default() };
    for second in 500..600 {
        let takes = probe.look(&slo, &look(second, 1000, 0)).bytes() > Bytes::ZERO;
        assert_eq!(takes, second >= 560, "{second}");
    }
    assert_eq!(probe.out(), Bytes::ZERO, "nobody took it");
    probe.begin(at(599), Bytes::mib(5));
    let left = seconds(29);
    assert_eq!(probe.look(&slo, &look(600, 1000, 0)), Answer::Hold(Why::JustTaken { left }));
}

#[test]
fn memory_that_is_brought_back_on_purpose_is_no_harm() {
    let mut probe = Probe::new(at(0));
    watch(&mut probe, 500, 620, 0);
    let out = probe.out();
    let mut control = probe.clone();
    assert!(matches!(control.look(&Slo::default(), &look(630, 1000, 5000)), Answer::Hold(Why::Waiting { .. })));
    probe.discount(Bytes::kib(5000));
    assert_eq!(probe.out(), out - Bytes::kib(5000));
    assert!(matches!(probe.look(&Slo::default(), &look(630, 1000, 5000)), Answer::Take { .. }));
    assert_eq!(probe.out(), out - Bytes::kib(5000), "counted once");
    // What others bring back after that is harm all the same.
    assert!(matches!(probe.look(&Slo::default(), &look(631, 1000, 8000)), Answer::Hold(Why::Waiting { .. })));
}

/// A group of which some is cold. The cold half of the memory leaves first; of the rest all that
/// leaves is back within a minute.
struct Model {
    size: Bytes,
    cold: Bytes,
    hot: Bytes,
    refaults: Bytes,
}

impl Model {
    fn take(&mut self, bytes: Bytes) {
        let cold = bytes.min(self.cold);
        self.cold = self.cold - cold;
        self.hot += bytes - cold;
        self.size = self.size - bytes;
    }

    fn come_back(&mut self) {
        let back = Bytes(self.hot.0.div_ceil(30));
        self.hot = self.hot - back;
        self.size += back;
        self.refaults += back;
    }
}

/// Twelve hours of a group of 1 GiB of which 300 MiB are cold. Returns the share of minutes over P
/// in percent, and the MiB that are out at the end. `forgets`: the probe is broken and forgets that
/// it waits.
fn twelve_hours(forgets: bool) -> (f64, u64) {
    let mut model = Model { size: Bytes::mib(1024), cold: Bytes::mib(300), hot: Bytes::ZERO, refaults: Bytes::ZERO };
    let (mut probe, mut over, mut before) = (Probe::new(at(0)), 0, Bytes::ZERO);
    for second in 0..43_200 {
        model.come_back();
        let seen = Look { now: at(second), size: Some(model.size), refaults: Some(model.refaults), swap_in: FAST };
        let answer = look_and_take(&mut probe, &seen);
        if forgets && matches!(answer, Answer::Hold(Why::Waiting { .. })) {
            probe = Probe::new(at(0));
        }
        model.take(answer.bytes());
        if second % 60 == 0 {
            over += u32::from((model.refaults - before).0 > model.size.0 / 500);
            before = model.refaults;
        }
    }
    (f64::from(over) / 7.2, 1024 - (model.size.0 >> 20))
}

#[test]
fn cold_memory_leaves_and_the_objective_is_seldom_broken() {
    let (over, out) = twelve_hours(false);
    assert!(over <= 5.0 && out >= 290, "{over} % of minutes over, {out} MiB out");
    // The control: a probe that forgets its waits.
    let (over, _) = twelve_hours(true);
    assert!(over > 5.0, "{over}");
}

/// Seconds between looks, size, what came back since, and what is unknown.
fn any_looks() -> impl Strategy<Value = Vec<(u64, u64, u64, u8)>> {
    let back = select(vec![0u64, 0, 0, 0, 10, 300, 1100, 3000, 100_000]);
    vec((select(vec![1u64, 1, 5, 10, 30, 30, 60, 200, 100_000]), 0u64..4000, back, 0u8..20), 1..300)
}

fn looks(steps: &[(u64, u64, u64, u8)]) -> Vec<Look> {
    let (mut second, mut refaults) = (0, 0);
    let look = |&(seconds, size, back, unknown): &(u64, u64, u64, u8)| {
        (second, refaults) = (second + seconds, refaults + back);
        let known = look(second, size, refaults);
        match unknown {
            0 => Look { size: None, ..known },
            1 => Look { refaults: None, ..known },
            2 => Look { swap_in: None, ..known },
            _ => known,
        }
    };
    steps.iter().map(look).collect()
}

/// What is wrong with the answers to looks.
fn wrong(looks: &[Look], answers: &[Answer]) -> Option<&'static str> {
    let (mut last, mut before): (Option<Monotonic>, Option<Look>) = (None, None);
    let (mut out, mut first) = (Bytes::ZERO, true);
    for (look, answer) in looks.iter().zip(answers) {
        // What has just come back makes no step larger.
        let out_before = out;
        if let Some((now, past)) = look.refaults.zip(before.and_then(|before| before.refaults)) {
            // Looks that are far apart do not count what came back.
            let near = before.is_some_and(|before| look.now.since(before.now) <= seconds(90));
            out = if near { out - (now - past) } else { out };
        }
        let bytes = answer.bytes();
        if bytes > Bytes::ZERO {
            let Some((size, _)) = look.size.zip(look.refaults) else { return Some("something is unknown") };
            let whole = size + out_before;
            let largest = if out_before < whole.share(HALF) { LARGEST_STEP } else { STEP };
            if bytes > whole.share(largest) {
                return Some("a step is too large");
            }
            if last.is_some_and(|last| look.now.since(last) < EVERY) || first {
                return Some("a step is too early");
            }
            if look.now.since(Monotonic(0)) < Slo::default().warm_up {
                return Some("the group is young");
            }
            if out_before + bytes > whole.share(MOST) {
                return Some("too much is out");
            }
            out += bytes;
            last = Some(look.now);
        }
        (before, first) = (Some(*look), false);
    }
    None
}

fn answers(looks: &[Look], broken: fn(&Look, Answer) -> Answer) -> Vec<Answer> {
    let mut probe = Probe::new(at(0));
    looks.iter().map(|look| broken(look, look_and_take(&mut probe, look))).collect()
}

/// The negative controls of the first law.
#[test]
fn a_probe_that_is_broken_on_purpose_is_seen() {
    let steady: Vec<(u64, u64, u64, u8)> = (0..3000).map(|_| (10, 1000, 0, 3)).collect();
    let steady = looks(&steady);
    let take = |bytes| Answer::Take { bytes, back: Bytes::ZERO, allowed: Bytes::ZERO };
    assert_eq!(wrong(&steady, &answers(&steady, |_, answer| answer)), None);
    let large = answers(&steady, |_, answer| Answer::Take {
        bytes: Bytes(answer.bytes().0 * 2),
        back: Bytes::ZERO,
        allowed: Bytes::ZERO,
    });
    assert_eq!(wrong(&steady, &large), Some("a step is too large"));
    let small = vec![take(Bytes::kib(128)); 3000];
    assert_eq!(wrong(&steady, &small), Some("a step is too early"));
    let step = |n: usize, from| if n >= from && n.is_multiple_of(3) { take(Bytes::mib(5)) } else { take(Bytes::ZERO) };
    let young: Vec<Answer> = (0..3000).map(|n| step(n, 3)).collect();
    assert_eq!(wrong(&steady, &young), Some("the group is young"));
    let much: Vec<Answer> = (0..9000).map(|n| step(n, 60)).collect();
    let long: Vec<Look> = looks(&vec![(10, 1000, 0, 3); 9000]);
    assert_eq!(wrong(&long, &much), Some("too much is out"));
    let blind: Vec<Look> = steady.iter().map(|look| Look { refaults: None, ..*look }).collect();
    assert_eq!(wrong(&blind, &much), Some("something is unknown"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_are_small_and_seldom_and_a_tenth_stays(steps in any_looks()) {
        let looks = looks(&steps);
        prop_assert_eq!(wrong(&looks, &answers(&looks, |_, answer| answer)), None);
    }

    #[test]
    fn more_that_comes_back_or_less_that_is_known_never_takes_more(
        steps in any_looks(), more in 0u64..100_000, unknown in 0u8..3, slower in option::of(0u64..10_000),
    ) {
        let mut probe = Probe::new(at(0));
        for seen in looks(&steps) {
            let take = |look: Look| probe.clone().look(&Slo::default(), &look).bytes();
            let known = take(seen);
            let worse = take(Look { refaults: seen.refaults.map(|back| back + Bytes(more)), ..seen });
            prop_assert!(worse <= known);
            let less = match unknown {
                0 => Look { size: None, ..seen },
                1 => Look { refaults: None, ..seen },
                _ => Look { swap_in: seen.swap_in.and(slower).map(|more| Duration::from_micros(6 + more)), ..seen },
            };
            let less = take(less);
            prop_assert!(less <= known);
            look_and_take(&mut probe, &seen);
        }
    }
}
