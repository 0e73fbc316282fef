//! The `polymux` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Gives memory back to the system as memtables come and go (docs/design/0008).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    polymux::run()
}
