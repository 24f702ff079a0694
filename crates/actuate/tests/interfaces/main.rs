//! Writes to the kernel, on fake roots and stand-ins for the kernel, and a few on a real process.

use omr_kernel::Kernel;
use omr_testkit::FakeRoot;

mod commands;
mod damon;
mod madvise;
mod probe;

fn open(root: &FakeRoot) -> Kernel {
    Kernel::open(root.path()).expect("a fake root opens")
}
