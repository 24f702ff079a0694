//! When there is news for the clients that watch the status. Each status costs CPU time, on an idle
//! machine most of what the daemon uses, so they are not told the same again each second.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use omr_control::status::ImageView;
use omr_policy::{Decision, Reason};
use omr_units::Monotonic;

use crate::daemon::Daemon;
use crate::views;

/// They are told after this time in any case, a little before the tick that comes at
/// [`omr_control::protocol::NEWS`].
const AT_LEAST: Duration = Duration::from_millis(4500);
/// The hibernation image hardly changes on a machine at rest.
const IMAGE: Duration = Duration::from_secs(60);

/// What clients that watch were told last.
#[derive(Default)]
pub struct News {
    told: Monotonic,
    /// Something ran then.
    ran: bool,
    scan: Monotonic,
    reason: Option<Discriminant<Reason>>,
    image: Option<(Monotonic, ImageView)>,
}

impl News {
    /// Returns true if there is news since this was true the last time: something runs or has ended,
    /// the groups were read, or the reason of the decision is of another kind.
    pub fn is_due(&mut self, daemon: &Daemon, now: Monotonic) -> bool {
        let runs = runs(daemon);
        let scan = daemon.world.next_scan;
        let reason = daemon.mind.decision.as_ref().map(Decision::reason).map(discriminant);
        let is_late = now.since(self.told) >= AT_LEAST;
        let is_due = runs || self.ran || scan != self.scan || reason != self.reason || is_late;
        if is_due {
            (self.told, self.ran, self.scan, self.reason) = (now, runs, scan, reason);
        }
        is_due
    }

    /// The hibernation image. While nothing runs it is read once a minute.
    pub fn image(&mut self, daemon: &Daemon, now: Monotonic) -> ImageView {
        match &self.image {
            Some((read, image)) if now.since(*read) < IMAGE && !runs(daemon) => image.clone(),
            _ => self.image.insert((now, views::image_view(daemon))).1.clone(),
        }
    }
}

fn runs(daemon: &Daemon) -> bool {
    daemon.work.is_busy() || daemon.preparation.is_wanted() || daemon.giving_back.is_running()
}
