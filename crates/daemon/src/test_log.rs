//! What the thread of a test logs.

use std::cell::RefCell;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The lines that this thread logs meanwhile, from warnings on.
pub fn lines_of(run: impl FnOnce()) -> Vec<String> {
    // Another test has set it already, or sets it now.
    let _ = log::set_logger(&Collector);
    log::set_max_level(log::LevelFilter::Warn);
    LINES.take();
    run();
    LINES.take()
}
