//! Functions that this library and the preloaded one call in one another: `preload/direct.h` in Rust.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::{files, forks, reads, report};

const VERSION: u32 = 1;

/// Answers to the preloaded library, instead of a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Answer {
    /// There is a lease: reads are served from now on.
    Leased = 0,
    /// The kernel has to answer this time.
    Kernel = -1,
    /// There is no lease: the kernel has to answer, until one is asked for.
    NoLease = -2,
    /// The kernel has to answer as long as the number names this open file.
    Foreign = -3,
}

/// Offered by the preloaded library.
#[repr(C)]
pub struct Preload {
    pub place: unsafe extern "C" fn(*mut RawFd, c_int) -> c_int,
    pub close_placed: extern "C" fn(RawFd),
    pub close_all_placed: extern "C" fn(),
    pub take_reads: extern "C" fn(RawFd) -> u32,
    report: *const c_char,
}

// SAFETY: the text is written before the program begins, and never after.
unsafe impl Sync for Preload {}

impl Preload {
    /// `POLYMUX_REPORT` when the process began, if a report is wanted.
    pub fn report(&self) -> Option<&OsStr> {
        // SAFETY: it ends with a zero, and lives for ever.
        let report = unsafe { CStr::from_ptr(self.report) };
        (!report.is_empty()).then(|| OsStr::from_bytes(report.to_bytes()))
    }
}

static PRELOAD: OnceLock<&'static Preload> = OnceLock::new();

/// The preloaded library; none in tests.
pub fn preload() -> Option<&'static Preload> {
    PRELOAD.get().copied()
}

/// Offered by this library.
#[repr(C)]
pub struct Direct {
    version: u32,
    size: u32,
    start: unsafe extern "C" fn(*const Preload),
    watch: extern "C" fn(c_int) -> c_int,
    ask: extern "C" fn(c_int) -> c_int,
    read: unsafe extern "C" fn(c_int, c_uint, *mut c_void, usize, i64) -> isize,
    forget: extern "C" fn(c_int) -> c_int,
    give_back_all: extern "C" fn(),
}

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a symbol of C")]
pub static polymux_direct: Direct =
    Direct { version: VERSION, size: SIZE, start, watch, ask, read, forget, give_back_all };

#[allow(clippy::cast_possible_truncation, reason = "it is a few dozen")]
const SIZE: u32 = size_of::<Direct>() as u32;

/// Runs a part of this library. A mistake in it must not end the program: the kernel goes on reading.
fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

unsafe extern "C" fn start(preload: *const Preload) {
    // SAFETY: the preloaded library passes its one constant, which is never unloaded while this one can be called.
    let preload = unsafe { &*preload };
    let _ = PRELOAD.set(preload);
    // It would write to standard error, which is the program's.
    std::panic::set_hook(Box::new(|_| {}));
    guarded((), || {
        report::start();
        forks::start();
    });
}

extern "C" fn watch(number: c_int) -> c_int {
    guarded(Answer::Foreign, || reads::watch(number)) as c_int
}

extern "C" fn ask(number: c_int) -> c_int {
    guarded(Answer::Foreign, || reads::ask(number)) as c_int
}

unsafe extern "C" fn read(number: c_int, lane: c_uint, buffer: *mut c_void, length: usize, offset: i64) -> isize {
    const KERNEL: isize = Answer::Kernel as isize;
    let Ok(offset) = u64::try_from(offset) else { return KERNEL };
    let Ok(all) = isize::try_from(length) else { return KERNEL };
    if all == 0 || buffer.is_null() {
        return KERNEL;
    }
    guarded(KERNEL, || {
        // SAFETY: the program says that so many bytes may be written there. They are only handed on to the kernel, which finds out if that is not true.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        reads::read(number, lane as usize, buffer, offset).map_or_else(|answer| answer as isize, |()| all)
    })
}

extern "C" fn forget(number: c_int) -> c_int {
    guarded(0, || if files::forget(number) { 0 } else { -1 })
}

extern "C" fn give_back_all() {
    guarded((), files::give_back_all);
}
