//! A machine to decide for, one tick of a second at a time.

use std::time::Duration;

use omr_policy::cost::{CostFacts, Disk, Medium, Power};
use omr_policy::presence::Facts;
use omr_policy::{
    Class, Config, CpuIdle, Decision, End, Finished, Goal, Group, Machine, Memory, Reason, Signals, State, Swap, decide,
};
use omr_units::{Bytes, GroupId, Monotonic, Permyriad};

pub const SECOND: Duration = Duration::from_secs(1);

pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Two CPUs with nothing to do, 4 GiB of swap in memory, no sessions.
pub fn quiet() -> Machine {
    Machine {
        dt: SECOND,
        cpus: 2,
        least_idle: Some(CpuIdle { cpu: 1, idle: Permyriad::percent(99) }),
        load: Some(millis(10)),
        foreground: Some(Duration::ZERO),
        stall_cpu: Some(Duration::ZERO),
        stall_io: Some(Duration::ZERO),
        stall_memory: Some(Duration::ZERO),
        swap: Some(Swap {
            total: Bytes::mib(4096),
            free: Bytes::mib(4096),
            on_disk: false,
            free_outside_image: Bytes::ZERO,
        }),
        memory: Some(Memory { total: Bytes::mib(8192), available: Bytes::mib(1024) }),
        image: None,
        hibernated: None,
        hibernates_by: None,
        disk_rate: None,
        free_page_reporting: None,
        presence: Some(Facts::default()),
        gives_back: false,
        file_only: true,
        cost: on_mains(Medium::Ssd),
    }
}

/// Mains, and swap on a disk of 1 TiB.
pub fn on_mains(medium: Medium) -> CostFacts {
    let disks = vec![Disk { medium, size: Some(Bytes(1 << 40)) }];
    CostFacts { disks, power: Power::Mains, memory_first: Bytes::ZERO }
}

/// Swap on a disk, in MiB.
pub fn disk(total: u64, free: u64) -> Option<Swap> {
    Some(Swap { total: Bytes::mib(total), free: Bytes::mib(free), on_disk: true, free_outside_image: Bytes::ZERO })
}

/// A background group with this many MiB of anonymous memory and page cache.
pub fn group(id: u64, anon: u64, file: u64) -> Group {
    Group {
        id: GroupId(id),
        class: Class::Background,
        current: Some(Bytes::mib(anon + file)),
        swap_backed: Some(Bytes::mib(anon)),
        page_cache: Some(Bytes::mib(file)),
        refaults: Some(Bytes::ZERO),
        unprotected: Some(Bytes::mib(anon + file)),
        keep: None,
        cold_only: None,
    }
}

/// The goal "free", under which every background group may lose all it can.
pub fn free() -> Config {
    Config { goal: Goal::Free, ..Config::default() }
}

/// A policy and its inputs.
#[derive(Clone, Debug)]
pub struct Desk {
    pub config: Config,
    pub state: State,
    pub now: Monotonic,
    pub hour: u64,
    pub slept: bool,
    pub machine: Machine,
    pub groups: Vec<Group>,
}

impl Desk {
    /// A quiet machine, an hour after boot.
    pub fn new(groups: impl Into<Vec<Group>>) -> Self {
        Desk {
            config: free(),
            state: State::default(),
            now: Monotonic(0) + seconds(3600),
            hour: 500_000,
            slept: false,
            machine: quiet(),
            groups: groups.into(),
        }
    }

    pub fn signals(&self) -> Signals {
        Signals { now: self.now, hour: self.hour, slept: self.slept, machine: self.machine.clone() }
    }

    /// `machine.dt` later.
    pub fn tick(&mut self) -> Decision {
        self.now = self.now + self.machine.dt;
        let signals = self.signals();
        let decision = decide(&self.config, &mut self.state, &signals, &self.groups);
        self.slept = false;
        decision
    }

    /// The decision of the last of `n` ticks.
    pub fn ticks(&mut self, n: u32) -> Decision {
        (1..n).for_each(|_| drop(self.tick()));
        self.tick()
    }

    /// Ticks until a sweep begins; returns the number of ticks and the group.
    #[track_caller]
    pub fn until_sweep(&mut self, most: u32) -> (u32, GroupId) {
        for n in 1..=most {
            if let Decision::Sweep { id, .. } = self.tick() {
                return (n, id);
            }
        }
        panic!("no sweep in {most} ticks: {}", self.tick().reason());
    }

    /// No sweep begins in this many ticks; returns the last reason.
    #[track_caller]
    pub fn no_sweep(&mut self, ticks: u32) -> Reason {
        for n in 1..ticks {
            let decision = self.tick();
            assert!(!matches!(decision, Decision::Sweep { .. }), "swept at tick {n}");
        }
        match self.tick() {
            Decision::Hold { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    /// The running sweep ends like this, with this many MiB left in the group.
    #[track_caller]
    pub fn finish(&mut self, end: End, left: u64) {
        self.finish_written(end, left, Bytes::ZERO);
    }

    #[track_caller]
    pub fn finish_written(&mut self, end: End, left: u64, swap_writes: Bytes) {
        let id = self.state.sweeping().expect("nothing is swept");
        let group = self.groups.iter_mut().find(|group| group.id == id).expect("no such group");
        group.current = Some(Bytes::mib(left));
        group.swap_backed = group.swap_backed.map(|bytes| bytes.min(Bytes::mib(left)));
        group.page_cache = group.page_cache.map(|bytes| bytes.min(Bytes::mib(left)));
        group.unprotected = group.unprotected.map(|bytes| bytes.min(Bytes::mib(left)));
        let finished = Finished { id, size: Bytes::mib(left), refaults: group.refaults, swap_writes, end };
        self.state.finished(&self.config, self.now, self.hour, &finished);
    }

    /// Somebody begins to work, and the sweep ends.
    #[track_caller]
    pub fn interrupt(&mut self, left: u64) {
        self.state.interrupt(self.now);
        self.finish(End::Stopped, left);
    }

    /// A group now has this many MiB, all of it anonymous.
    pub fn hold(&mut self, id: u64, mib: u64) {
        let refaults = self.group(id).refaults;
        *self.group(id) = Group { refaults, ..group(id, mib, 0) };
    }

    pub fn group(&mut self, id: u64) -> &mut Group {
        self.groups.iter_mut().find(|group| group.id == GroupId(id)).expect("no such group")
    }

    /// This many MiB come back into a group.
    pub fn refault(&mut self, id: u64, mib: u64) {
        let group = self.group(id);
        group.refaults = group.refaults.map(|refaults| refaults + Bytes::mib(mib));
    }
}
