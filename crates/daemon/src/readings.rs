//! The readings of each tick: counters of the machine, and the signals from two readings.

use std::time::Duration;

use omr_engine::prepare::{disk_rate, hibernated, image};
use omr_engine::warm::Notice;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::page_reporting;
use omr_machine::sample::cost::CostReader;
use omr_machine::sample::cpu::CpuByClass;
use omr_machine::sample::observation;
use omr_machine::sample::snapshot::{Snapshot, SwapSpace, read_hibernates};
use omr_policy::cost::CostFacts;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_policy::{Goal, Machine, Signals};
use omr_units::{Bytes, Monotonic};

use crate::host::Host;
use crate::settings::Settings;

/// Values that seldom change are read again after this time.
const SELDOM: Duration = Duration::from_secs(60);

/// The last readings.
pub struct Readings {
    /// The signals from the last two snapshots; `None` until there are two.
    pub signals: Option<Signals>,
    /// Room for the files that are read.
    pub buffer: Vec<u8>,
    /// What clients tell about who is there; `None`: unknown.
    pub presence: Option<Facts>,
    /// The setting by which the machine hibernates, as clients tell; `None`: none, or unknown.
    pub hibernates: Option<HibernatesBy>,
    snapshot: Option<Snapshot>,
    seldom: Seldom,
    cost: CostReader,
    /// True if the kernel can reclaim page cache only; `None` until it was probed.
    file_only: Option<bool>,
    /// When values that seldom change are read next.
    next_seldom: Monotonic,
    warm_lock: Notice,
    swap_goes: bool,
    returns: Option<Cause>,
}

impl Readings {
    /// Nothing was read yet. `warm_lock`: held while `omr warm` brings memory back.
    pub fn new(warm_lock: Notice) -> Self {
        Readings {
            signals: None,
            buffer: Vec::with_capacity(8192),
            presence: None,
            hibernates: None,
            snapshot: None,
            seldom: Seldom::default(),
            cost: CostReader::default(),
            file_only: None,
            next_seldom: Monotonic(0),
            warm_lock,
            swap_goes: false,
            returns: None,
        }
    }

    /// Reads the counters. Returns the signals that they give beside the readings before; `None`
    /// for the first readings.
    pub fn take(&mut self, host: &Host, settings: &Settings, cpu: &mut CpuByClass) -> Option<Signals> {
        if host.now() >= self.next_seldom {
            self.next_seldom = host.now() + SELDOM;
            self.seldom = Seldom::read(host, settings, self.swap());
        }
        let snapshot = Snapshot::read(&host.kernel, cpu, self.seldom.hibernates, &mut self.buffer);
        let cost = match settings.config.goal {
            Goal::Auto => self.cost.read(&host.kernel),
            Goal::Free | Goal::Hibernate => CostFacts::default(),
        };
        let signals = self.snapshot.as_ref().map(|before| {
            let mut signals = observation::between(before, &snapshot, self.file_only.unwrap_or(false));
            self.seldom.tell(&mut signals.machine);
            signals.hour = host.hour();
            signals.machine.cost = cost;
            signals.machine.presence.clone_from(&self.presence);
            signals.machine.hibernates_by = self.hibernates;
            self.measure_image(host, settings, &mut signals.machine);
            signals
        });
        if signals.is_none() {
            // The device is known once swap is.
            self.seldom = Seldom::read(host, settings, snapshot.swap);
        }
        self.snapshot = Some(snapshot);
        signals
    }

    /// The signals as of now, for a decision between two ticks. The last sweep has changed what is
    /// available and what an image would hold.
    pub fn signals_now(&mut self, host: &Host, settings: &Settings) -> Option<Signals> {
        let mut signals = self.read_memory(host)?;
        self.measure_image(host, settings, &mut signals.machine);
        Some(signals)
    }

    /// Measures the image as the kernel would count it, where the image matters for the goal.
    /// Meminfo alone does not tell that.
    fn measure_image(&self, host: &Host, settings: &Settings, machine: &mut Machine) {
        if !self.seldom.hibernates {
            return;
        }
        let measure = || image::forecast(&host.kernel).map(|forecast| forecast.in_use - forecast.per_cpu);
        match settings.config.goal {
            Goal::Free => {}
            Goal::Hibernate => machine.image = measure(),
            // Without a forecast swap still needs room for an image.
            Goal::Auto if self.seldom.hibernated.is_some() || self.hibernates.is_some() => {
                machine.image = measure().or(machine.image);
            }
            Goal::Auto => {}
        }
    }

    /// The swap space at the last reading.
    pub fn swap(&self) -> Option<SwapSpace> {
        self.snapshot.as_ref().and_then(|snapshot| snapshot.swap)
    }

