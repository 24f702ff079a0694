//! A fake kernel for unit tests.

use std::ops::Range;

use omr_actuate::{Actuator, Advice, AdviseResult, Outcome};
use omr_kernel::process::Process;
use omr_kernel::{Dir, Result};

/// A kernel that passes each write to this function, and that gets no hints.
pub struct Writes<F>(pub F);

impl<F: FnMut(&str) -> Outcome + Send> Actuator for Writes<F> {
    fn write(&mut self, _: &Dir, _: &str, data: &str) -> Result<Outcome> {
        Ok((self.0)(data))
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<AdviseResult> {
        unreachable!("nothing is hinted")
    }

    fn is_live(&self) -> bool {
        true
    }
}
