//! Fake roots: a directory with the `proc/` and `sys/` files a test wants, text captured from real kernels included.
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
//! A fake root is for reading and for recording writes; it has no kernel behind it: a write replaces the file's bytes.

mod captured;
mod root;

pub use captured::{Release, captured};
pub use root::FakeRoot;
