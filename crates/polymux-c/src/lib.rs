//! The C interface of a volume inside a program: `libpolymux`. `include/polymux.h` documents every function for those who call it; here
//! stands how they are kept safe.
//!
//! # Invariants
//!
//! * Functions return as the POSIX call of the same name does: -1 with `errno` set on failure. The text of a failed
//!   `polymux_open_volume` or `polymux_close_volume` is kept for the thread that called it.
//! * A `polymux_volume` is a [`volume::VolumeHandle`] that was made by `polymux_open_volume` and is not yet closed; anything else is undefined,
//!   as with `FILE`. Descriptors are numbers of its table, checked at each call.
//! * A call that has found its file keeps it: closing the descriptor meanwhile takes the number away, and the file ends with the call.
//! * No panic leaves a function: `extern "C"` ends the process instead, which is like a crash of the daemon.
//! * Pointers are used only during the call that passes them.

mod arguments;
mod attributes;
mod directories;
mod errors;
mod files;
mod paths;
mod times;
mod volume;
mod xattrs;
