//! The list of generations is read again and again, for thousands of groups: without an allocation
//! for each group.

use std::ops::ControlFlow;

use omr_kernel::Kernel;
use omr_kernel::lru_gen::Reader;
use omr_testkit::FakeRoot;
use omr_testkit::memory::count_calls;

#[test]
fn lists_of_generations_are_read_without_allocating_for_each() {
    let read = |groups: usize, reader: &mut Reader| {
        let root = FakeRoot::new().scaled_generations(groups, 2);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let mut lists = 0;
        let calls = count_calls(|| {
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
    assert!(count_calls(|| (0..10_000).for_each(|number| drop(std::hint::black_box(Box::new(number))))) >= 10_000);
}
