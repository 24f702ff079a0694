//! What the daemon's status adds: figures of now, of which no history is kept.

use std::time::Duration;

use omr_control::status::Status;
use omr_policy::Objective;
use omr_policy::threshold::PromotionRate;
use omr_units::{Budget, Bytes};

use crate::{Charts, Fact, Unit};

/// What is in force now, and is not recorded for the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The age from which on memory of the group may be taken; `None`: any age, or unknown.
    pub threshold: Option<Duration>,
    /// The promotions that are allowed.
    pub objective: PromotionRate,
    /// The write budget that is reached first; `None`: unlimited, or unknown.
    pub budget: Option<Budget>,
}

impl Now {
    /// Takes what is in force from the daemon's status, and the objective from the configuration.
    pub fn new(status: Option<&Status>, group: &str, objective: &Objective) -> Self {
        let swap = status.and_then(|status| status.swap.as_ref());
        let of_group = status.and_then(|status| status.groups.iter().find(|of| of.group == group));
        Now {
            threshold: of_group.and_then(|of| of.by_age.as_ref()).map(|by_age| by_age.min_age),
            objective: objective.rate(swap.is_some_and(|swap| swap.on_disk)),
            budget: swap.and_then(|swap| swap.budget),
        }
    }
}

impl Charts {
    /// Sets the figures of now; `None`: the charts show the past, or the daemon does not answer.
    pub fn set_now(&mut self, status: Option<&Status>) {
        for chart in [&mut self.unused, &mut self.promise, &mut self.taken, &mut self.waited] {
            chart.facts.clear();
        }
        let bytes = |name, value: Option<Bytes>| Fact { name, unit: Unit::Bytes, value: value.map(|value| value.0) };
        let time = |name, value: Option<u64>| Fact { name, unit: Unit::Milliseconds, value };
        let Some(status) = status else {
            for chart in [&mut self.place, &mut self.writes, &mut self.cpu, &mut self.sleep] {
                chart.facts.clear();
            }
            self.sleep.now = None;
            return;
        };
        let (today, swap) = (&status.today, status.swap.as_ref());
        self.taken.facts = vec![
            bytes("freed today", Some(today.freed)),
            bytes("came back today", Some(today.came_back)),
            bytes("still out", Some(status.held_out_bytes)),
        ];
        self.waited.facts = vec![time("waited for memory today", Some(today.waited_ms))];
        self.place.facts = vec![
            bytes("swap", swap.map(|swap| swap.total)),
            bytes("free swap", swap.map(|swap| swap.free)),
            bytes("free swap that stays free", swap.map(|swap| swap.floor)),
        ];
        self.writes.facts = vec![
            bytes("written to swap within the budget's time", swap.map(|swap| swap.written)),
            bytes("write budget", swap.and_then(|swap| swap.budget).map(|budget| budget.bytes)),
        ];
        self.cpu.facts = vec![
            time("sweeps today", Some(today.cpu_ms)),
            time("samples and agings since the daemon started", status.history.as_ref().map(|history| history.cpu_ms)),
        ];
        let image = status.image.as_ref();
        let forecast = image.and_then(|image| image.forecast.as_ref());
        self.sleep.facts = vec![
            bytes("image, at most", forecast.map(|forecast| forecast.image)),
            time("time to write it, at most", image.and_then(|image| image.write_ms_at_most)),
            bytes("disk, in a second", image.and_then(|image| image.disk_rate)),
            bytes("memory in use", forecast.map(|forecast| forecast.in_use)),
            bytes("copied at once, if no more is in use", forecast.map(|forecast| forecast.fast)),
            bytes("must be in the image", forecast.map(|forecast| forecast.must_stay)),
        ];
        self.sleep.now = Some(match (image.and_then(|image| image.obstacle.as_ref()), forecast) {
            (Some(why), _) => format!("it cannot hibernate: {why}"),
            (None, None) => "no forecast of the image yet: the daemon makes one within a minute".to_owned(),
            (None, Some(forecast)) if forecast.is_fast() => "it could hibernate now without reclaim".to_owned(),
            (None, Some(_)) => "the kernel would first reclaim from the whole machine".to_owned(),
        });
    }
}
