//! Whether this process is a child of the one that began something.
//!
//! A fork copies the memory of a process and none of its threads but one: open tiers and logs in that copy must not be used beside those of
//! the parent.
//!
//! Invariant: [`forks`] grows by one in the child of each `fork(3)` since [`count_forks`], and never in the parent. Children of `vfork` and
//! `posix_spawn` run no code of this program.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Begins to count forks. Further calls do nothing.
///
/// # Errors
/// The C library has no memory for it.
pub fn count_forks() -> io::Result<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    let register = || {
        // SAFETY: the handler is a function of this program that only changes an atomic number, which is allowed in the child of a fork.
        unsafe { libc::pthread_atfork(None, None, Some(count_in_child)) }
    };
    match *REGISTERED.get_or_init(register) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Forks between the process that began to count them and this one.
#[must_use]
pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
