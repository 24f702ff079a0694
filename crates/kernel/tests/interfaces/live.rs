//! Probes of the kernel that the tests run on: each probe must return an answer, whichever it is.

use std::path::Path;

use omr_kernel::Kernel;
use omr_kernel::probe::{self, PSI_WINDOWS, Support};

#[test]
fn every_probe_answers() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    for answer in [probe::procmap_query(&kernel), probe::pagemap_scan(&kernel)] {
        assert_ne!(answer, Support::NotProbed);
    }
    // Without PSI, or without permission to open the file, the result is an error and no panic.
    if let Ok(Some(window)) = probe::psi_window(&kernel) {
        assert!(PSI_WINDOWS.contains(&window));
    }
}

#[test]
fn release_numbers_and_probes_agree_where_both_are_known() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let version = kernel.read_version().expect("two numbers");
    // Kernels before these releases do not have the ioctl. Later ones may be built without it.
    if version < (6, 11) {
        assert_eq!(probe::procmap_query(&kernel), Support::Missing);
    }
    if version < (6, 7) {
        assert_eq!(probe::pagemap_scan(&kernel), Support::Missing);
    }
}
