//! From results to return values and `errno`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use polymux_embed::{Errno, Result};

thread_local! {
    /// Why the last `polymux_open_volume` or `polymux_close_volume` of this thread failed.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Sets `errno` of the calling thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: the location is that of this thread, and valid for as long as it lives.
    unsafe { *libc::__errno_location() = errno.raw() };
}

/// Keeps a message for `polymux_error_message`. A thread that ends, as the first one does before the functions of atexit(3) run, has none any
/// more.
pub fn set_message(text: &str) {
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let _ = MESSAGE.try_with(|message| *message.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// 0 or -1.
pub fn status(result: Result<()>) -> c_int {
    number(result.map(|()| 0))
}

/// The number or -1.
pub fn number<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| {
        set_errno(error.errno());
        T::from(-1)
    })
}

/// A count of bytes, or -1.
pub fn count(result: Result<usize>) -> isize {
    number(result.map(|count| isize::try_from(count).expect("counts are bounded by the size of a buffer")))
}

/// Why the last `polymux_open_volume` or `polymux_close_volume` of this thread failed, in one line; empty where none did. Valid until the next
/// call of either on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn polymux_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_c_str().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Version of the library, as `polymux --version` prints it.
#[unsafe(no_mangle)]
pub extern "C" fn polymux_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
