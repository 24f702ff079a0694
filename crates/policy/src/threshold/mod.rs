//! The age from which on memory of a group may be taken, controlled by what comes back.
//!
//! A **promotion** at an age T is memory that was unused for at least T and is used again. Had all
//! memory older than T been taken, it would have come back. The controller finds the shortest T
//! whose promotions stay within the objective P, a share of the working set per minute. Promotions
//! at each age are known without taking anything, so a shorter T is judged before it is used.
//!
//! * A new group has the longest T and is observed for a **warm-up** of 10 min.
//! * T goes **down** by a step of the [grid](Step) for each minute of an interval, to ages that
//!   kept P in this interval, in K = 98 % of the last day (or of what is known of it), and have not
//!   broken P for an hour.
//! * T goes **up** at once when it broke P, to the shortest age that has not broken P in that
//!   interval, or to the longest if all did. The ages below broke P, so T stays for an hour. The
//!   hour begins anew each time the next shorter age breaks P. So the controller is monotonic: more promotions
//!   never lead to a lower T, at any later time. If the hour began only when T itself broke P, an
//!   earlier rise would let T go down earlier. (Of what the best fixed T holds in the simulated
//!   loads, that would hold 0 to 3 % more.)
//! * Stalls of the group, a used-up write budget and swap at its floor are **brakes**: T does not
//!   go down.
//! * Promotions are known between bounds. P is kept if the *most* keeps it, and broken if the
//!   *least* breaks it. Everything between is **unclear**. An interval in which an age is unclear,
//!   or of which something is unknown, never lowers T to that age, and counts neither as kept nor
//!   as broken. What comes back from swap is known exactly, so a T in force that breaks P is found
//!   out.
//! * A group is **observed** at the shortest age from 4 min on whose next shorter age does not
//!   break P too often ([`Threshold::observed_at`]). An aging every half of that age judges the next
//!   shorter age exactly, and what keeps P there keeps it at each longer age.
//!
//! Groups below [`SMALL`] are judged over [`SMALL_TIME`], with [`SMALL_PAGES`] promotions free.
//! Where the sum is above what the whole time allows, T goes up before its end.
//!
//! Sources: the objective, K, the warm-up and the rule for spikes are Google's (Lagar-Cavilla et
//! al., "Software-Defined Far Memory in Warehouse-Scale Computers", ASPLOS'19); there T is the
//! larger of a percentile of the best ages so far and the best age of the last minute. Here T moves
//! by steps, as the four generations of MGLRU tell exactly only about the age at which a group is
//! observed (`lru_gen`, Linux 6.1 and later).

mod evidence;
mod grid;
mod interval;
mod reason;
mod saved;
mod slo;

use core::time::Duration;

use omr_units::{Permyriad, millis};
use serde::{Deserialize, Serialize};

use evidence::Evidence;
use grid::BITS;
pub use grid::{STEPS, Step};
pub use interval::{IN_USE, Interval, OnGrid, Promoted, SMALL, SMALL_PAGES, SMALL_TIME};
use interval::{Verdict, Verdicts, Window};
pub use reason::{Brake, Figures, Move, Reason};
pub use saved::Refused;
use saved::Saved;
pub use slo::{PromotionRate, Slo};

/// T does not go down to an age that broke P less than this time ago.
pub const STAY: Duration = Duration::from_secs(3600);
const STAY_MS: u32 = 3_600_000;
/// T does not go down while tasks of the group wait for memory in more than 0.1 % of the time.
pub const STALL: Permyriad = Permyriad(10);
/// Where the age that should be judged is unclear for this time, and for twice the age at which the
/// group is observed, that is in vain.
const DOUBT: Duration = Duration::from_secs(1800);
/// The time in seconds until an age is looked at again that was observed in vain: [`STAY`].
const IN_VAIN: u16 = 3600;
/// In an interval, T goes down by a step for each part of this length, and by one at least.
const PACE: Duration = Duration::from_secs(60);
/// After an absence of this length, the group is observed for the warm-up again.
pub const ABSENCE: Duration = Duration::from_secs(600);

/// The threshold of one group: what the controller remembers. A plain value of less than 640 bytes
/// with nothing on the heap. Its saved form has a version. A saved form with another version or an
/// impossible value is refused as a whole. Thresholds are equal if their saved forms are.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "saved::Saved", into = "saved::Saved")]
pub struct Threshold {
    step: Step,
    /// The time since the group was new or came back, in milliseconds.
    observed: u64,
    /// A clock of what was taken in, in milliseconds. It begins anew before it overflows.
    now: u32,
    /// When, on this clock, each age has not broken P for [`STAY`].
    calm_at: [u32; STEPS],
    /// For how long the age that observation should judge has been unclear in a row, in seconds.
    unclear: u32,
    /// The time for which each age is not looked at, in seconds, up to [`STAY`].
    in_vain: [u16; STEPS],
    evidence: Evidence,
    window: Window,
}

