//! Control groups: the tree, extended attributes, classes, reclaim targets, and lint of rules.

pub mod below;
pub mod class;
pub mod lint;
pub mod targets;
pub mod tree;
pub mod xattrs;
