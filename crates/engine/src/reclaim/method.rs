//! The methods of reclaiming memory from a group: chosen here, and carried out here.
//!
//! A process has one method only, hints, and a report of its own: see [`Session::hint`].

use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_base::exit::Exit;
use omr_config::BackendChoice;
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_machine::groups::targets::Candidate;
use omr_policy::pace::Job;
use omr_policy::{Config, End};

use super::backend::Backend;
use super::generations::Evictor;
use super::memcg::FileReclaimer;
use super::regions::{ColdPager, Regions};
use super::report::Report;
use super::target::Target;
use crate::aging;
use crate::hint::{self, Extent, MadviseSession, Selection, Subject};
use crate::session::Session;

/// A way to reclaim memory from a group.
pub enum Method<'a> {
    /// A file of the group in the kernel: any memory, in the kernel's order.
    KernelFile(Backend),
    /// The generations of `lru_gen`: only memory that surely was not used for an age.
    Generations {
        /// The age.
        older_than: Duration,
        /// The run may make agings, which nothing can interrupt.
        may_age: bool,
    },
    /// Hints for the group's processes by DAMON's ages: only memory that surely was not used for an
    /// age.
    Regions(Regions<'a>),
}

/// The wish for a group, by which the method is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    /// Any memory, by this file of the kernel.
    Any(BackendChoice),
    /// Only memory that surely was not used for an age.
    Cold {
        /// The age.
        older_than: Duration,
        /// See [`Method::Generations`].
        may_age: bool,
    },
}

impl Method<'_> {
    /// Chooses the method for a wish. Probes a group that will be written to anyway.
    pub fn choose(kernel: &Kernel, wish: Wish, group: &Group, actuator: &mut dyn Actuator) -> Result<Self> {
        match wish {
            Wish::Any(choice) => Backend::probe(kernel, choice, group, actuator).map(Method::KernelFile),
            Wish::Cold { older_than, may_age } => Method::by_age(kernel, older_than, may_age),
        }
    }

    /// The method for a wish, on the first of these groups that still exists; `None`: there is
    /// none.
    pub fn choose_for_any(
        kernel: &Kernel,
        wish: Wish,
        candidates: &[Candidate],
        actuator: &mut dyn Actuator,
    ) -> Result<Option<Self>> {
        if let Wish::Cold { older_than, may_age } = wish {
            let method = Method::by_age(kernel, older_than, may_age)?;
            return Ok(Some(method).filter(|_| !candidates.is_empty()));
        }
        for candidate in candidates {
            let open = || Group::open(kernel.cgroup()?, &candidate.path);
            let group = match open() {
                Err(err) if err.is_gone() => continue,
                group => group?,
            };
            match Method::choose(kernel, wish, &group, actuator) {
                Ok(method) => return Ok(Some(method)),
                // A group that was removed meanwhile has no files at all.
                Err(_) if open().map_or(true, |now| now.id() != group.id()) => {}
                Err(err) => return Err(Exit::Unsupported.error(format!("{err:#}"))),
            }
        }
        Ok(None)
    }

    /// Returns the method of generations. Fails if this machine has no ages.
    pub fn by_age(kernel: &Kernel, older_than: Duration, may_age: bool) -> Result<Self> {
        aging::require_mglru(kernel).map(|()| Method::Generations { older_than, may_age })
    }

    /// Returns the kernel's name for the method.
    pub fn name(&self) -> &'static str {
        match self {
            Method::KernelFile(backend) => backend.file(),
            Method::Generations { .. } => "lru_gen",
            Method::Regions(_) => "process_madvise",
        }
    }

    /// Returns true if the kernel can reclaim page cache only.
    pub fn file_only(&self) -> bool {
        matches!(self, Method::KernelFile(backend) if backend.file_only())
    }
}

