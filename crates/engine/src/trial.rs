//! Runs trials ([`omr_policy::trial`]). Paced reclaim first brings the group down to a size, and
//! `memory.high` then limits it to that size. So no task of the group has to reclaim the
//! difference.
//!
//! If MGLRU is on, the group is aged twice at each size. Without ages, reclaim takes used memory
//! with unused memory. (Measured: a first step of a fifth, in a group of which three fifths were
//! cold. 22 % of the reclaimed memory came back within a minute without ages, and none with them.)
//!
//! The old `memory.high` is in the journal of limits before the limit is changed, and it is
//! restored at the end in any case. After kill -9 a helper process restores it.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_actuate::Outcome;
use omr_base::cancel::{Alarm, Flag};
use omr_base::exit::Exit;
use omr_kernel::memcg::Group;
use omr_kernel::psi::{self, Resource};
use omr_kernel::{Kernel, clock};
use omr_policy::trial::{Next, Plan, Trial, TrialSample};
use omr_policy::{Config, End, swap_floor};
use omr_units::{Bytes, Limit, Monotonic};

use crate::aging;
use crate::aging::observe::Observer;
use crate::reclaim::backend::Backend;
use crate::reclaim::generations::{swap_left, with_swap_limit};
use crate::reclaim::limit_journal::{Borrowed, Guard};
use crate::reclaim::{Method, job, swap_context};
use crate::session::Session;

/// The time between two checks of the guard.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The longest time that a write to `memory.high` may reclaim memory that came back.
const WRITE_TIME: Duration = Duration::from_millis(50);
const HIGH: &str = "memory.high";

/// The reason why a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The trial was completed.
    Over,
    /// A signal came.
    Stopped,
    /// The group is gone.
    Gone,
    /// The group has no process any more, so a trial would show nothing.
    Empty,
    /// Another program set `memory.high` meanwhile; its value stays.
    Theirs(Limit),
}

/// Runs one trial of one group.
pub struct TrialRunner<'a> {
    session: Session<'a>,
    group: &'a Group,
    config: &'a Config,
    backend: Backend,
    /// The user's own `memory.high`.
    user_limit: Borrowed<'a>,
    /// The `memory.high` that this trial has set.
    trial_limit: Limit,
    _guard: Guard,
    alarm: Alarm,
    ages: Option<Observer<'a>>,
    aged: Monotonic,
}

/// Reads the group's present state.
pub fn read(kernel: &Kernel, group: &Group) -> Result<TrialSample> {
    let mut buffer = Vec::with_capacity(8192);
    let current = group.read_current(&mut buffer)?;
    let refaults =
        group.read_stat(kernel, &mut buffer)?.refaults_with_swap_ins().map(|pages| pages.bytes(kernel.page()));
    let stall = psi::Totals::read_group(group.dir(), Resource::Memory, &mut buffer).some;
    Ok(TrialSample { at: clock::read_monotonic(), current, stall, refaults })
}

/// Returns the memory of a group that cannot leave: all except page cache and the part that fits
/// into swap.
pub fn read_fixed(kernel: &Kernel, group: &Group, config: &Config) -> Result<Bytes> {
    let mut buffer = Vec::with_capacity(8192);
    let current = group.read_current(&mut buffer)?;
    let stat = group.read_stat(kernel, &mut buffer)?;
    let known = |field: Option<Bytes>| field.context("memory.stat lacks the parts of the group's memory");
    let cache = known(stat.page_cache())?;
    let swap_backed = known(stat.swap_backed())? - stat.unevictable.unwrap_or_default();
    let context = swap_context(kernel);
    let free = context.swap.map_or(Bytes::ZERO, |swap| swap.free - swap_floor(config, context, swap_backed));
    let room = free.min(swap_left(&with_swap_limit(kernel, group)?, &mut buffer)?);
    Ok(current - cache - swap_backed.min(room))
}

