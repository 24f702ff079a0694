"""omr's lab: boots real kernels in QEMU, runs scenarios on them, writes reports."""
