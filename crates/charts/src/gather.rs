//! Makes charts of samples and of lines of the ledger, one by one: a week of samples does not have
//! to fit into memory.

use std::time::Duration;

use omr_history::ledger::Entry;
use omr_history::{AGES, MOST_GROUPS, SMALLEST, Sample};
use omr_policy::age::Bounds;
use omr_policy::short;
use omr_policy::threshold::Step;
use omr_units::{Bytes, millis};

use crate::timeline::Timeline;
use crate::{COLD, Chart, Charts, NO_HISTORY, Now, Range, Series, Shape, Topic, Unit, Window};

/// The parts of memory that every machine and group has.
const KNOWN_PLACES: usize = 5;

/// Charts that are being made.
pub(crate) struct Gather {
    group: String,
    window: Window,
    now: Now,
    ages: Vec<Series>,
    /// The threshold in force in each column, in seconds.
    thresholds: Vec<Option<u64>>,
    promotions: Series,
    taken: [Series; 3],
    back: [Series; 2],
    out: Series,
    /// A task waited, all tasks waited, regret, the longest write, and the longest stop.
    waited: [Series; 5],
    place: [Series; 10],
    written: Series,
    cpu: [Series; 2],
    image: Series,
    timeline: Timeline,
    /// The columns in which the daemon took samples.
    sampled: Vec<bool>,
    /// The first time in the ledger; `None`: the ledger is empty.
    ledger_begins: Option<u64>,
    /// The number of samples of the group, and of those with ages and with promotions.
    seen: [u64; 3],
    observed: bool,
}

impl Gather {
    pub fn new(group: &str, window: Window, now: &Now) -> Self {
        let series = |name: &str, shape| Series::new(name, shape, window);
        Gather {
            group: group.to_owned(),
            window,
            now: *now,
            thresholds: vec![None; window.columns],
            ages: AGES.map(|age| series(&short(age).to_string(), Shape::Age(age.as_secs()))).into(),
            promotions: series("promotions at the threshold", Shape::Line),
            taken: [
                series("anon taken", Shape::Up),
                series("file taken", Shape::Up),
                series("to slower memory", Shape::Up),
            ],
            back: [series("anon back", Shape::Down), series("file back", Shape::Down)],
            out: series("still out, on average", Shape::Line),
            waited: [
                series("some task waited (PSI)", Shape::Line),
                series("all tasks waited (PSI)", Shape::Line),
                series("regret", Shape::Line),
                series("longest write of a sweep", Shape::Line),
                series("longest time until a sweep stopped", Shape::Line),
            ],
            place: [
                series("used within 2 min", Shape::Part),
                series("used or cold", Shape::Part),
                series("cold", Shape::Part),
                series("age unknown", Shape::Part),
                series("page cache", Shape::Part),
                series("swap", Shape::Part),
                series("in zram", Shape::Part),
                series("in zswap", Shape::Part),
                series("swap on disk", Shape::Part),
                series("free", Shape::Part),
            ],
            written: series("written to swap", Shape::Line),
            cpu: [series("sweeps and hints", Shape::Up), series("samples and agings", Shape::Up)],
            image: series("image, at most", Shape::Line),
            timeline: Timeline::new(window),
            sampled: vec![false; window.columns],
            ledger_begins: None,
            seen: [0; 3],
            observed: false,
        }
    }

