//! The interfaces of the kernel crate, on captured text of real kernels, hostile text and noise.

use omr_kernel::Kernel;
use omr_testkit::FakeRoot;

mod allocations;
mod blocks;
mod counters;
mod features;
mod fuzz;
mod hibernate;
mod live;
mod lru_gen;
mod medium;
mod mounts;
mod numa;
mod pagemap;
mod parsers;
mod power_supply;
mod process;
mod swap;
mod zoneinfo;

fn open(root: &FakeRoot) -> Kernel {
    Kernel::open(root.path()).expect("a fake root opens")
}