impl<'a> TrialRunner<'a> {
    /// Prepares a trial. Only adds an entry to the session's journal. Call this while the process
    /// has one thread: see [`guard`](crate::reclaim::limit_journal::guard).
    pub fn new(session: Session<'a>, group: &'a Group, config: &'a Config, backend: Backend) -> Result<Self> {
        let kernel = session.host.kernel;
        let journal = session.journal.context("memory.high is changed only with a journal")?;
        let before = group.read_limit(HIGH, &mut Vec::new())?;
        let Some(user_limit) = journal.borrow(group, HIGH, before)? else {
            bail!("another omr is changing the limits of this group; nothing was tried");
        };
        let guard = journal.guard(kernel, group.id(), session.actuator)?;
        Ok(TrialRunner::guarded(session, group, config, backend, user_limit, guard))
    }

    fn guarded(
        session: Session<'a>,
        group: &'a Group,
        config: &'a Config,
        backend: Backend,
        user_limit: Borrowed<'a>,
        guard: Guard,
    ) -> Self {
        let kernel = session.host.kernel;
        TrialRunner {
            session,
            group,
            config,
            backend,
            trial_limit: user_limit.before(),
            user_limit,
            _guard: guard,
            alarm: Alarm::new(),
            ages: aging::require_mglru(kernel).is_ok().then(|| Observer::new(kernel)),
            aged: Monotonic::default(),
        }
    }

    /// Returns the user's own `memory.high`.
    pub fn user_limit(&self) -> Limit {
        self.user_limit.before()
    }

    /// Runs the trial, and restores the limit. Calls `step` before each step.
    pub fn run(&mut self, plan: Plan, step: &mut dyn FnMut(&Trial)) -> Result<(Trial, Ended)> {
        let mut trial = Trial::new(plan, read(self.session.host.kernel, self.group)?);
        let ended = self.run_steps(&mut trial, step);
        let ended = match ended {
            Err(err) if crate::reclaim::is_gone(&err) => Ok(Ended::Gone),
            ended => ended,
        };
        if !matches!(ended, Ok(Ended::Theirs(_))) {
            self.restore_limit()?;
        }
        self.user_limit.release();
        Ok((trial, ended?))
    }

    fn run_steps(&mut self, trial: &mut Trial, step: &mut dyn FnMut(&Trial)) -> Result<Ended> {
        let mut next = trial.next(&read(self.session.host.kernel, self.group)?);
        loop {
            step(trial);
            let arrived = match next {
                Next::Limit(size) => Some(self.limit(size, trial)?),
                Next::Wait => {
                    self.age(trial.plan().watch / 2);
                    self.session.cancel.sleep(CHECK_INTERVAL);
                    None
                }
                Next::GiveBack => {
                    self.restore_limit()?;
                    None
                }
                Next::End => return Ok(Ended::Over),
            };
            if self.session.cancel.is_set() {
                return Ok(Ended::Stopped);
            }
            if !self.group.read_populated(&mut Vec::new())? {
                return Ok(Ended::Empty);
            }
            let high = self.group.read_limit(HIGH, &mut Vec::new())?;
            if high != self.trial_limit {
                return Ok(Ended::Theirs(high));
            }
            let seen = read(self.session.host.kernel, self.group)?;
            next = match arrived {
                Some(reached) => trial.arrived(reached, &seen),
                None => trial.next(&seen),
            };
        }
    }

    /// Returns true if ages are known, so that reclaim finds unused memory.
    pub fn knows_ages(&self) -> bool {
        self.ages.is_some()
    }

    /// Ages the group, unless the last aging was less than `every` ago.
    fn age(&mut self, every: Duration) {
        let Some(ages) = &mut self.ages else { return };
        if clock::read_monotonic().since(self.aged) < every {
            return;
        }
        let aged =
            ages.add_tree(self.group).and_then(|()| ages.age_all(&mut *self.session.actuator, self.session.cancel));
        if aged.is_err() {
            // MGLRU was switched off, or the group is gone, which the next check notices.
            self.ages = None;
        }
        self.aged = clock::read_monotonic();
    }

