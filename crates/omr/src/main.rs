//! The program `omr`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    omr::main()
}
