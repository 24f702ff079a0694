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
            Wish::Any(choice) => Backend::probe(choice, group, actuator).map(Method::KernelFile),
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
        match method {
            Method::KernelFile(backend) => FileReclaimer { session: self, backend: *backend }.run(target, job),
            Method::Generations { older_than, may_age } => Evictor::new(self, *may_age).run(target, job, *older_than),
            Method::Regions(regions) => ColdPager { session: self, regions }.run(target.group, job),
        }
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