    /// Brings the group below `size` and limits it to that. Returns false if this much memory
    /// cannot leave, or if the guard was broken meanwhile.
    fn limit(&mut self, size: Bytes, trial: &Trial) -> Result<bool> {
        // Some room, so that the first new page does not reach the limit.
        let slack = Bytes(size.0 / 64).max(Bytes::kib(256)).min(Bytes::mib(4));
        let low = size - slack;
        let current = self.group.read_current(&mut Vec::new())?;
        if current > low
            && let end = self.reclaim(current - low, low, trial)
            && end.is_failure()
        {
            bail!("{}: {}", self.backend, end.words());
        }
        if self.session.cancel.is_set() || self.group.read_current(&mut Vec::new())? > size {
            return Ok(false);
        }
        // The kernel rounds down to pages, and the value is compared later.
        let page = self.session.host.kernel.page().bytes().0;
        self.write(Limit::Bytes(Bytes(size.0 / page * page)))?;
        Ok(true)
    }

    /// Reclaims in a thread, and cancels it if the guard is broken meanwhile.
    fn reclaim(&mut self, amount: Bytes, floor: Bytes, trial: &Trial) -> End {
        let (host, group, cancel) = (self.session.host, self.group, Flag::default());
        let swap_floor = swap_floor(self.config, swap_context(host.kernel), amount);
        let job = job(self.config, swap_floor, self.backend.file_only(), amount, floor);
        let (actuator, mut method) = (&mut *self.session.actuator, Method::KernelFile(self.backend));
        thread::scope(|scope| {
            let cancel = &cancel;
            let report = scope.spawn(move || {
                let mut session = Session { host, actuator, journal: None, cancel, progress: &mut |_| {} };
                session.reclaim(&mut method, group.into(), job)
            });
            let mut checked = clock::read_monotonic();
            while !report.is_finished() {
                thread::sleep(Duration::from_millis(10));
                if clock::read_monotonic().since(checked) >= CHECK_INTERVAL {
                    checked = clock::read_monotonic();
                    if read(host.kernel, group).map_or(true, |seen| trial.breach(&seen).is_some()) {
                        cancel.set();
                    }
                }
            }
            report.join().map_or(End::Failed, |report| report.end)
        })
    }

