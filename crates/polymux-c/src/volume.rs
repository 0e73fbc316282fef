//! Volumes and their descriptors.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::Arc;

use polymux_embed::{CloseError, Directory, Errno, Error, File, Result, Volume, VolumeOptions};
use polymux_types::sync::RwLock;

use crate::arguments;
use crate::errors::{set_errno, set_message, status};

/// `POLYMUX_READ_ONLY`.
const READ_ONLY: c_uint = 1;
/// `POLYMUX_DEGRADED`.
const DEGRADED: c_uint = 2;
/// `POLYMUX_NO_MOVES`.
const NO_MOVES: c_uint = 4;

/// Descriptors that a volume has at most.
const DESCRIPTORS_MAX: usize = 1 << 20;

/// The file or directory of a descriptor.
#[derive(Clone)]
pub enum Item {
    /// A file.
    File(Arc<File>),
    /// A directory.
    Directory(Arc<Directory>),
}

/// The files of the descriptors.
#[derive(Default)]
struct Table {
    /// Each at its number.
    items: Vec<Option<Item>>,
    /// No number below is free.
    free_from: usize,
}

/// `polymux_volume` of the header.
pub struct VolumeHandle {
    volume: Volume,
    warnings: Vec<CString>,
    table: RwLock<Table>,
}

impl VolumeHandle {
    fn new(volume: Volume) -> Self {
        let warnings = volume.warnings().iter().filter_map(|warning| CString::new(warning.as_str()).ok()).collect();
        Self { volume, warnings, table: RwLock::default() }
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Gives an item the lowest free number.
    ///
    /// # Errors
    /// `EMFILE`: there are too many.
    pub fn insert(&self, item: Item) -> Result<c_int> {
        let mut table = self.table.write();
        let free_from = table.free_from;
        let free = table.items[free_from..].iter().position(Option::is_none);
        let number = free.map_or(table.items.len(), |free| free_from + free);
        if number >= DESCRIPTORS_MAX {
            return Err(Errno::EMFILE.into());
        }
        if number == table.items.len() {
            table.items.push(None);
        }
        table.items[number] = Some(item);
        table.free_from = number + 1;
        Ok(c_int::try_from(number).expect("the number of descriptors is bounded"))
    }

    /// The item of a descriptor.
    ///
    /// # Errors
    /// `EBADF`: it is not open.
    pub fn item(&self, descriptor: c_int) -> Result<Item> {
        let number = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        self.table.read().items.get(number).cloned().flatten().ok_or_else(|| Errno::EBADF.into())
    }

    /// The file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`: it is not open; `EISDIR`: it is that of a directory.
    pub fn file(&self, descriptor: c_int) -> Result<Arc<File>> {
        match self.item(descriptor)? {
            Item::File(file) => Ok(file),
            Item::Directory(_) => Err(Errno::EISDIR.into()),
        }
    }

    /// The directory of a descriptor.
    ///
    /// # Errors
    /// `EBADF`: it is not open; `ENOTDIR`: it is that of a file.
    pub fn directory(&self, descriptor: c_int) -> Result<Arc<Directory>> {
        match self.item(descriptor)? {
            Item::Directory(directory) => Ok(directory),
            Item::File(_) => Err(Errno::ENOTDIR.into()),
        }
    }

    /// Takes the number of a descriptor away.
    ///
    /// # Errors
    /// `EBADF`: it is not open.
    pub fn take(&self, descriptor: c_int) -> Result<Item> {
        let number = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        let mut table = self.table.write();
        let item = table.items.get_mut(number).and_then(Option::take).ok_or(Errno::EBADF)?;
        table.free_from = table.free_from.min(number);
        Ok(item)
    }

    /// Closes all descriptors; returns the first error.
    fn close_all(&self) -> Result<()> {
        let items = std::mem::take(&mut self.table.write().items);
        items.into_iter().flatten().map(close).fold(Ok(()), Result::and)
    }
}

/// Closes the item of a descriptor. Where another number or a call of another thread has it still, it is closed with that.
pub fn close(item: Item) -> Result<()> {
    match item {
        Item::File(file) => Arc::into_inner(file).map_or(Ok(()), File::close),
        Item::Directory(_) => Ok(()),
    }
}

/// The volume that a pointer of C stands for.
///
/// # Errors
/// `EINVAL`: a null pointer; `ENOTCONN`: this process is a child of the one that opened the volume, and no lock of it is to be touched.
///
/// # Safety
/// `volume` is null, or was set by `polymux_open_volume` and is not closed before the end of the call.
pub unsafe fn handle<'a>(volume: *const VolumeHandle) -> Result<&'a VolumeHandle> {
    // SAFETY: the caller promises that it points to a live value, which is only ever used through shared references.
    let handle = unsafe { volume.as_ref() }.ok_or(Errno::EINVAL)?;
    handle.volume().check_process()?;
    Ok(handle)
}

fn options(flags: c_uint) -> Result<VolumeOptions> {
    if flags & !(READ_ONLY | DEGRADED | NO_MOVES) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mut options = VolumeOptions::new();
    if flags & READ_ONLY != 0 {
        options = options.read_only();
    }
    if flags & DEGRADED != 0 {
        options = options.degraded();
    }
    if flags & NO_MOVES != 0 {
        options = options.movers(0);
    }
    Ok(options)
}

fn fail(errno: Errno, message: &str) -> c_int {
    set_message(message);
    set_errno(errno);
    -1
}

/// Runs something that starts threads: they inherit a mask that blocks every signal, so that signals go to the threads of the program, as it has
/// arranged for.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are plain memory, for which zeros are valid; the first is filled before it is used, the second by the call.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid sets of this function.
    let blocked = unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before)
    };
    let outcome = run();
    if blocked == 0 {
        // SAFETY: the set is the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    outcome
}

