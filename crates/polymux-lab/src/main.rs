//! The `polymux-lab` command: `polymux` with the policies that exist for comparison.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// As the product has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    polymux_lab::register();
    polymux::run()
}
