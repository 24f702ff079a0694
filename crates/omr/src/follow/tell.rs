//! The statements of a source, and the function that takes them.

use std::collections::BTreeSet;
use std::time::Instant;

use omr_kernel::Kernel;
use omr_kernel::process::Process;
use omr_machine::processes;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_policy::statement::{Presence, Statement, Subject};

/// What a source tells.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Its statements about groups and processes.
    pub statements: BTreeSet<Statement>,
    /// What it knows about who is there; `None`: nothing.
    pub presence: Option<Looked>,
}

impl From<BTreeSet<Statement>> for Told {
    fn from(statements: BTreeSet<Statement>) -> Told {
        Told { statements, presence: None }
    }
}

/// Facts about who is there, and when the source looked.
#[derive(Clone, Debug)]
pub struct Looked {
    pub facts: Facts,
    /// The setting by which the machine hibernates; `None`: there is none, or unknown.
    pub hibernates: Option<HibernatesBy>,
    pub at: Instant,
}

impl Looked {
    /// The facts as old as they are now.
    pub fn now(&self) -> Facts {
        Facts { age: self.at.elapsed(), ..self.facts.clone() }
    }
}

/// Receives all that a source tells. Returns false if the receiver has ended.
pub type Tell<'a> = &'a mut dyn FnMut(Told) -> bool;

/// The statements that these processes are in the foreground. Processes that have ended are left
/// out. An id stands for the process that has it now.
pub fn in_foreground(kernel: &Kernel, pids: impl IntoIterator<Item = u32>) -> BTreeSet<Statement> {
    let process = |pid| Process::open(kernel, pid).ok().map(|process| processes::id(&process));
    let statement = |id| Statement { presence: Presence::Foreground, subject: Subject::Process(id) };
    pids.into_iter().filter_map(process).map(statement).collect()
}
