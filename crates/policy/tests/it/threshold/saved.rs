//! The form in which a threshold is kept.

use std::time::Duration;

use omr_policy::threshold::{Reason, Slo, Step, Threshold};
use omr_units::{Bytes, Permyriad};
use serde_json::{Value, json};

use super::{minute, minutes, settled};

fn saved(threshold: &Threshold) -> Value {
    serde_json::to_value(threshold).expect("plain data")
}

#[test]
fn a_threshold_is_small() {
    assert!(size_of::<Threshold>() < 512, "{} bytes", size_of::<Threshold>());
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

#[test]
fn a_restart_of_seconds_needs_no_warm_up() {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    (0..12).for_each(|_| _ = threshold.observe(&slo, &minute(Bytes::ZERO)));
    let step = threshold.step();
    threshold.absent(Duration::from_secs(5));
    assert_eq!(threshold.observe(&slo, &minute(Bytes::ZERO)).to, step.shorter().expect("shorter"));
}
