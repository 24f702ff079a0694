//! The group that a run reclaims from.

use omr_kernel::memcg::Group;
use omr_units::Bytes;

/// The group to reclaim from.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The group.
    pub group: &'a Group,
    /// The group's own memory, if the job is only about that; `None`: the job includes its
    /// children.
    pub inner: Option<Bytes>,
}

impl<'a> From<&'a Group> for Target<'a> {
    fn from(group: &'a Group) -> Self {
        Target { group, inner: None }
    }
}
