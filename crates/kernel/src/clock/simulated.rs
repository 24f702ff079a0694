//! Clocks of a simulation in the place of the system's, for one thread. Only tests are built with
//! this feature.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::Clock;

/// The clocks of a simulation.
pub trait Simulated: Clock {
    /// Lets this time pass.
    fn sleep(&self, time: Duration);
}

thread_local! {
    static CLOCK: RefCell<Option<Arc<dyn Simulated>>> = const { RefCell::new(None) };
}

/// The clocks of the calling thread's simulation; `None`: it is in none.
pub fn clock() -> Option<Arc<dyn Simulated>> {
    CLOCK.with_borrow(Option::clone)
}

/// From now on the calling thread has these clocks; `None`: the system's.
pub fn set_clock(clock: Option<Arc<dyn Simulated>>) {
    CLOCK.set(clock);
}
