//! Reasons in words, for people.

use core::fmt;
use core::time::Duration;

use super::Reason;
use crate::cost::Power;
use crate::need::whole;
use crate::presence;

/// A time in few digits: milliseconds below 0.1 s, tenths of a second below 10 s, then whole
/// seconds; minutes and hours from two of them on.
pub fn short(time: Duration) -> impl fmt::Display {
    struct Short(Duration);
    impl fmt::Display for Short {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let seconds = self.0.as_secs();
            match seconds {
                0 if self.0.subsec_millis() < 100 => write!(f, "{} ms", self.0.as_millis()),
                0..10 => write!(f, "{}.{} s", seconds, self.0.subsec_millis() / 100),
                10..120 => write!(f, "{seconds} s"),
                120..7200 => write!(f, "{} min", seconds / 60),
                _ => write!(f, "{} h", seconds / 3600),
            }
        }
    }
    Short(time)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Idle { idle } => write!(f, "idle for {}", short(*idle)),
            Reason::Paused { left: None } => write!(f, "paused until omr resume"),
            Reason::Paused { left: Some(left) } => write!(f, "paused for another {}", short(*left)),
            Reason::GoingToSleep { left } => {
                write!(f, "the machine is about to sleep; if it does not, sweeps may begin in {}", short(*left))
            }
            Reason::AfterBoot { left } => write!(f, "no sweep after boot for another {}", short(*left)),
            Reason::AfterResume { left } => write!(f, "no sweep after waking up for another {}", short(*left)),
            Reason::Unknown { signal } => write!(f, "{signal} cannot be read, which counts as busy"),
            Reason::CpuBusy { cpu, idle, needed } => {
                write!(f, "not idle: cpu {cpu} is {idle} idle, {needed} is needed (strict rule)")
            }
            Reason::LowHeadroom { free, needed } => {
                write!(f, "not idle: {free} of CPU time is free, {needed} is needed (headroom rule)")
            }
            Reason::ForegroundBusy { used, allowed } => {
                write!(f, "not idle: foreground groups use {used} of a CPU, {allowed} is allowed")
            }
            Reason::Pressure { resource, share, allowed } => {
                write!(f, "not idle: tasks wait for {resource} {share} of the time, {allowed} is allowed")
            }
            Reason::Preparing { what } => write!(f, "preparing for {what}"),
            Reason::Settling { idle, needed } => {
                write!(f, "idle for {} so far, {} is needed", short(*idle), short(*needed))
            }
            Reason::WorkBegan { used, allowed } => {
                write!(f, "work began: {used} of a CPU outside background groups, {allowed} is allowed during a sweep")
            }
            Reason::Stalled { stall, window } => {
                write!(f, "a task waited for memory for more than {} in {}", short(*stall), short(*window))
            }
            Reason::Warming => write!(f, "omr is bringing memory back"),
            Reason::Recording => write!(f, "mode record: nothing is reclaimed"),
            Reason::SwapOff => write!(f, "swap is being switched off, and all memory in it comes back"),
            Reason::Stopping => write!(f, "the daemon is stopping"),
            reason => reason.fmt_of_group(f),
        }
    }
}