    pub fn add_sample(&mut self, sample: &Sample) {
        let (window, time) = (self.window, sample.time.as_secs());
        let over = sample.since.as_ref().map_or(0, |since| since.over.as_secs());
        if sample.group.as_os_str().is_empty() {
            for (column, ..) in window.parts(time, over.max(1)) {
                if let Some(sampled) = self.sampled.get_mut(column) {
                    *sampled = true;
                }
            }
            let image = sample.machine.and_then(|machine| machine.image);
            self.image.set(window, time, over, image.map(|image| Range::exact(image.0)));
            if let Some(cost) = sample.cost {
                self.cpu[1].add(window, time, over, millis(cost.cpu));
            }
        }
        if sample.group.to_string_lossy() != self.group.as_str() {
            return;
        }
        let idle = sample.idle.as_ref();
        // Of memory that was not observed for an age, nothing is known: not that it is used.
        let known = |bounds: Bounds| {
            let all = idle.map_or(Bytes::ZERO, |idle| idle.memory);
            bounds.least > Bytes::ZERO || bounds.most < all || all == Bytes::ZERO
        };
        for (age, series) in AGES.into_iter().zip(&mut self.ages) {
            let bounds = idle.and_then(|idle| idle.of(age)).filter(|bounds| known(*bounds));
            series.set(window, time, over, bounds.map(Range::from));
        }
        for (column, ..) in window.parts(time, over.max(1)) {
            if let Some(of) = self.thresholds.get_mut(column) {
                *of = sample.threshold.map(|age| age.as_secs());
            }
        }
        // The history knows the promotions at the ages of the grid.
        let judged = sample.threshold.or(self.now.threshold).map_or(COLD, |age| Step::not_above(age).age());
        self.promotions.set(window, time, over, promotion_rate(sample, judged));
        if let Some(since) = &sample.since {
            for (series, amount) in self.back.iter_mut().zip([since.refaults_anon, since.refaults_file]) {
                amount.into_iter().for_each(|amount| series.add(window, time, over, amount.0));
            }
            for (series, waited) in self.waited.iter_mut().zip([since.stalled, since.stalled_full]) {
                waited.into_iter().for_each(|waited| series.add(window, time, over, millis(waited)));
            }
        }
        let exact = |bytes: Bytes| Some(Range::exact(bytes.0));
        let memory = sample.anon + sample.shmem;
        let cold = idle.and_then(|idle| idle.of(COLD));
        let cold = cold.map(|of| Bounds { least: of.least.min(memory), most: of.most.min(memory) });
        let parts = match cold {
            Some(cold) => [exact(memory - cold.most), exact(cold.most - cold.least), exact(cold.least), None],
            None => [None, None, None, exact(memory)],
        };
        // Memory in zswap has a place on the disk as well, at its full size.
        let swap = match &sample.machine {
            Some(of) => {
                let in_zswap = of.zswap.map(|zswap| zswap.stored);
                let on_disk = of.disk.map(|disk| disk - in_zswap.unwrap_or_default());
                [None, of.zram.map(|zram| zram.stored), in_zswap, on_disk, of.free].map(|of| of.and_then(exact))
            }
            None => [sample.swap.and_then(exact), None, None, None, None],
        };
        let others = [exact(sample.file - sample.shmem)].into_iter().chain(swap);
        for (series, value) in self.place.iter_mut().zip(parts.into_iter().chain(others)) {
            series.set(window, time, over, value);
        }
        let counted = [true, idle.is_some(), sample.promotions.is_some()];
        self.seen.iter_mut().zip(counted).for_each(|(seen, counted)| *seen += u64::from(counted));
    }

    pub fn add_entry(&mut self, entry: &Entry) {
        let window = self.window;
        let time = crate::event::time(entry);
        self.ledger_begins = Some(self.ledger_begins.map_or(time, |first| first.min(time)));
        if !crate::event::is_of(entry, &self.group) {
            return;
        }
        self.timeline.add(entry);
        match entry {
            Entry::Sweep(swept) => {
                self.observed |= swept.observed && window.column(time).is_some();
                if !swept.observed {
                    self.take(time, swept.freed_anon, swept.freed_file, swept.demoted);
                    self.write(time, swept.swapped_out);
                }
                self.cpu[0].add(window, time, 1, swept.cpu_ms);
                self.waited[3].raise(window, time, swept.longest_write_ms);
                swept.stop_ms.into_iter().for_each(|ms| self.waited[4].raise(window, time, ms));
            }
            Entry::Prepare(prepared) if !prepared.observed => {
                self.take(time, prepared.freed_anon, prepared.freed_file, Bytes::ZERO);
                self.write(time, prepared.swapped_out);
            }
            Entry::Hint(hint) => {
                if !hint.observed {
                    self.take(time, hint.freed, Bytes::ZERO, Bytes::ZERO);
                    self.write(time, hint.swapped_out);
                }
                self.cpu[0].add(window, time, 1, hint.cpu_ms);
            }
            Entry::GiveBack(given) => self.cpu[0].add(window, time, 1, given.cpu_ms),
            Entry::Regret(line) => self.waited[2].add(window, time, 1, line.waited_ms),
            Entry::HeldOut(line) => {
                let groups = line.groups.iter().filter(|of| crate::event::is_below(&of.group, &self.group));
                let bytes: Bytes = groups.map(|of| of.bytes).sum();
                self.out.set(window, time, line.over_ms / 1000, Some(Range::exact(bytes.0)));
            }
            Entry::Prepare(_) | Entry::LeftAlone { .. } | Entry::Refaults { .. } | Entry::Holds(_) => {}
        }
    }