impl Session<'_> {
    /// Does a job on one group.
    pub fn reclaim(&mut self, method: &mut Method<'_>, target: Target<'_>, job: Job) -> Report {
        let name = method.name();
        let report = match method {
            Method::KernelFile(backend) => FileReclaimer { session: self, backend: *backend }.run(target, job),
            Method::Generations { older_than, may_age } => Evictor::new(self, *may_age).run(target, job, *older_than),
            Method::Regions(regions) => ColdPager { session: self, regions }.run(target.group, job),
        };
        Report { method: Some(name), ..report }
    }

    /// Chooses the method for a wish on this group, and does a job by it. `make` makes the job for
    /// a kernel that can, or cannot, reclaim page cache only.
    pub fn reclaim_by_wish(&mut self, wish: Wish, target: Target<'_>, make: impl FnOnce(bool) -> Job) -> Report {
        match Method::choose(self.host.kernel, wish, target.group, self.actuator) {
            Ok(mut method) => {
                let job = make(method.file_only());
                self.reclaim(&mut method, target, job)
            }
            Err(err) => Report::nothing(&make(false), End::Unsupported, Some(format!("{err:#}"))),
        }
    }

    /// Hints one process.
    pub fn hint(
        &mut self,
        config: &Config,
        subject: &Subject,
        selection: &Selection,
        extent: Extent,
    ) -> Result<hint::Report> {
        MadviseSession { session: self, config }.run(subject, selection, extent)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use omr_actuate::DryRun;
    use omr_base::cancel::Flag;
    use omr_testkit::{FakeRoot, Release};
    use omr_units::{Bytes, GroupId};

    use super::*;
    use crate::session::Host;
    use crate::stand_in::{GROUPS, Reclaims, add_group, set_swap};

    const ANY: Wish = Wish::Any(BackendChoice::Auto);
    const COLD: Wish = Wish::Cold { older_than: Duration::from_secs(120), may_age: true };

    fn candidate(kernel: &Kernel, path: &str) -> Candidate {
        let id = Group::open(kernel.cgroup().expect("groups"), Path::new(path)).map_or(GroupId(1), |group| group.id());
        let (current, gain) = (Bytes::mib(1), Bytes::mib(1));
        Candidate { id, path: PathBuf::from(path), current, gain, beyond_children: None }
    }

    #[test]
    fn each_method_has_the_name_of_its_kernel_interface() {
        let told = |method: Method<'_>| (method.name(), method.file_only());
        assert_eq!(
            told(Method::KernelFile(Backend::MemoryReclaim { swappiness: true, waits: false })),
            ("memory.reclaim", true)
        );
        assert_eq!(told(Method::KernelFile(Backend::MemoryHigh)), ("memory.high", false));
        let older_than = Duration::from_secs(1);
        assert_eq!(told(Method::Generations { older_than, may_age: false }), ("lru_gen", false));
    }

    #[test]
    fn the_first_group_that_exists_chooses_the_method() {
        let root = FakeRoot::captured(Release::V6_12);
        add_group(&root, "a", 1, 0);
        let root = root.group("without", &[("memory.current", "0\n")]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let chosen = |wish, paths: &[&str]| {
            let candidates: Vec<Candidate> = paths.iter().map(|path| candidate(&kernel, path)).collect();
            Method::choose_for_any(&kernel, wish, &candidates, &mut DryRun)
                .map(|method| method.map(|method| method.name()))
        };
        assert_eq!(chosen(ANY, &["gone", "a"]).expect("no error"), Some("memory.reclaim"));
        assert_eq!(chosen(ANY, &["gone"]).expect("no error"), None);
        assert_eq!(chosen(ANY, &[]).expect("no error"), None);
        let err = chosen(ANY, &["without", "a"]).expect_err("it has no such file");
        assert!(err.to_string().starts_with("without has no memory.reclaim"), "{err}");
        assert_eq!(chosen(COLD, &["a"]).expect("no error"), Some("lru_gen"));
        assert_eq!(chosen(COLD, &[]).expect("no error"), None);
        root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        assert!(chosen(COLD, &["a"]).expect_err("off").to_string().contains("MGLRU off"));
    }

    #[test]
    fn a_wish_that_the_machine_cannot_fulfil_is_reported() {
        let root = FakeRoot::captured(Release::V6_12);
        set_swap(&root, "zram0", 64);
        add_group(&root, "a", 4, 0);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let run = |wish| {
            let mut kernel_side = Reclaims::new(&root);
            let mut session = Session {
                host: Host { kernel: &kernel, root: root.path() },
                actuator: &mut kernel_side,
                journal: None,
                cancel: &Flag::default(),
                progress: &mut |_| {},
            };
            let mut can = None;
            let report = session.reclaim_by_wish(wish, (&group).into(), |file_only| {
                can = Some(file_only);
                Job::new(&Config::default().sweep, Bytes::mib(1))
            });
            (report.end, report.freed, can, report.error)
        };
        assert_eq!(run(ANY), (End::Complete, Bytes::mib(1), Some(true), None));
        root.remove(format!("{GROUPS}/a/memory.reclaim"));
        let (end, freed, can, error) = run(Wish::Any(BackendChoice::Reclaim));
        assert_eq!((end, freed, can), (End::Unsupported, Bytes::ZERO, Some(false)));
        assert_eq!(error.as_deref(), Some("a has no memory.reclaim (Linux 5.19)"));
    }
}
