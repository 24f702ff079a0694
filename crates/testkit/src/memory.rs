//! Counts what a thread allocates. Every test program that uses this crate has this allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counters in each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// What this thread holds, in bytes: less than zero where it frees what another one allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A size is at most `isize::MAX`.
fn add(more: usize, less: usize) {
    let held = HELD.get().wrapping_add_unsigned(more).wrapping_sub_unsigned(less);
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: each call goes to the system's allocator with the same arguments. The counters allocate
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        add(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    // The system maps large zeroed memory without touching it.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        add(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        add(0, layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        add(size, layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The number of calls of the allocator by this thread during `work`.
pub fn count_calls(work: impl FnOnce()) -> usize {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

/// The most bytes that this thread held at a time during `work`, beyond those before it.
pub fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    work();
    usize::try_from(MOST.get() - before).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn what_is_freed_again_still_counts_and_what_was_there_before_does_not() {
        let before = black_box(vec![1u8; 1 << 20]);
        let held = most_held(|| {
            for _ in 0..3 {
                drop(black_box(vec![0u8; 4096]));
            }
            drop(before);
        });
        assert!((4096..8192).contains(&held), "{held}");
        assert!(most_held(|| drop(black_box(Vec::<u8>::with_capacity(1 << 32)))) >= 1 << 32);
        assert_eq!(count_calls(|| drop(black_box(Box::new(7)))), 1);
    }
}