    fn restore_limit(&mut self) -> Result<()> {
        let own = self.user_limit();
        if self.trial_limit == own {
            return Ok(());
        }
        // A signal can end the write before the kernel has taken the value.
        let written = self.write(own).and_then(|()| match self.group.read_limit(HIGH, &mut Vec::new())? {
            now if now == own => Ok(()),
            now => bail!("it is {now}"),
        });
        match written {
            Err(err) if !crate::reclaim::is_gone(&err) => {
                Err(err.context(format!("{HIGH} could not be restored to {own}; the next start of omr tries again")))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, limit: Limit) -> Result<()> {
        let (actuator, dir) = (&mut *self.session.actuator, self.group.dir());
        self.user_limit.announce(limit);
        match self.alarm.limit(WRITE_TIME, || actuator.write(dir, HIGH, &limit.to_string()))? {
            // The next check notices a removed group.
            Outcome::Done | Outcome::Partial | Outcome::Interrupted | Outcome::Gone => {}
            Outcome::Denied => return Err(Exit::Failed.error(format!("no permission to write to {HIGH}"))),
            Outcome::Unsupported => {
                return Err(Exit::Unsupported.error(format!("this kernel refuses {limit} in {HIGH}")));
            }
        }
        self.trial_limit = limit;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_actuate::Actuator;
    use omr_policy::trial::{self, Bottom, Breach};
    use omr_testkit::{FakeRoot, Release};
    use omr_units::Permyriad;

    use super::*;
    use crate::reclaim::limit_journal::Journal;
    use crate::session::Host;
    use crate::stand_in::{GROUPS, Reclaims, StoppedClocks, add_group, set_line, set_swap, stop_clocks};

    const HIGH_FILE: &str = "sys/fs/cgroup/a/memory.high";

    /// A machine with swap and a group of 64 MiB.
    fn machine() -> (StoppedClocks, FakeRoot) {
        let root = FakeRoot::in_memory(Release::V6_12);
        set_swap(&root, "zram0", 512);
        add_group(&root, "a", 64, 0);
        (stop_clocks(), root)
    }

    /// Down by a quarter of the size at a time, and not below 40 MiB.
    fn plan() -> Plan {
        Plan {
            step: Permyriad::percent(25),
            floor: Bytes::mib(40),
            target: None,
            watch: Duration::from_secs(4),
            hold: Duration::from_secs(8),
            guard: trial::Guard { stall: Permyriad::percent(1), refaults: Permyriad::percent(1) },
        }
    }

    /// Runs a trial, and calls `each` at each step. Returns its end, and the sizes with their ends.
    fn run_until(
        root: &FakeRoot,
        actuator: &mut dyn Actuator,
        mut each: impl FnMut(&Trial, &Flag),
    ) -> (Result<Ended>, Vec<(u64, trial::Ended)>, Option<Bottom>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let journal = Journal::open(&kernel, &root.resolve("var/lib/omr")).expect("a journal");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let cancel = Flag::default();
        let session = Session {
            host: Host { kernel: &kernel, root: root.path() },
            actuator,
            journal: Some(&journal),
            cancel: &cancel,
            progress: &mut |_| {},
        };
        let before = group.read_limit(HIGH, &mut Vec::new()).expect("a limit");
        let borrowed = journal.borrow(&group, HIGH, before).expect("no error").expect("the first");
        let config = Config::default();
        let backend = Backend::MemoryReclaim { swappiness: true, waits: false };
        let mut runner = TrialRunner::guarded(session, &group, &config, backend, borrowed, Guard::of_nobody());
        assert_eq!(runner.user_limit(), before);
        let is_on = aging::require_mglru(&kernel).is_ok();
        assert_eq!(runner.knows_ages(), is_on);
        let mut last = None;
        let ran = runner.run(plan(), &mut |trial| {
            last = Some(trial.clone());
            each(trial, &cancel);
        });
        let (trial, ended) = match ran {
            Ok((trial, ended)) => (trial, Ok(ended)),
            Err(err) => (last.expect("a step"), Err(err)),
        };
        let entries = std::fs::read_dir(root.resolve("var/lib/omr/limits")).expect("the journal").count();
        let is_left = ended.as_ref().is_err_and(|err| err.to_string().contains("could not be restored"));
        assert_eq!(entries, usize::from(is_left), "the entry stays only for a limit that is not restored");
        let tried = trial.tried().iter().map(|tried| (tried.size.0 >> 20, tried.ended)).collect();
        (ended, tried, trial.bottom())
    }

    fn run(root: &FakeRoot, actuator: &mut dyn Actuator) -> (Result<Ended>, Vec<(u64, trial::Ended)>, Option<Bottom>) {
        run_until(root, actuator, |_, _| {})
    }

    /// The values that were written to `memory.high`.
    fn limits(kernel_side: &Reclaims<'_>) -> Vec<String> {
        kernel_side.lines.iter().filter_map(|line| line.strip_prefix("a/memory.high ")).map(str::to_owned).collect()
    }

    #[test]
    fn the_group_is_limited_to_smaller_sizes_and_gets_its_limit_back() {
        let (clocks, root) = machine();
        root.write(HIGH_FILE, "1073741824\n");
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|line| {
            let entries = std::fs::read_dir(root.resolve("var/lib/omr/limits")).expect("the journal").count();
            assert_eq!(entries, 1, "the old limit is on disk before {line}");
        });
        let (ended, tried, bottom) = run(&root, &mut kernel_side);
        assert_eq!(ended.expect("no error"), Ended::Over);
        let (good, held) = (trial::Ended::Good, trial::Ended::Held);
        assert_eq!((tried, bottom), (vec![(64, good), (48, good), (40, good), (40, held)], Some(Bottom::Floor)));
        // Paced reclaim brings the group down a little further than to each limit, so that no task has to.
        assert_eq!(limits(&kernel_side), ["50331648", "41943040", "41943040", "1073741824"]);
        let before_first = kernel_side.lines.iter().take_while(|line| !line.contains("memory.high")).count();
        assert!(before_first > 1 && kernel_side.lines[0].starts_with("a/memory.reclaim "), "{:?}", kernel_side.lines);
        let current: u64 = root.read(format!("{GROUPS}/a/memory.current")).trim().parse().expect("bytes");
        assert!((39u64 << 20..40 << 20).contains(&current), "{current}");
        assert!(clocks.passed() >= Duration::from_secs(4 + 4 + 4 + 8), "{:?}", clocks.passed());
    }

    #[test]
    fn the_group_is_aged_twice_at_each_size() {
        let (clocks, root) = machine();
        let set = |youngest: u64| {
            let rows = format!(" {} 9000 10 0 \n {youngest} 1 10 0 \n", youngest - 1);
            let text = format!("memcg     1 /\n node     0\n{rows}memcg     7 /a\n node     0\n{rows}");
            root.write("sys/kernel/debug/lru_gen", text);
        };
        set(4);
        let (mut youngest, mut times) = (4, Vec::new());
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|line| {
            if line.contains("lru_gen +") {
                youngest += 1;
                set(youngest);
                times.push(clocks.passed());
            }
        });
        run(&root, &mut kernel_side).0.expect("a trial");
        drop(kernel_side);
        // Four watches of four seconds, and one more for the last size.
        assert_eq!(times.len(), 10, "{times:?}");
        assert!(times.is_sorted_by(|one, next| *next - *one >= Duration::from_secs(2)), "{times:?}");
    }

    #[test]
    fn a_size_at_which_tasks_wait_is_given_back_at_once() {
        let (_clocks, root) = machine();
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|line| {
            if line == "a/memory.high 41943040" {
                let text = "some avg10=0 avg60=0 avg300=0 total=41000\n";
                root.write(format!("{GROUPS}/a/memory.pressure"), text);
            }
        });
        let (ended, tried, bottom) = run(&root, &mut kernel_side);
        assert_eq!(ended.expect("no error"), Ended::Over);
        let (good, broken) = (trial::Ended::Good, trial::Ended::Broken(Breach::Stall));
        assert_eq!(tried, [(64, good), (48, good), (40, broken), (48, trial::Ended::Held)]);
        assert_eq!(
            (limits(&kernel_side), bottom),
            (["50331648", "41943040", "max", "50331648", "max"].map(str::to_owned).to_vec(), Some(Bottom::Guard))
        );
    }