impl Threshold {
    /// The threshold of a group about which nothing is known: the longest.
    pub fn new(slo: &Slo) -> Self {
        Threshold {
            step: slo.most,
            observed: 0,
            now: 0,
            calm_at: [0; STEPS],
            unclear: 0,
            in_vain: [0; STEPS],
            evidence: Evidence::default(),
            window: Window::default(),
        }
    }

    /// The threshold in force.
    pub fn step(&self) -> Step {
        self.step
    }

    /// The age at which the group is to be observed: aged every half of it. At T or below.
    ///
    /// It is the shortest from 4 min on of which the next shorter age may become T: that has not
    /// broken P for an hour, nor too often in the last day, and was not observed in vain. So the
    /// search for T begins at short ages, where an answer takes minutes, and goes on at longer
    /// ones, where it takes as long as these ages. Where it is T, memory as old as T is known and
    /// can be reclaimed.
    pub fn observed_at(&self, slo: &Slo) -> Step {
        let is_open = |step: &Step| {
            let is_calm = self.is_calm(*step) && self.in_vain[step.index()] == 0;
            is_calm && self.evidence.has_kept(*step, slo.kept) != Some(false)
        };
        let mut shorter = slo.least.and_longer().take_while(|step| *step < self.step);
        shorter.find(is_open).map_or(self.step, Step::longer)
    }

    /// The share of the last day in which an age kept P; `None`: nothing is known.
    pub fn kept(&self, step: Step) -> Option<Permyriad> {
        self.evidence.kept(step)
    }

    /// Takes in that nobody observed the group for this time, or that it is a new group under the
    /// same name, as after a boot. T stays, and the last day counts half as much for each day of
    /// absence. After [`ABSENCE`] or more, the group is observed for the warm-up again. A time of
    /// zero changes nothing.
    pub fn absent(&mut self, time: Duration) {
        if time.is_zero() {
            return;
        }
        self.evidence.decay(time);
        if time < ABSENCE {
            self.window.lose();
        } else {
            (self.window, self.observed) = (Window::default(), 0);
        }
    }

    /// Takes in an interval and moves the threshold.
    pub fn observe(&mut self, slo: &Slo, seen: &Interval) -> Move {
        self.take_in(slo, seen, &OnGrid::of(seen), |threshold, window, age, verdicts| Figures {
            age: age.age(),
            promoted: window.per_minute(age, verdicts.at(age)),
            working_set: window.working_set(),
            allowed: slo.promotions,
            kept: threshold.evidence.kept(age),
        })
    }

    /// As [`observe`](Self::observe), where the promotions on the grid are known already, and nobody
    /// asks for the figures of the reason.
    pub fn observe_on_grid(&mut self, slo: &Slo, seen: &Interval, promoted: &OnGrid) -> Move<()> {
        self.take_in(slo, seen, promoted, |_, _, _, _| ())
    }

    /// `figures`: of one age in this window.
    fn take_in<F>(
        &mut self,
        slo: &Slo,
        seen: &Interval,
        promoted: &OnGrid,
        figures: impl Fn(&Threshold, &Window, Step, &Verdicts) -> F,
    ) -> Move<F> {
        self.step = self.step.min(slo.most).max(slo.least);
        let from = self.step;
        let length = millis(seen.length);
        if length == 0 {
            return Move { from, to: from, reason: Reason::Unknown };
        }
        self.observed = self.observed.saturating_add(length);
        let left = millis(slo.warm_up).saturating_sub(self.observed);
        let window = if self.window.length == 0 {
            Window::of(length, seen, promoted, from)
        } else {
            core::mem::take(&mut self.window).and(&Window::of(length, seen, promoted, from))
        };
        let small = seen.size < SMALL;
        let full = !small || window.length >= millis(SMALL_TIME);
        let verdicts = window.judge(slo, small, full);
        let observed = full.then(|| self.observed_at(slo));
        self.pass(length, &verdicts);
        if let Some(observed) = observed {
            self.doubt(observed, window.length / 1000, &verdicts);
        }
        if full && left == 0 {
            self.evidence.add(Duration::from_millis(window.length), &verdicts);
        }
        let (to, reason) = if verdicts.at(from) == Verdict::Broken {
            let best = verdicts.best().unwrap_or(slo.most).min(slo.most);
            (best.max(from), Reason::Broke(figures(self, &window, from, &verdicts)))
        } else if !full {
            let left = SMALL_TIME.saturating_sub(Duration::from_millis(window.length));
            (from, Reason::Gathering { left })
        } else if left > 0 {
            (from, Reason::WarmingUp { left: Duration::from_millis(left) })
        } else {
            let steps = (window.length / millis(PACE)).clamp(1, STEPS as u64);
            self.lower(steps, slo, seen, &verdicts, |age| figures(self, &window, age, &verdicts))
        };
        if !full {
            self.window = window;
        }
        self.step = to;
        Move { from, to, reason }
    }

