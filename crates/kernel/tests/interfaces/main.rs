//! Readers of the machine's interfaces, on captured text of real kernels, hostile text and noise.

use omr_kernel::Kernel;
use omr_testkit::FakeRoot;

mod hibernate;
mod process;
mod swap;

fn open(root: &FakeRoot) -> Kernel {
    Kernel::open(root.path()).expect("a fake root opens")
}