    #[test]
    fn the_limit_is_restored_when_the_trial_ends_early() {
        let at_limit = |trial: &Trial| trial.size() == Some(Bytes::mib(48));
        let (_clocks, root) = machine();
        let mut kernel_side = Reclaims::new(&root);
        let (ended, ..) = run_until(&root, &mut kernel_side, |trial, cancel| {
            if at_limit(trial) && root.read(HIGH_FILE) != "max\n" {
                cancel.set();
            }
        });
        assert_eq!(
            (ended.expect("no error"), limits(&kernel_side)),
            (Ended::Stopped, vec!["50331648".into(), "max".into()])
        );

        let (_clocks, root) = machine();
        let mut kernel_side = Reclaims::new(&root);
        let (ended, ..) = run_until(&root, &mut kernel_side, |trial, _| {
            if at_limit(trial) {
                root.write(format!("{GROUPS}/a/cgroup.events"), "populated 0\n");
            }
        });
        assert_eq!(ended.expect("no error"), Ended::Empty);
        assert_eq!(root.read(HIGH_FILE), "max\n");

        // The value of another program stays.
        let (_clocks, root) = machine();
        let mut kernel_side = Reclaims::new(&root);
        let (ended, ..) = run_until(&root, &mut kernel_side, |trial, _| {
            if at_limit(trial) && root.read(HIGH_FILE) != "max\n" {
                root.write(HIGH_FILE, "20971520\n");
            }
        });
        assert_eq!(ended.expect("no error"), Ended::Theirs(Limit::Bytes(Bytes::mib(20))));
        assert_eq!(limits(&kernel_side), ["50331648"]);

        let (_clocks, root) = machine();
        let mut kernel_side = Reclaims::new(&root);
        let (ended, ..) = run_until(&root, &mut kernel_side, |_, _| {
            if root.resolve(format!("{GROUPS}/a")).exists() {
                root.remove(format!("{GROUPS}/a"));
            }
        });
        assert_eq!((ended.expect("no error"), kernel_side.lines.len()), (Ended::Gone, 0));
    }