impl Reason {
    /// The reasons that are about one group or about swap.
    fn fmt_of_group(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NothingToGain => write!(f, "no group has anything to gain"),
            Reason::Class { class } => write!(f, "class {}: loses no memory", class.name()),
            Reason::KernelProtection => write!(f, "memory.min or memory.low protects all of its memory"),
            Reason::Keep { keep } => write!(f, "its rule keeps {keep}, which covers all of its memory"),
            Reason::TooSmall { gain, smallest } => write!(f, "{gain} to gain, {smallest} is worth a sweep"),
            Reason::NoAges { why } => {
                write!(f, "only its cold memory is reclaimed, and ages are not known here: {why}")
            }
            Reason::Probing { why, out } => {
                write!(f, "ages are not known here, so a probe reclaims a little at a time ({out} is out): {why}")
            }
            Reason::Learning { threshold } => {
                write!(
                    f,
                    "only memory that will not be missed is reclaimed, and omr still learns which that is \
                     (threshold {})",
                    short(*threshold)
                )
            }
            Reason::NotAged { needed } => {
                write!(
                    f,
                    "its rule reclaims only memory unused for {}, and ages that long are not known yet",
                    short(*needed)
                )
            }
            Reason::LittleCold { cold, min_age, smallest } => {
                write!(f, "{cold} is known to be unused for {}, {smallest} is worth a sweep", short(*min_age))
            }
            Reason::SweptAlready { grown, needed } => {
                write!(f, "swept before and grown by {grown} since, {needed} is worth another sweep")
            }
            Reason::JustSwept { left } => write!(f, "swept a moment ago, not swept for another {}", short(*left)),
            Reason::GivenBack { left, min_age } => {
                write!(
                    f,
                    "memory was given back to it, and what stays unused for {} is cold in {}",
                    short(*min_age),
                    short(*left)
                )
            }
            Reason::BackingOff { left, refaults: Some(refaults) } => {
                write!(f, "backing off for another {}: {refaults} came back in a minute", short(*left))
            }
            Reason::BackingOff { left, refaults: None } => {
                write!(f, "backing off for another {}: it could not be reclaimed", short(*left))
            }
            Reason::Refaults { bytes, allowed } => {
                write!(f, "{bytes} came back in the last minute, {allowed} is allowed")
            }
            Reason::SwapChanged => write!(f, "swap devices were added or removed since the sweep began"),
            Reason::NoSwap => write!(f, "there is no swap, and hardly any page cache to reclaim"),
            Reason::SwapFloor { free, floor } => write!(f, "{free} of swap is free, {floor} stays free"),
            Reason::WriteBudget { used, budget } => {
                write!(f, "{used} was written to swap, the write budget is {budget}")
            }
            reason => reason.fmt_of_goal(f),
        }
    }

    /// The reasons of one goal.
    fn fmt_of_goal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::CannotHibernate => {
                write!(f, "this machine cannot hibernate (goal = \"hibernate\"); omr prepare hibernate says why")
            }
            Reason::SmallImage { image, target } => {
                write!(f, "an image would hold {image}, and {target} is small enough")
            }
            Reason::NoNeed { available, wanted } => {
                write!(f, "nothing to gain: {} of memory is available (auto wants {wanted})", whole(*available))
            }
            Reason::LittleNeed { need, smallest } => {
                write!(f, "little to gain: {need}; {smallest} is worth a sweep")
            }
            Reason::NoMinAge => {
                write!(f, "only the host would gain, from cold memory, and no rule (older_than) says what is cold")
            }
            Reason::AvailableAlready { page_cache, gain, smallest } => {
                write!(
                    f,
                    "{gain} to gain, {smallest} is worth a sweep; its page cache, {page_cache}, is available already"
                )
            }
            Reason::MediumBudget { medium, used, budget } => {
                write!(f, "the write budget for {} is used up: {used} of {budget}", medium.with_article())
            }
            Reason::OnBattery { power: Power::Unknown } => {
                write!(
                    f,
                    "the power source is not known, which counts as on battery: nothing is written to swap on disk"
                )
            }
            Reason::OnBattery { .. } => write!(f, "on battery: nothing is written to swap on disk"),
            Reason::SomebodyThere { presence } => presence::explain(presence, f),
            reason => reason.fmt_of_quiet(f),
        }
    }

    /// The reasons of sweeps of cold memory on a machine that is not idle.
    fn fmt_of_quiet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Quiet { quiet, free } => write!(f, "quiet for {}, {free} of a CPU free", short(*quiet)),
            Reason::QuietFor { quiet, needed } => {
                write!(f, "quiet for {} so far, {} is needed for cold memory", short(*quiet), short(*needed))
            }
            Reason::LittleFree { free, needed, window } => {
                write!(f, "not quiet: {free} of a CPU was free in the last {}, {needed} is needed", short(*window))
            }
            Reason::NotQuiet { resource, share, allowed, window } => {
                let resource = match resource.as_str() {
                    "cpu" => "a CPU",
                    "io" => "I/O",
                    other => other,
                };
                write!(
                    f,
                    "not quiet: {share} of the last {} some task waited for {resource}, {allowed} is allowed",
                    short(*window)
                )
            }
            Reason::Resting { left, cpu } => {
                write!(
                    f,
                    "the last sweep of cold memory took {} of CPU time, the next one begins in {}",
                    short(*cpu),
                    short(*left)
                )
            }
            Reason::CutShort { times: 1, left } => {
                write!(f, "work cut short the last sweep of cold memory, none begins for another {}", short(*left))
            }
            Reason::CutShort { times, left } => {
                let left = short(*left);
                write!(f, "work cut short the last {times} sweeps of cold memory, none begins for another {left}")
            }
            reason => reason.fmt_of_process(f),
        }
    }

    /// The reasons that are about one process.
    fn fmt_of_process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Available { available, enough } => {
                write!(f, "{available} of memory is available, {enough} is enough")
            }
            Reason::Hinting => write!(f, "a background process is being hinted"),
            Reason::Unused { unused, needed } => {
                write!(f, "in the background and unused for {}, {} is needed", short(*unused), short(*needed))
            }
            Reason::InUse { unused, needed } => {
                write!(f, "used or in the foreground {} ago, {} is needed", short(*unused), short(*needed))
            }
            Reason::NotStated => write!(f, "no rule or statement says that it is in the background"),
            Reason::SmallProcess { anon, smallest } => {
                write!(f, "{anon} of anonymous memory, {smallest} is worth a hint")
            }
            Reason::CameBack => write!(f, "it is in the foreground again"),
            Reason::MarkedCold { unused, needed } => {
                write!(f, "marked cold; unused for {}, at {} it is paged out", short(*unused), short(*needed))
            }
            Reason::Unchanged { change, needed } => {
                write!(f, "paged out before and changed by {change} since, {needed} is worth another time")
            }
            Reason::JustHinted { left } => write!(f, "hinted a moment ago, no hint for another {}", short(*left)),
            Reason::Refused { left } => write!(f, "the last hint was refused, no hint for another {}", short(*left)),
            Reason::GroupKeeps { room, anon } => {
                write!(f, "its group may lose {room}, and the process has {anon}")
            }
            // Printed by the functions above. A new reason must get its text in one of the five.
            Reason::Idle { .. }
            | Reason::Quiet { .. }
            | Reason::QuietFor { .. }
            | Reason::LittleFree { .. }
            | Reason::NotQuiet { .. }
            | Reason::Resting { .. }
            | Reason::CutShort { .. }
            | Reason::Paused { .. }
            | Reason::Warming
            | Reason::Recording
            | Reason::SwapOff
            | Reason::GoingToSleep { .. }
            | Reason::AfterBoot { .. }
            | Reason::AfterResume { .. }
            | Reason::Unknown { .. }
            | Reason::CpuBusy { .. }
            | Reason::LowHeadroom { .. }
            | Reason::ForegroundBusy { .. }
            | Reason::Pressure { .. }
            | Reason::Preparing { .. }
            | Reason::Settling { .. }
            | Reason::WorkBegan { .. }
            | Reason::Stalled { .. }
            | Reason::Stopping
            | Reason::NothingToGain
            | Reason::Class { .. }
            | Reason::KernelProtection
            | Reason::Keep { .. }
            | Reason::TooSmall { .. }
            | Reason::NoAges { .. }
            | Reason::NotAged { .. }
            | Reason::Learning { .. }
            | Reason::Probing { .. }
            | Reason::LittleCold { .. }
            | Reason::SweptAlready { .. }
            | Reason::JustSwept { .. }
            | Reason::GivenBack { .. }
            | Reason::BackingOff { .. }
            | Reason::Refaults { .. }
            | Reason::NoSwap
            | Reason::SwapChanged
            | Reason::CannotHibernate
            | Reason::SmallImage { .. }
            | Reason::NoNeed { .. }
            | Reason::LittleNeed { .. }
            | Reason::NoMinAge
            | Reason::AvailableAlready { .. }
            | Reason::SomebodyThere { .. }
            | Reason::SwapFloor { .. }
            | Reason::MediumBudget { .. }
            | Reason::OnBattery { .. }
            | Reason::WriteBudget { .. } => Ok(()),
        }
    }
}
