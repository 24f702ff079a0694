//! The statements of a source, and the function that takes them.

use std::collections::BTreeSet;

use omr_kernel::Kernel;
use omr_kernel::process::Process;
use omr_machine::processes;
use omr_policy::statement::{Presence, Statement, Subject};

/// Receives all statements of a source. Returns false if the receiver has ended.
pub type Tell<'a> = &'a mut dyn FnMut(BTreeSet<Statement>) -> bool;

/// The statements that these processes are in the foreground. Processes that have ended are left
/// out. An id stands for the process that has it now.
pub fn in_foreground(kernel: &Kernel, pids: impl IntoIterator<Item = u32>) -> BTreeSet<Statement> {
    let process = |pid| Process::open(kernel, pid).ok().map(|process| processes::id(&process));
    let statement = |id| Statement { presence: Presence::Foreground, subject: Subject::Process(id) };
    pids.into_iter().filter_map(process).map(statement).collect()
}
