//! The metrics: names, kinds, units and descriptions.

/// A metric.
#[derive(Debug)]
pub struct Family {
    /// The name, with its unit, without `_total` and `_info`.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The unit; empty: a number.
    pub unit: &'static str,
    /// The description.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value of now.
    Gauge,
    /// A sum that only grows, or begins again.
    Counter,
    /// Counts by size.
    Histogram,
    /// Labels with the value 1.
    Info,
}

impl Kind {
    /// The name in OpenMetrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }
}

/// Declares the metrics, and the list of all.
macro_rules! families {
    ($($id:ident $kind:ident $name:literal $unit:literal $help:literal)*) => {
        $(#[doc = $help]
        pub const $id: Family = Family { name: $name, kind: Kind::$kind, unit: $unit, help: $help };)*
        /// All metrics, in the order of the text.
        pub const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    UP Gauge "omr_up" "" "1 if the daemon answers, else 0."
    POLICY Info "omr_policy" "" "The policy in force: a checksum of all settings and rules, the daemon's version, and its mode."
    READABLE Gauge "omr_history_readable" "" "1 if the history of groups can be read in full, else 0."
    SAMPLE_AGE Gauge "omr_history_sample_age_seconds" "seconds" "Time since the last sample of groups."
    CPU Counter "omr_cpu_seconds" "seconds" "CPU time of the daemon."
    MEMORY Gauge "omr_memory_bytes" "bytes" "Memory of a group at its last sample."
    PAGE_CACHE Gauge "omr_page_cache_bytes" "bytes" "Page cache of a group at its last sample, without files in tmpfs."
    SWAP Gauge "omr_swap_bytes" "bytes" "Swap of a group at its last sample."
    AGES Gauge "omr_memory_age_bytes" "bytes" "Anonymous and shared memory that was used within the last le seconds."
    WORKING_SET Gauge "omr_working_set_bytes" "bytes" "Anonymous and shared memory that was used within the last 2 min."
    STALL Gauge "omr_stall_ratio" "ratio" "Share of the time before the last sample in which some task waited for memory."
    THRESHOLD Gauge "omr_threshold_seconds" "seconds" "Age from which on memory of a group may be taken."
    PROMOTIONS Counter "omr_promotions_bytes" "bytes" "Memory that was unused for ge seconds or longer, and was used again; from midnight UTC on."
    RATE Gauge "omr_slo_promotion_ratio" "ratio" "Promotions at the threshold in a minute, as a share of the working set."
    LIMIT Gauge "omr_slo_limit_ratio" "ratio" "Promotions that are allowed in a minute, as a share of the working set."
    DECISIONS Counter "omr_decisions" "" "Sweeps of groups; of other decisions, how often one of this kind followed one of another."
    DECISION_TIME Counter "omr_decision_seconds" "seconds" "Time for which decisions of this kind were in force."
    RECLAIMED Counter "omr_reclaimed_bytes" "bytes" "Memory that sweeps, preparations and hints have reclaimed."
    CAME_BACK Counter "omr_came_back_bytes" "bytes" "Refaults of groups in the 5 min after their sweeps."
    HELD_OUT Gauge "omr_held_out_bytes" "bytes" "Memory that sweeps took to swap and that is still there."
    REGRET Counter "omr_regret_seconds" "seconds" "Time that tasks of swept groups waited for memory, beyond that before the sweeps."
    STOPS Histogram "omr_stop_seconds" "seconds" "Time from the moment in which a sweep was told to stop until it had stopped."
    SWAP_WRITTEN Counter "omr_swap_written_bytes" "bytes" "Written to swap of any kind by sweeps, preparations and hints."
    BUDGET_WRITTEN Gauge "omr_write_budget_used_bytes" "bytes" "Written to swap on disks within the time of the write budget."
    BUDGET Gauge "omr_write_budget_bytes" "bytes" "The write budget."
    IMAGE Gauge "omr_image_forecast_bytes" "bytes" "Size of the hibernation image as it would be now, at most."
    IMAGE_TIME Gauge "omr_image_write_seconds" "seconds" "Time to write that image, at most."
}
