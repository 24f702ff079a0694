//! The table of a replay, for people.

use std::fmt::Write as _;

use omr_fleet::summary::{Told, ToldOfPolicy};
use omr_policy::short;
use omr_policy::threshold::Step;
use omr_units::{Bytes, Permyriad};

/// The width of the bars.
const WIDTH: u32 = 30;

/// The table and the chart.
pub fn text(told: &Told, bad: usize) -> String {
    let recorded = &told.recorded;
    let mut text = format!(
        "{} shards, {} jobs, {} windows, {} of them known{}; {} of the memory was unused for 2 min\n\n",
        told.shards,
        recorded.jobs,
        recorded.windows,
        percent(told.known_permyriad),
        if bad > 0 { format!(", {bad} bad shards left out") } else { String::new() },
        range(told.cold_permyriad),
    );
    if recorded.swap_kib_min > 0 {
        let _ = writeln!(
            text,
            "while it was recorded, {} of it was in swap, and in 98 % of the windows no more than {} came back\n",
            percent(told.in_swap_permyriad),
            rates([told.refaulted_p98; 2]),
        );
    }
    let longest = told.policies.iter().map(|of| of.policy.name.chars().count()).max().unwrap_or_default().max(6);
    let _ = writeln!(
        text,
        "{:longest$}  {:>14}  {:>6}  {:>14}  {:>14}  {:>14}  {:>9}  {:>12}",
        "POLICY", "HELD OUT", "LIKELY", "P98", "P98, BOUND", "OVER", "THRESHOLD", "WRITTEN"
    );
    for of in &told.policies {
        let _ = writeln!(
            text,
            "{:longest$}  {:>14}  {:>6}  {:>14}  {:>14}  {:>14}  {:>9}  {:>12}",
            of.policy.name,
            range(of.held_permyriad),
            percent(of.held_likely_permyriad),
            rates(of.promoted_p98),
            rates(of.promoted_p98_upper),
            range(of.over_permyriad),
            threshold(of),
            daily(of.written_kib_per_day),
        );
    }
    text += "\n\
        Two figures: at least and at most. HELD OUT: of all memory, on average. LIKELY: an estimate of\n\
        HELD OUT. P98: in 98 % of the windows no more of the memory in use comes back in a minute. BOUND: P98\n\
        in 95 % of the draws of a bootstrap over jobs. OVER: windows with more than the policy allows.\n\
        THRESHOLD: the median. WRITTEN: to swap, of a machine, at most. Bars: # at least, - at most.\n\nHELD OUT\n";
    text += &bars(told, longest, |of| of.held_permyriad.map(|held| held.0.into()), |of| range(of.held_permyriad));
    text += "\nCOMES BACK, of a machine\n";
    text += &bars(
        told,
        longest,
        |of| of.back_kib_per_day,
        |of| {
            let [least, most] = of.back_kib_per_day.map(daily);
            format!("{least} to {most}, likely {}", daily(of.back_likely_kib_per_day))
        },
    );
    text.trim_end().to_owned()
}

/// A bar for each policy, of two figures.
fn bars(
    told: &Told,
    longest: usize,
    of: impl Fn(&ToldOfPolicy) -> [u64; 2],
    words: impl Fn(&ToldOfPolicy) -> String,
) -> String {
    let most = told.policies.iter().map(|policy| of(policy)[1]).max().unwrap_or_default().max(1);
    let mut text = String::new();
    for policy in &told.policies {
        let part = |value: u64| u128::from(value) * u128::from(WIDTH) / u128::from(most);
        let [least, most] = of(policy).map(|value| usize::try_from(part(value)).unwrap_or_default());
        let bar = format!("{}{}", "#".repeat(least), "-".repeat(most - least));
        let _ = writeln!(text, "{:longest$}  {bar} {}", policy.policy.name, words(policy));
    }
    text
}

fn daily(kib: u64) -> String {
    format!("{}/day", Bytes::kib(kib.min(u64::MAX >> 10)))
}

/// The age below which half of the time was spent.
fn threshold(of: &ToldOfPolicy) -> String {
    let all: u64 = of.sums.at_step_ms.iter().sum();
    let mut below = 0;
    let median = Step::all().zip(of.sums.at_step_ms).find(|(_, time)| {
        below += time;
        below > 0 && below >= all.div_ceil(2)
    });
    median.map_or_else(|| "-".into(), |(step, _)| short(step.age()).to_string())
}

fn range([least, most]: [Permyriad; 2]) -> String {
    if least == most { percent(least) } else { format!("{} to {}", number(least), percent(most)) }
}

fn number(Permyriad(permyriad): Permyriad) -> String {
    format!("{}.{}", permyriad / 100, permyriad / 10 % 10)
}

fn percent(share: Permyriad) -> String {
    format!("{} %", number(share))
}

/// Millionths per minute.
fn rates([least, most]: [Option<u64>; 2]) -> String {
    let text = |millionths: u64| match millionths {
        u64::MAX => "all".to_owned(),
        rate => format!("{}.{:02}", rate / 10_000, rate / 100 % 100),
    };
    match (least, most) {
        (Some(least), Some(most)) if text(least) == text(most) => format!("{} %", text(most)),
        (Some(least), Some(most)) => format!("{} to {} %", text(least), text(most)),
        _ => "-".into(),
    }
}
