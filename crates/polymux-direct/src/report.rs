//! Says at the end of the process how its files were read, if `POLYMUX_REPORT` asks for it: `1` for standard error, or a file to append to.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use polymux_client::FileIdentity;
use rustix::fs::{FileType, Mode, OFlags};

use crate::quiet::Quiet;
use crate::{forks, interface, registry};

/// Standard error as it was when this library was loaded: under its number there may be a file of the program at the end.
static STANDARD_ERROR: OnceLock<Option<FileIdentity>> = OnceLock::new();

fn wanted() -> Option<&'static OsStr> {
    interface::preload()?.report()
}

pub fn is_wanted() -> bool {
    wanted().is_some()
}

pub fn start() {
    let _ = STANDARD_ERROR.set(FileIdentity::of(standard_error()).ok());
}

fn standard_error() -> BorrowedFd<'static> {
    // SAFETY: it is handed to the kernel only, which says if there is none.
    unsafe { BorrowedFd::borrow_raw(2) }
}

extern "C" fn at_exit() {
    // A process that ends must not be kept from it.
    let _ = catch_unwind(print);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

fn print() {
    let Some(wanted) = wanted().filter(|_| forks::may_change()) else { return };
    let _quiet = Quiet::begin();
    let text = text();
    // A reader that went away is none of the program's business.
    let _ = if wanted == "1" { write_to_standard_error(&text) } else { append(wanted, &text) };
}

fn text() -> String {
    let mut registry = registry::lock();
    let (reports, others) = registry.reports();
    let mut text = String::new();
    for (path, report) in reports {
        // Names may hold anything, and a line is one line.
        let _ = writeln!(text, "polymux: {}: {report}", path.escape_debug());
    }
    if others != polymux_client::Report::default() {
        let _ = writeln!(text, "polymux: other files: {others}");
    }
    text
}

fn write_to_standard_error(text: &str) -> io::Result<()> {
    let is_the_same = FileIdentity::of(standard_error()).ok() == STANDARD_ERROR.get().copied().flatten();
    if is_the_same {
        rustix::io::write(standard_error(), text.as_bytes())?;
    }
    Ok(())
}

fn append(path: &OsStr, text: &str) -> io::Result<()> {
    // Whatever lies there, opening it waits for nothing.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?);
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::RegularFile {
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}
