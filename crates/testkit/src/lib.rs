//! Fake roots: a directory with `proc/` and `sys/` files for a test, made by the test or captured
//! from real kernels.
//!
//! ```
//! use omr_testkit::{FakeRoot, Release};
//!
//! let root = FakeRoot::new()
//!     .proc("meminfo", "MemTotal:  1024 kB\n")
//!     .group("a/b", &[("memory.current", "4096\n")]);
//! assert_eq!(root.read("sys/fs/cgroup/a/b/memory.current"), "4096\n");
//!
//! let real = FakeRoot::captured(Release::V6_12).busy_group("user.slice/app");
//! assert!(real.read("proc/meminfo").starts_with("MemTotal:"));
//! ```
//!
//! A fake root is for reading, and for recording writes. No kernel is behind it: a write only
//! replaces the file's bytes.

mod captured;
pub mod fuzz;
pub mod memory;
mod root;
pub mod trace;

pub use captured::{Release, captured};
pub use root::FakeRoot;