    /// Returns true if swap is on a disk; `None`: there is no swap, or nothing was read yet.
    pub fn swap_is_on_disk(&self) -> Option<bool> {
        self.swap().map(|swap| swap.on_disk)
    }

    /// Once a second: whether memory comes back that nobody uses, or did since the last tick.
    pub fn notice_returns(&mut self, host: &Host) -> Returns {
        self.swap_goes = self.is_swap_going(host);
        let returns = match (self.warm_lock.poll(), self.swap_goes) {
            (true, _) => Some(Cause::Warming),
            (false, true) => Some(Cause::SwapOff),
            (false, false) => None,
        };
        match (returns, std::mem::replace(&mut self.returns, returns)) {
            (Some(why), _) => Returns::Now(why),
            (None, Some(_)) => Returns::JustEnded,
            (None, None) => Returns::No,
        }
    }

    /// Returns true while swap is being switched off, and if it was since the last reading.
    ///
    /// At the beginning of swapoff the device's free space leaves `SwapTotal`, and then the rest does
    /// as pages come back. The device is in `/proc/swaps` until the end. Source: mm/swapfile.c, swapoff()
    /// and si_swapinfo().
    fn is_swap_going(&mut self, host: &Host) -> bool {
        let before = self.snapshot.as_ref();
        let Some((memory, swap)) = before.and_then(|before| before.memory.as_ref().zip(before.swap)) else {
            return false;
        };
        match Meminfo::read(&host.kernel, &mut self.buffer).ok().and_then(|now| now.swap_total) {
            Some(total) => Some(total) < memory.swap_total || self.swap_goes && total < swap.total,
            None => self.swap_goes,
        }
    }

    /// Returns true if the kernel was probed.
    pub fn is_probed(&self) -> bool {
        self.file_only.is_some()
    }

    /// The kernel was asked. `file_only`: it can be asked for file memory only.
    pub fn probed(&mut self, file_only: bool) {
        self.file_only = Some(file_only);
    }

    /// The last signals as of now, with free memory read again.
    pub fn read_memory(&mut self, host: &Host) -> Option<Signals> {
        let signals = self.signals.as_mut()?;
        let memory = Meminfo::read(&host.kernel, &mut self.buffer).ok();
        signals.machine.memory = memory.as_ref().and_then(observation::memory);
        Some(Signals { now: host.now(), slept: false, ..signals.clone() })
    }
}

/// Whether memory comes back that nobody uses, which is no cost of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// It does not.
    No,
    /// It does.
    Now(Cause),
    /// It did since the last tick.
    JustEnded,
}

/// Why memory comes back that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// `omr warm` runs.
    Warming,
    /// Swap is being switched off.
    SwapOff,
}

/// Readings that seldom change; `None`: unknown, or the goal does not ask.
#[derive(Clone, Copy, Debug, Default)]
struct Seldom {
    /// There could be a hibernation image.
    hibernates: bool,
    /// The time since the machine last hibernated.
    hibernated: Option<Duration>,
    /// Bytes that the disk of the image writes in a second.
    disk_rate: Option<Bytes>,
    /// Free memory is reported to a host.
    free_page_reporting: Option<bool>,
}

impl Seldom {
    fn read(host: &Host, settings: &Settings, swap: Option<SwapSpace>) -> Self {
        let hibernates = can_hibernate(host, settings, swap);
        if settings.config.goal != Goal::Auto {
            return Seldom { hibernates, ..Seldom::default() };
        }
        let (kernel, root) = (&host.kernel, &host.root);
        let place = image::place(kernel, root).ok();
        Seldom {
            hibernates,
            hibernated: hibernated::ago(kernel, root),
            disk_rate: place.and_then(|place| disk_rate::load(root, &place.device.path)),
            free_page_reporting: page_reporting::read_order(kernel).ok().map(|order| order.is_some()),
        }
    }

    /// Adds the readings to the signals.
    fn tell(&self, machine: &mut Machine) {
        machine.hibernated = self.hibernated;
        machine.disk_rate = self.disk_rate;
        machine.free_page_reporting = self.free_page_reporting;
    }
}

/// Returns true if there could be a hibernation image. Swap must then be large enough for it. If
/// the image is the goal, everything that hibernation needs must be there.
fn can_hibernate(host: &Host, settings: &Settings, swap: Option<SwapSpace>) -> bool {
    match settings.config.goal {
        Goal::Free => read_hibernates(&host.kernel, swap),
        Goal::Hibernate => image::place(&host.kernel, &host.root).is_ok(),
        // systemd may choose a device where none is set.
        Goal::Auto => read_hibernates(&host.kernel, swap) || image::place(&host.kernel, &host.root).is_ok(),
    }
}