    /// This many milliseconds pass, and some ages break P.
    fn pass(&mut self, time: u64, verdicts: &Verdicts) {
        self.now = self.now.saturating_add(u32::try_from(time).unwrap_or(u32::MAX));
        if self.now > u32::MAX / 2 {
            self.calm_at.iter_mut().for_each(|at| *at = at.saturating_sub(self.now));
            self.now = 0;
        }
        if verdicts.broken != 0 {
            let broken = self.calm_at.iter_mut().zip(BITS).filter(|(_, age)| verdicts.broken & age != 0);
            broken.for_each(|(at, _)| *at = self.now + STAY_MS);
        }
    }

    /// Takes in whether the group is observed in vain: agings come too late for the age at which it
    /// is observed, as on a busy machine. It is observed at a longer age then. `time`: of the window,
    /// in seconds.
    fn doubt(&mut self, observed: Step, time: u64, verdicts: &Verdicts) {
        if self.in_vain != [0; STEPS] {
            let passed = u16::try_from(time).unwrap_or(u16::MAX);
            self.in_vain.iter_mut().for_each(|left| *left = left.saturating_sub(passed));
        }
        let Some(judged) = observed.shorter() else { return };
        self.unclear = match verdicts.at(judged) {
            Verdict::Unclear => self.unclear.saturating_add(u32::try_from(time).unwrap_or(u32::MAX)),
            Verdict::Kept | Verdict::Broken | Verdict::Unknown => return self.unclear = 0,
        };
        if u64::from(self.unclear) > DOUBT.max(2 * observed.age()).as_secs() {
            (self.unclear, self.in_vain[judged.index()]) = (0, IN_VAIN);
        }
    }

    /// Goes down as far as nothing speaks against it, by this many steps at most.
    fn lower<F>(
        &self,
        steps: u64,
        slo: &Slo,
        seen: &Interval,
        verdicts: &Verdicts,
        figures: impl Fn(Step) -> F,
    ) -> (Step, Reason<F>) {
        let mut to = self.step;
        for _ in 0..steps {
            match self.next_below(to, slo, seen, verdicts, &figures) {
                Ok(next) => to = next,
                Err(reason) if to == self.step => return (to, reason),
                Err(_) => break,
            }
        }
        (to, Reason::Kept(figures(to)))
    }

    /// The next shorter age, or why the threshold must not go down to it.
    fn next_below<F>(
        &self,
        step: Step,
        slo: &Slo,
        seen: &Interval,
        verdicts: &Verdicts,
        figures: impl Fn(Step) -> F,
    ) -> Result<Step, Reason<F>> {
        let Some(next) = step.shorter().filter(|&next| next >= slo.least) else {
            return Err(Reason::Shortest(figures(step)));
        };
        let stalled = seen.stalled.ok_or(Reason::Unknown)?;
        match verdicts.at(next) {
            Verdict::Unknown => return Err(Reason::Unknown),
            Verdict::Unclear => return Err(Reason::Unclear(figures(next))),
            Verdict::Broken => return Err(Reason::WouldBreak(figures(next))),
            Verdict::Kept => {}
        }
        if !self.is_calm(next) {
            return Err(Reason::BrokeLately { left: STAY - self.calm(next), figures: figures(next) });
        }
        if self.evidence.has_kept(next, slo.kept) != Some(true) {
            return Err(Reason::BrokeOften { needed: slo.kept, figures: figures(next) });
        }
        let brake = if stalled > STALL {
            Some(Brake::Stall { share: stalled, allowed: STALL })
        } else if seen.write_budget_used {
            Some(Brake::WriteBudget)
        } else {
            seen.swap_at_floor.then_some(Brake::SwapFloor)
        };
        match brake {
            Some(brake) => Err(Reason::Braked { brake, figures: figures(next) }),
            None => Ok(next),
        }
    }

    /// An age has not broken P for [`STAY`].
    fn is_calm(&self, step: Step) -> bool {
        self.calm_at[step.index()] <= self.now
    }

    /// The time since an age last broke P, up to [`STAY`].
    fn calm(&self, step: Step) -> Duration {
        Duration::from_millis(u64::from(self.calm_of(self.calm_at[step.index()])))
    }

    /// That, in milliseconds, of an age that is calm at this time.
    fn calm_of(&self, at: u32) -> u32 {
        STAY_MS.saturating_sub(at.saturating_sub(self.now))
    }
}

impl PartialEq for Threshold {
    fn eq(&self, other: &Self) -> bool {
        Saved::from(self.clone()) == Saved::from(other.clone())
    }
}

impl Eq for Threshold {}
