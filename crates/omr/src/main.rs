//! omr
fn main() {}