    fn take(&mut self, time: u64, anon: Bytes, file: Bytes, demoted: Bytes) {
        for (series, bytes) in self.taken.iter_mut().zip([anon, file, demoted]) {
            series.add(self.window, time, 1, bytes.0);
        }
    }

    /// Counts what was written in all columns that end within the time of the budget.
    fn write(&mut self, time: u64, bytes: Bytes) {
        let counts = u64::from(self.now.budget.map_or(24, |budget| budget.hours)) * 3600;
        let window = self.window;
        for (column, of) in self.written.values.iter_mut().enumerate() {
            let end = window.start(column + 1);
            if time < end && end <= time.saturating_add(counts) {
                let sum = of.unwrap_or_default().least.saturating_add(bytes.0);
                *of = Some(Range::exact(sum));
            }
        }
    }

    /// Returns true if no sample told about the window.
    pub fn is_empty(&self) -> bool {
        self.seen == [0; 3] && !self.sampled.contains(&true)
    }

    /// Returns the charts.
    pub fn finish(mut self, skipped: Vec<String>, has_no_history: bool) -> Charts {
        let window = self.window;
        // Without a line in the ledger nothing happened, if the daemon ran and the ledger reaches
        // back that far.
        let begins = self.ledger_begins;
        let recorded: Vec<bool> = self
            .sampled
            .iter()
            .enumerate()
            .map(|(column, sampled)| *sampled && begins.is_some_and(|begins| begins < window.start(column + 1)))
            .collect();
        // A sweep that stopped before this was recorded is unknown, so no stop is no zero.
        let events = self.taken.iter_mut().chain(&mut self.waited[2..4]).chain(&mut self.cpu[..1]);
        events.chain([&mut self.written]).for_each(|series| series.or_zero(&recorded));
        self.timeline.set_recorded(&recorded);

        let mut unused = Chart::new(Topic::Unused.question(), Unit::Bytes, window);
        unused.threshold = self.now.threshold.map(|age| age.as_secs());
        unused.series = self.ages;
        let is_recorded = self.thresholds.iter().any(Option::is_some);
        unused.thresholds = self.thresholds;
        unused.notes.push(match self.now.threshold {
            Some(age) => format!("the threshold is {} now", short(age)),
            None if self.group.is_empty() => "each group has a threshold of its own".to_owned(),
            None => "no threshold is known for this group now".to_owned(),
        });
        if !is_recorded && !self.group.is_empty() {
            unused.notes.push("no thresholds are recorded in this time".to_owned());
        }
        let mut promise = Chart::new(Topic::Promise.question(), Unit::PromotionRate, window);
        promise.limit = Some(u64::from(self.now.objective.0));
        promise.series = vec![self.promotions];
        promise.notes.push(match self.now.threshold {
            _ if is_recorded => "judged at the threshold of each time".to_owned(),
            Some(age) => {
                let judged = short(Step::not_above(age).age());
                format!("judged at {judged}, the longest known age below the threshold of now, {}", short(age))
            }
            None => format!("no threshold is known; judged at {}, the shortest one", short(COLD)),
        });
        let mut taken = Chart::new(Topic::Taken.question(), Unit::Bytes, window);
        taken.series = self.taken.into_iter().chain(self.back).chain([self.out]).collect();
        taken.notes.push("what came back is that of all reclaim; a moment's explanation names the method".to_owned());
        if self.observed {
            taken.notes.push("mode observe: sweeps were decided and not done, so they are not in the chart".to_owned());
        }
        let mut waited = Chart::new(Topic::Waited.question(), Unit::Milliseconds, window);
        let stops = self.waited[4].values.iter().any(Option::is_some);
        waited.series = self.waited.into_iter().take(if stops { 5 } else { 4 }).collect();
        if !stops {
            let why = "no sweep was stopped in this time, or an older omr did not record how long that took";
            waited.notes.push(why.to_owned());
        }
        let mut place = Chart::new(Topic::Place.question(), Unit::Bytes, window);
        // A group has one kind of swap, and most machines have not all of them.
        let is_there = |series: &Series| series.values.iter().any(Option::is_some);
        let parts = self.place.into_iter().enumerate();
        place.series = parts.filter(|(at, of)| *at < KNOWN_PLACES || is_there(of)).map(|(_, of)| of).collect();
        place.notes.push("swapped memory is shown at its full size, without compression".to_owned());
        let mut writes = Chart::new("What did it cost in swap writes?", Unit::Bytes, window);
        writes.limit = self.now.budget.map(|budget| budget.bytes.0);
        writes.series = vec![self.written];
        writes.notes.push(match self.now.budget {
            Some(budget) => format!("each point is the sum of the time of the budget, {budget}"),
            None => "no budget is known; each point is the sum of 24 h".to_owned(),
        });
        let mut cpu = Chart::new("What did it cost in CPU time?", Unit::Milliseconds, window);
        cpu.series = self.cpu.into();
        let mut sleep = Chart::new(Topic::Sleep.question(), Unit::Bytes, window);
        let has_images = self.image.values.iter().any(Option::is_some);
        sleep.series = vec![self.image];
        if !has_images {
            sleep.notes.push("no forecasts are recorded in this time, or the machine cannot hibernate".to_owned());
        }

        let empty = [&mut unused, &mut promise, &mut taken, &mut waited, &mut place, &mut writes, &mut sleep];
        match self.seen {
            _ if has_no_history => {
                empty.into_iter().for_each(|chart| chart.notes.push(NO_HISTORY.to_owned()));
                self.timeline.notes.push(NO_HISTORY.to_owned());
            }
            [0, ..] => {
                let why = format!(
                    "no samples in this time: the history has the {MOST_GROUPS} largest groups with {SMALLEST} and \
                     more, by default every ten minutes while the daemon runs"
                );
                for chart in [&mut unused, &mut promise, &mut place] {
                    chart.notes.push(why.clone());
                }
            }
            [_, aged, promoted] => {
                if aged == 0 {
                    unused.notes.push("the age of its memory is not known here; omr doctor says why".to_owned());
                }
                if promoted == 0 {
                    let why = "no promotions in this time: they need ages, and a history of this version of omr";
                    promise.notes.push(why.to_owned());
                }
            }
        }
        if begins.is_none() {
            for chart in [&mut taken, &mut waited, &mut writes, &mut cpu] {
                chart.notes.push("the ledger is empty: its first line comes with the first sweep or hour".to_owned());
            }
        }
        Charts {
            group: self.group,
            window,
            unused,
            promise,
            taken,
            timeline: self.timeline,
            waited,
            place,
            writes,
            cpu,
            sleep,
            skipped,
            has_no_history,
        }
    }
}

/// Returns the promotions at this age in a minute, in millionths of the working set; `None`:
/// unknown.
pub fn promotion_rate(sample: &Sample, age: Duration) -> Option<Range> {
    let idle = sample.idle.as_ref()?;
    let (promotions, cold) = (sample.promotions?, idle.of(COLD)?);
    let bounds = promotions.at(age)?;
    let millionths = |bytes: Bytes, of: Bytes| {
        let (bytes, of) = (u128::from(bytes.0) * 1_000_000 * 60_000, u128::from(of.0) * promotions.over.as_millis());
        match (bytes, of) {
            (0, _) => Some(0),
            // A working set that may be nothing: the share has no upper bound.
            (_, 0) => None,
            _ => Some(u64::try_from(bytes / of).unwrap_or(u64::MAX)),
        }
    };
    let (least_set, most_set) = (idle.memory - cold.most, idle.memory - cold.least);
    Some(Range { least: millionths(bounds.least, most_set)?, most: millionths(bounds.most, least_set)? })
}
