//! The list of generations is read again and again, for thousands of groups: without an allocation
//! for each group.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;

use omr_kernel::Kernel;
use omr_kernel::lru_gen::Reader;
use omr_testkit::FakeRoot;

/// The system's allocator, with a counter of the calls in each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: each call goes to the system's allocator with the same arguments. The counter allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The number of calls of the allocator by this thread during `work`.
fn count(work: impl FnOnce()) -> usize {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

#[test]
fn lists_of_generations_are_read_without_allocating_for_each() {
    let read = |groups: usize, reader: &mut Reader| {
        let root = FakeRoot::new().scaled_generations(groups, 2);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let mut lists = 0;
        let calls = count(|| {
            let visit = |_: &[u8], _, _: &_| {
                lists += 1;
                ControlFlow::Continue(())
            };
            reader.for_each(&kernel, visit).expect("lists");
        });
        assert_eq!(lists, 2 * (groups + 1));
        calls
    };
    // A reading allocates its buffers, and the file's name for an error.
    let (few, many) = (read(10, &mut Reader::default()), read(10_000, &mut Reader::default()));
    assert!(few > 0, "calls are counted");
    assert!(many <= few + 4, "{few} for 10 groups, {many} for 10,000");
    let mut reader = Reader::default();
    read(10_000, &mut reader);
    assert!(read(10_000, &mut reader) <= 2, "and the second time the buffers are there");
    // The control: an allocation for each number is counted.
    assert!(count(|| (0..10_000).for_each(|number| drop(std::hint::black_box(Box::new(number))))) >= 10_000);
}
