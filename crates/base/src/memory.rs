//! The allocator of programs that read much for a moment and then live on.

/// Has memory returned to the kernel soon. To be called before any other thread runs.
pub fn return_soon() {
    const LARGE: libc::c_int = 64 << 10;
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, LARGE), (libc::M_MMAP_THRESHOLD, LARGE)]
    {
        // SAFETY: sets a parameter of the allocator, and no other thread runs yet.
        unsafe { libc::mallopt(parameter, value) };
    }
}
