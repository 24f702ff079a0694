//! The ages that a threshold can have.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// The number of ages on the grid.
pub const STEPS: usize = 9;

/// Minutes. Each age is about twice the one before, and is one of [`AGES`](crate::age::AGES).
///
/// MGLRU keeps four generations. A group that is aged in steps of the next shorter age has borders
/// between generations at that age and at twice of it. So memory as old as the threshold can be
/// reclaimed, and the next shorter age is judged exactly.
const MINUTES: [u64; STEPS] = [2, 4, 8, 15, 30, 60, 120, 240, 480];

/// The bit of each age in a mask.
pub(super) const BITS: [u16; STEPS] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// A mask of all ages.
pub(super) const ALL: u16 = (1 << STEPS) - 1;

/// One age on the grid from 2 min to 8 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Step(u8);

impl Step {
    /// 2 min: the age from which on Google counts memory as cold.
    pub const LEAST: Step = Step(0);
    /// 8 h: the age at which Google's one byte of 2 min steps ends.
    pub const MOST: Step = Step(8);

    /// All ages, the shortest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Step> {
        Step::LEAST.and_longer()
    }

    /// The age.
    pub fn age(self) -> Duration {
        Duration::from_secs(60 * MINUTES[self.index()])
    }

    /// The next shorter age; `None`: this is the shortest.
    pub fn shorter(self) -> Option<Step> {
        self.0.checked_sub(1).map(Step)
    }

    /// The next longer age; this one where there is none.
    pub(super) fn longer(self) -> Step {
        Step((self.0 + 1).min(Step::MOST.0))
    }

    /// This age and all longer ones.
    pub(super) fn and_longer(self) -> impl DoubleEndedIterator<Item = Step> {
        const END: u8 = Step::MOST.0 + 1;
        (self.0..END).map(Step)
    }

    /// The shortest age on the grid that is at least this long; 8 h where there is none.
    pub fn not_below(age: Duration) -> Step {
        Step::all().find(|step| step.age() >= age).unwrap_or(Step::MOST)
    }

    /// The longest age on the grid that is at most this long; 2 min where there is none.
    pub fn not_above(age: Duration) -> Step {
        Step::all().rfind(|step| step.age() <= age).unwrap_or(Step::LEAST)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The age for which a group is aged that is observed at this step. It is twice the next
    /// shorter age, so that an aging every half of it judges that exactly: 16 min instead of
    /// 15 min, and the ages themselves elsewhere.
    pub fn observed(self) -> Duration {
        self.shorter().map_or_else(|| self.age(), |shorter| 2 * shorter.age())
    }

    /// The bit of this age in a mask.
    pub(super) fn bit(self) -> u16 {
        BITS[self.index()]
    }
}

impl TryFrom<u8> for Step {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        (number <= Step::MOST.0).then_some(Step(number)).ok_or("a threshold outside of the grid")
    }
}

impl From<Step> for u8 {
    fn from(step: Step) -> u8 {
        step.0
    }
}
