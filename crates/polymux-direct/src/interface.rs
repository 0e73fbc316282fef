//! Functions that this library and the preloaded one call in one another: `preload/direct.h` in Rust.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::registry::End;
use crate::{calls, files, forks, report};

const VERSION: u32 = 2;

/// Answers to the preloaded library, instead of a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Answer {
    /// There is a lease: calls are served from now on.
    Leased = 0,
    /// The kernel has to answer this time.
    Kernel = -1,
    /// There is no lease: the kernel has to answer, until one is asked for.
    NoLease = -2,
    /// The kernel has to answer as long as the number names this open file.
    Foreign = -3,
}

/// The end of a call: a number of bytes, or an error as the kernel gives it.
pub type Served = Result<usize, Errno>;

/// Errors are below this.
const ERROR: isize = -1000;

/// Offered by the preloaded library.
#[repr(C)]
pub struct Preload {
    pub place: unsafe extern "C" fn(*mut RawFd, c_int) -> c_int,
    pub close_placed: extern "C" fn(RawFd),
    pub close_all_placed: extern "C" fn(),
    pub take_reads: extern "C" fn(RawFd) -> u32,
    pub take_writes: extern "C" fn(RawFd) -> u32,
    pub avoid_pages: extern "C" fn(RawFd, c_int),
    may_have_locks: extern "C" fn(RawFd) -> c_int,
    begin_moving: extern "C" fn() -> c_int,
    end_moving: extern "C" fn(),
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

    /// Whether the process may have locks on the file of a number, which the end of any descriptor of the file would end.
    pub fn may_have_locks(&self, number: RawFd) -> bool {
        (self.may_have_locks)(number) != 0
    }

    /// Begins a time in which the process takes no locks; `None` where it has begun to take some.
    pub fn without_locks(&self) -> Option<WithoutLocks<'_>> {
        ((self.begin_moving)() != 0).then_some(WithoutLocks(self))
    }
}

/// Such a time.
pub struct WithoutLocks<'a>(&'a Preload);

impl Drop for WithoutLocks<'_> {
    fn drop(&mut self) {
        (self.0.end_moving)();
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
    write: unsafe extern "C" fn(c_int, c_uint, *const c_void, usize, i64) -> isize,
    read_past_pages: unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize,
    write_past_pages: unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize,
    forget: extern "C" fn(c_int) -> c_int,
    give_back_all: extern "C" fn(),
    prepare_for_locks: extern "C" fn(),
}

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a symbol of C")]
pub static polymux_direct: Direct = Direct {
    version: VERSION,
    size: SIZE,
    start,
    watch,
    ask,
    read,
    write,
    read_past_pages,
    write_past_pages,
    forget,
    give_back_all,
    prepare_for_locks,
};

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
    guarded(Answer::Foreign, || calls::watch(number)) as c_int
}

extern "C" fn ask(number: c_int) -> c_int {
    guarded(Answer::Foreign, || calls::ask(number)) as c_int
}

const KERNEL: isize = Answer::Kernel as isize;

/// Serves a call for some bytes at an offset that is none below zero.
fn serve(is_null: bool, length: usize, offset: i64, body: impl FnOnce(u64) -> Result<Served, Answer>) -> isize {
    let Ok(offset) = u64::try_from(offset) else { return KERNEL };
    if length == 0 || is_null || isize::try_from(length).is_err() {
        return KERNEL;
    }
    guarded(KERNEL, || match body(offset) {
        Ok(Ok(count)) => count.cast_signed(),
        Ok(Err(error)) => ERROR - error.raw_os_error() as isize,
        Err(answer) => answer as isize,
    })
}

unsafe extern "C" fn read(number: c_int, lane: c_uint, buffer: *mut c_void, length: usize, offset: i64) -> isize {
    serve(buffer.is_null(), length, offset, |offset| {
        // SAFETY: the program says that so many bytes may be written there. They are only handed on to the kernel, which finds out if that is not true.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        calls::read(number, lane as usize, buffer, offset)
    })
}

unsafe extern "C" fn write(number: c_int, lane: c_uint, data: *const c_void, length: usize, offset: i64) -> isize {
    serve(data.is_null(), length, offset, |offset| {
        // SAFETY: as in `read`: the kernel reads them, and nothing else.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
        calls::write(number, lane as usize, data, offset)
    })
}

unsafe extern "C" fn read_past_pages(number: c_int, buffer: *mut c_void, length: usize, offset: i64) -> isize {
    serve(buffer.is_null(), length, offset, |offset| {
        // SAFETY: as in `read`.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        calls::read_past_pages(number, buffer, offset)
    })
}

unsafe extern "C" fn write_past_pages(number: c_int, data: *const c_void, length: usize, offset: i64) -> isize {
    serve(data.is_null(), length, offset, |offset| {
        // SAFETY: as in `write`.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
        calls::write_past_pages(number, data, offset)
    })
}

extern "C" fn forget(number: c_int) -> c_int {
    guarded(0, || if files::forget(number, End::Closing) { 0 } else { -1 })
}

extern "C" fn give_back_all() {
    guarded((), files::give_back_all);
}

extern "C" fn prepare_for_locks() {
    guarded((), files::close_all_past_pages);
}

#[cfg(test)]
mod tests {
    use polymux_lease::{VERSION, command};
    use polymux_types::{LeaseRefusal, LeaseWish};

    #[test]
    fn the_inquiry_of_the_preloaded_part_is_that_of_the_daemon() {
        let header = include_str!("../preload/direct.h");
        let defined = |name: &str| {
            let value = header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            value.unwrap_or_else(|| panic!("{name}")).parse().ok()
        };
        assert_eq!(defined("POLYMUX_REQUEST_BYTES"), u32::try_from(command::LENGTH).ok());
        assert_eq!(defined("POLYMUX_REQUEST_VERSION"), Some(VERSION));
        assert_eq!(defined("POLYMUX_INQUIRY"), Some(LeaseWish::Inquiry as u32));
        assert_eq!(defined("POLYMUX_NOT_WANTED"), Some(LeaseRefusal::NotWanted.code()));
        assert_eq!(defined("POLYMUX_WANTED"), Some(LeaseRefusal::Wanted.code()));
        assert_eq!(defined("POLYMUX_OFF"), Some(LeaseRefusal::Off.code()));
        assert_eq!(defined("POLYMUX_COLLECTS_WRITES"), Some(LeaseRefusal::CollectsWrites.code()));
        assert_eq!(defined("POLYMUX_OLD_KERNEL"), Some(LeaseRefusal::OldKernel.code()));
        assert!(header.contains("_IOC(_IOC_READ | _IOC_WRITE, 0xd7, 1, POLYMUX_REQUEST_BYTES)"));
        assert_eq!(command::NUMBER, 3 << 30 | 64 << 16 | 0xd7 << 8 | 1);
    }
}