/// See the header.
///
/// # Safety
/// `name` is null or a string; `opened` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_open_volume(
    name: *const c_char,
    flags: c_uint,
    opened: *mut *mut VolumeHandle,
) -> c_int {
    set_message("");
    // SAFETY: promised by the caller.
    let name = unsafe { arguments::bytes(name) };
    let name = name.and_then(|name| std::str::from_utf8(name).map_err(|_| Error::from(Errno::EINVAL)));
    let (name, options) = match (name, options(flags)) {
        (Ok(name), Ok(options)) if !opened.is_null() => (name, options),
        _ => return fail(Errno::EINVAL, "polymux_open_volume: an argument is not valid"),
    };
    match without_signals(|| options.open(name)) {
        Ok(volume) => {
            let handle = Box::into_raw(Box::new(VolumeHandle::new(volume)));
            // SAFETY: it is not null, and the caller promises that it may be written.
            unsafe { opened.write(handle) };
            0
        }
        Err(error) => fail(error.errno(), &error.to_string()),
    }
}

/// See the header.
///
/// # Safety
/// `volume` is null, or was set by `polymux_open_volume` and is not closed; no other thread uses it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_close_volume(volume: *mut VolumeHandle) -> c_int {
    set_message("");
    if volume.is_null() {
        return 0;
    }
    // SAFETY: promised by the caller.
    if unsafe { handle(volume) }.is_err() {
        // The child of a fork: the volume is its parent's.
        return 0;
    }
    // SAFETY: it was made by `Box::into_raw`, and the caller gives it up.
    let handle = unsafe { Box::from_raw(volume) };
    let closed = handle.close_all();
    match (handle.volume.close(), closed) {
        (Ok(()), Ok(())) => 0,
        (Ok(()), Err(error)) => fail(error.errno(), &format!("a file was closed with an error: {error}")),
        (Err(CloseError::Unclean(error)), _) => {
            fail(error.errno(), &format!("the volume did not end cleanly: {error}"))
        }
        // Against the rule of the header: the call that is under way ends the volume.
        (Err(CloseError::InUse(_)), _) => fail(Errno::EBUSY, "the volume was closed while a call was under way"),
    }
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_warning(volume: *const VolumeHandle, index: usize) -> *const c_char {
    // SAFETY: promised by the caller.
    let handle = unsafe { handle(volume) };
    handle.ok().and_then(|handle| handle.warnings.get(index)).map_or(std::ptr::null(), |warning| warning.as_ptr())
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_syncfs(volume: *const VolumeHandle) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| handle.volume().sync()))
}