    #[test]
    fn a_size_that_cannot_be_reached_is_not_a_limit() {
        let (_clocks, root) = machine();
        root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        // Swap is full at 56 MiB.
        set_swap(&root, "zram0", 8);
        set_line(&root, "proc/meminfo", "SwapFree:", "8192 kB");
        let mut kernel_side = Reclaims::new(&root);
        let (ended, tried, bottom) = run(&root, &mut kernel_side);
        assert_eq!(ended.expect("no error"), Ended::Over);
        assert_eq!(tried, [(64, trial::Ended::Good), (48, trial::Ended::Unreached)]);
        assert_eq!((limits(&kernel_side), bottom), (vec![], Some(Bottom::Unreached)));
    }

    #[test]
    fn a_kernel_that_refuses_is_named() {
        // A write to this file that has this in its data is refused.
        let refused = |file: &'static str, data: &'static str, outcome| {
            let (_clocks, root) = machine();
            struct Refuses<'a>(Reclaims<'a>, &'static str, &'static str, Outcome);
            impl Actuator for Refuses<'_> {
                fn write(&mut self, dir: &omr_kernel::Dir, name: &str, data: &str) -> omr_kernel::Result<Outcome> {
                    if name == self.1 && data.contains(self.2) { Ok(self.3) } else { self.0.write(dir, name, data) }
                }

                fn advise(
                    &mut self,
                    _: &omr_kernel::process::Process,
                    _: omr_actuate::Advice,
                    _: &[std::ops::Range<u64>],
                ) -> omr_kernel::Result<omr_actuate::AdviseResult> {
                    unreachable!("nothing is hinted")
                }

                fn is_live(&self) -> bool {
                    true
                }
            }
            let ran = run(&root, &mut Refuses(Reclaims::new(&root), file, data, outcome));
            ran.0.expect_err("refused").to_string()
        };
        assert_eq!(refused(HIGH, "", Outcome::Denied), "no permission to write to memory.high");
        assert_eq!(refused(HIGH, "", Outcome::Unsupported), "this kernel refuses 50331648 in memory.high");
        assert!(refused("memory.reclaim", "", Outcome::Denied).starts_with("memory.reclaim: "));
        let left = refused(HIGH, "max", Outcome::Denied);
        assert_eq!(left, "memory.high could not be restored to max; the next start of omr tries again");
    }

    #[test]
    fn memory_that_cannot_leave_is_all_but_page_cache_and_what_swap_takes() {
        let (_clocks, root) = machine();
        add_group(&root, "a", 16, 4);
        let mut config = Config::default();
        config.guard.swap_floor = "0".parse().expect("an amount");
        let fixed = |config: &Config| {
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
            read_fixed(&kernel, &group, config)
        };
        let mib = |config: &Config| fixed(config).expect("readable").0 >> 20;
        assert_eq!(mib(&config), 0);
        root.write(format!("{GROUPS}/a/memory.swap.max"), (6u64 << 20).to_string());
        assert_eq!(mib(&config), 10);
        root.write(format!("{GROUPS}/a/memory.swap.max"), "max\n");
        let stat = root.read(format!("{GROUPS}/a/memory.stat"));
        root.write(format!("{GROUPS}/a/memory.stat"), format!("{stat}unevictable {}\n", 2 << 20));
        assert_eq!(mib(&config), 2, "locked memory");
        set_swap(&root, "zram0", 8);
        assert_eq!(mib(&config), 8);
        config.guard.swap_floor = "50%".parse().expect("an amount");
        assert_eq!(mib(&config), 12);
        root.write(format!("{GROUPS}/a/memory.stat"), "file 0\n");
        assert!(fixed(&config).expect_err("unknown").to_string().starts_with("memory.stat lacks"));
    }

    #[test]
    fn a_sample_has_the_size_the_stalls_and_the_refaults_of_the_group() {
        let (_clocks, root) = machine();
        root.write(format!("{GROUPS}/a/memory.pressure"), "some avg10=0 avg60=0 avg300=0 total=1500\n");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let seen = read(&kernel, &group).expect("readable");
        assert_eq!((seen.at, seen.current), (clock::read_monotonic(), Bytes::mib(64)));
        assert_eq!((seen.stall, seen.refaults), (Some(Duration::from_micros(1500)), Some(Bytes(7 * 4096))));
    }
}
