//! Errors that end a run, told from those of a group that ended.

/// Returns true if the error means that the group or process is gone.
pub fn is_gone(err: &anyhow::Error) -> bool {
    err.downcast_ref::<omr_kernel::Error>().is_some_and(omr_kernel::Error::is_gone)
}

/// Converts an error about a file of the machine, so that it does not mean that the group is gone.
pub(super) fn of_machine(err: omr_kernel::Error) -> anyhow::Error {
    anyhow::anyhow!("{err}")
}
