//! The form in which a threshold is kept.

use std::time::Duration;

use omr_policy::threshold::{Reason, Slo, Step, Threshold};
use omr_units::{Bytes, Permyriad};
use serde_json::{Value, json};

use super::{interval, minute, minutes, settled};

fn saved(threshold: &Threshold) -> Value {
    serde_json::to_value(threshold).expect("plain data")
}

#[test]
fn a_threshold_is_small() {
    assert!(size_of::<Threshold>() < 640, "{} bytes", size_of::<Threshold>());
    let text = saved(&settled(&Slo::default())).to_string();
    assert!(text.len() < 2700, "{} bytes of JSON", text.len());
}

#[test]
fn a_file_of_the_future_or_with_impossible_values_is_refused_as_a_whole() {
    let good = saved(&settled(&Slo::default()));
    assert!(serde_json::from_value::<Threshold>(good.clone()).is_ok());
    for (path, value, says) in [
        ("/version", json!(1), "version 1"),
        ("/version", json!(0), "version 0"),
        ("/step", json!(15), "outside of the grid"),
        ("/step", json!(-1), ""),
        ("/calm/0", json!(3_600_001), "calm"),
        ("/in_vain/0", json!(3601), "in_vain"),
        ("/evidence/kept/0/3", json!(10_801), "evidence"),
        ("/evidence/broken/0/3", json!(10_000), "evidence"),
        ("/evidence/slot", json!(8), "evidence"),
        ("/evidence/filled", json!(10_800), "evidence"),
        ("/evidence/kept/0", json!([1]), ""),
        ("/window/length", json!(600_000), "window"),
        ("/window/known", json!(1), "window"),
        ("/window/work", json!(1), "window"),
        ("/window/missing", json!(1 << 15), "window"),
        ("/observed", json!("a day"), ""),
    ] {
        let mut wrong = good.clone();
        *wrong.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        let err = serde_json::from_value::<Threshold>(wrong).expect_err(path);
        assert!(err.to_string().contains(says), "{path}: {err}");
    }
    let mut more = good.clone();
    more["harm"] = json!(1);
    assert!(serde_json::from_value::<Threshold>(more).is_err());
    let mut less = good;
    less.as_object_mut().expect("an object").remove("calm");
    assert!(serde_json::from_value::<Threshold>(less).is_err());
}

#[test]
fn after_an_absence_the_day_counts_less_and_the_threshold_stays() {
    let slo = Slo::default();
    let mut threshold = settled(&slo);
    threshold.observe(&slo, &minute(Bytes::mib(2)));
    let step = threshold.step();
    let before = threshold.clone();
    threshold.absent(Duration::ZERO);
    assert_eq!(threshold, before);
    let counted =
        |threshold: &Threshold, kind: &str| saved(threshold)["evidence"][kind][0][0].as_u64().expect("seconds");
    let (kept, broken) = (counted(&threshold, "kept"), counted(&threshold, "broken"));
    threshold.absent(minutes(24 * 60));
    assert_eq!((counted(&threshold, "kept"), counted(&threshold, "broken")), (kept / 2, broken / 2));
    threshold.absent(minutes(12 * 60));
    assert_eq!(counted(&threshold, "broken"), (broken / 2 * 3).div_ceil(4));
    assert_eq!(threshold.step(), step);
    // Observed only for 9 min more, then by what is left of the hour.
    let moved = threshold.observe(&slo, &minute(Bytes::ZERO));
    assert_eq!((moved.to, moved.reason), (step, Reason::WarmingUp { left: minutes(9) }));
    threshold.absent(Duration::MAX);
    assert_eq!((counted(&threshold, "kept"), counted(&threshold, "broken")), (0, 1));
    assert_eq!(threshold.kept(Step::LEAST), Some(Permyriad::ZERO));
    assert_eq!(threshold.step(), step);
}

/// A saved threshold begins its clock anew, and one that runs on does so every 24 days. With that, an age that
/// broke P stays closed for an hour, no more and no less.
#[test]
fn a_threshold_that_runs_on_for_months_is_the_one_that_is_loaded_each_time() {
    let slo = Slo::default();
    let mut threshold = settled(&slo);
    let mut loaded = threshold.clone();
    let mut waited = 0;
    for day in 0..200 {
        // Some days have a break of P, and times end within the hour after it.
        let promoted = if day % 7 == 3 { Bytes::mib(2) } else { Bytes::ZERO };
        let times = [(minutes(1), promoted), (minutes(40), Bytes::ZERO), (minutes(15), Bytes::ZERO)];
        for (time, promoted) in times.into_iter().chain([(minutes(23 * 60 + 4), Bytes::ZERO)]) {
            let seen = interval(time, &[(0, promoted)]);
            loaded = serde_json::from_value(saved(&loaded)).expect("its own form");
            let [moved, again] = [&mut threshold, &mut loaded].map(|threshold| threshold.observe(&slo, &seen));
            waited += usize::from(matches!(moved.reason, Reason::BrokeLately { .. }));
            assert_eq!((moved, &threshold), (again, &loaded), "day {day}");
        }
    }
    assert!(waited > 28, "{waited} times of BrokeLately");
    // A time that no clock of 32 bits has.
    threshold.observe(&slo, &minute(Bytes::mib(2)));
    threshold.observe(&slo, &interval(Duration::from_secs(u64::from(u32::MAX)), &[(0, Bytes::ZERO)]));
    let calm = saved(&threshold)["calm"].clone();
    assert_eq!(calm, json!(vec![3_600_000; 9]));
}

#[test]
fn a_restart_of_seconds_needs_no_warm_up() {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    (0..12).for_each(|_| _ = threshold.observe(&slo, &minute(Bytes::ZERO)));
    let step = threshold.step();
    threshold.absent(Duration::from_secs(5));
    assert_eq!(threshold.observe(&slo, &minute(Bytes::ZERO)).to, step.shorter().expect("shorter"));
}
