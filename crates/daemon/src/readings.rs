//! What the daemon measures once a second: counters of the machine, and what two readings tell.

use omr_engine::prepare::image;
use omr_engine::warm::Notice;
use omr_kernel::clock;
use omr_kernel::meminfo::Meminfo;
use omr_machine::sample::cpu::CpuByClass;
use omr_machine::sample::observation;
use omr_machine::sample::snapshot::{Snapshot, SwapSpace, read_hibernates};
use omr_policy::{Goal, Machine, Signals};

use crate::host::Host;
use crate::settings::Settings;

/// Whether the machine can hibernate is read again after this many ticks.
const SLOW_TICKS: u64 = 60;

/// The last readings.
pub struct Readings {
    /// What the last two snapshots tell; `None` until there are two.
    pub signals: Option<Signals>,
    /// Room for the files that are read.
    pub buffer: Vec<u8>,
    snapshot: Option<Snapshot>,
    hibernates: bool,
    /// Whether the kernel can be asked for file memory only; `None` until it was asked.
    file_only: Option<bool>,
    ticks: u64,
    warm_lock: Notice,
    is_warming: bool,
}

impl Readings {
    /// Nothing was read yet. `warm_lock`: held while `omr warm` brings memory back.
    pub fn new(warm_lock: Notice) -> Self {
        Readings {
            signals: None,
            buffer: Vec::with_capacity(8192),
            snapshot: None,
            hibernates: false,
            file_only: None,
            ticks: 0,
            warm_lock,
            is_warming: false,
        }
    }

    /// Reads the counters. Returns the signals that they give beside the readings before; `None` for
    /// the first readings.
    pub fn take(&mut self, host: &Host, settings: &Settings, cpu: &mut CpuByClass) -> Option<Signals> {
        if self.ticks.is_multiple_of(SLOW_TICKS) {
            self.hibernates = can_hibernate(host, settings, self.swap());
        }
        self.ticks += 1;
        let snapshot = Snapshot::read(&host.kernel, cpu, self.hibernates, &mut self.buffer);
        let signals = self.snapshot.as_ref().map(|before| {
            let mut signals = observation::between(before, &snapshot, self.file_only.unwrap_or(false));
            self.measure_image(host, settings, &mut signals.machine);
            signals
        });
        if signals.is_none() {
            // The device is known once swap is.
            self.hibernates = can_hibernate(host, settings, snapshot.swap);
        }
        self.snapshot = Some(snapshot);
        signals
    }

    /// The signals as of now, for a decision between two ticks.
    pub fn signals_now(&self, host: &Host, settings: &Settings) -> Option<Signals> {
        let mut signals = Signals { now: clock::read_monotonic(), slept: false, ..self.signals.clone()? };
        self.measure_image(host, settings, &mut signals.machine);
        Some(signals)
    }

    /// Measures the image as the kernel would count it, where the image is the goal. Meminfo alone does
    /// not tell that.
    fn measure_image(&self, host: &Host, settings: &Settings, machine: &mut Machine) {
        if settings.config.goal == Goal::Hibernate && self.hibernates {
            machine.image = image::forecast(&host.kernel).map(|forecast| forecast.in_use - forecast.per_cpu);
        }
    }

    /// The swap space at the last reading.
    pub fn swap(&self) -> Option<SwapSpace> {
        self.snapshot.as_ref().and_then(|snapshot| snapshot.swap)
    }

    /// Whether swap is on a disk; `None` where there is no swap, or nothing was read yet.
    pub fn swap_is_on_disk(&self) -> Option<bool> {
        self.swap().map(|swap| swap.on_disk)
    }

    /// Once a second: whether `omr warm` runs, or did since the last tick.
    pub fn notice_warming(&mut self) -> Warming {
        let was_warming = std::mem::replace(&mut self.is_warming, self.warm_lock.look());
        match (self.is_warming, was_warming) {
            (true, _) => Warming::Running,
            (false, true) => Warming::JustEnded,
            (false, false) => Warming::No,
        }
    }

    /// Whether the kernel was asked for what it can do.
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
        Some(Signals { now: clock::read_monotonic(), slept: false, ..signals.clone() })
    }
}

/// Whether `omr warm` brings memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warming {
    /// It does not.
    No,
    /// It does.
    Running,
    /// It did since the last tick.
    JustEnded,
}

/// Whether there could be a hibernation image. Sweeps need to know whether swap is large enough for it;
/// where the image is the goal, everything that hibernation takes must be there.
fn can_hibernate(host: &Host, settings: &Settings, swap: Option<SwapSpace>) -> bool {
    match settings.config.goal {
        Goal::Free => read_hibernates(&host.kernel, swap),
        Goal::Hibernate => image::place(&host.kernel, &host.root).is_ok(),
    }
}
