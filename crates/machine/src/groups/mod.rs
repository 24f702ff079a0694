//! Control groups: all there are, what each says of itself, its class, and which may be touched.

pub mod class;
pub mod lint;
pub mod targets;
pub mod tree;
pub mod xattrs;
