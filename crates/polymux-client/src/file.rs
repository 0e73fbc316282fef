//! An open file that is read and overwritten past the mount where that is possible.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use polymux_types::{LeaseRefusal, LeaseWish};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::host::Linked;
use crate::reader::{LANES, Reader};
use crate::report::{Report, Way};

/// Calls through the kernel before a lease is asked for, the first time and after each end of one.
const CALLS_BEFORE: u64 = 16;

thread_local! {
    /// The lane of this thread, in each file.
    static LANE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % LANES
    };
}

/// An open file. It can be shared among threads, as an open file description can.
#[derive(Debug)]
pub struct File {
    kernel: fs::File,
    reader: Reader<Linked>,
    /// The file once more, past the page cache; `None` where it cannot be opened.
    past_pages: OnceLock<Option<fs::File>>,
}

fn lane() -> usize {
    LANE.with(|lane| *lane)
}

/// Opens a file once more with the access that it has, past the page cache.
///
/// # Errors
/// As `open(2)`; there is no `/proc`.
pub fn open_past_pages(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let access = rustix::fs::fcntl_getfl(file)? & (OFlags::RWMODE | OFlags::NOATIME);
    // The table of descriptors of this thread, which need not be that of the process.
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?)
}

/// The lease to be asked for on an open file, after a refusal: one for a file that nothing changes first where the description only reads, because the page cache is left alone by it.
#[must_use]
pub fn wish_for(file: BorrowedFd<'_>, refused: Option<LeaseRefusal>) -> LeaseWish {
    let flags = rustix::fs::fcntl_getfl(file);
    let is_for_reading = flags.is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDONLY);
    if is_for_reading && refused != Some(LeaseRefusal::OpenForChanges) {
        return LeaseWish::UnchangedFile;
    }
    LeaseWish::AnyFile
}

impl File {
    /// Opens a file to be read.
    ///
    /// # Errors
    /// As [`std::fs::File::open`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::from(fs::File::open(path)?))
    }

    /// Opens a file to be read and written.
    ///
    /// # Errors
    /// As [`std::fs::OpenOptions::open`].
    pub fn open_to_change(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::from(fs::OpenOptions::new().read(true).write(true).open(path)?))
    }

    /// The open file as the kernel has it: everything else is done with it.
    #[must_use]
    pub fn as_file(&self) -> &fs::File {
        &self.kernel
    }

    /// Reads at an offset; the position of the open file stays. Returns the number of bytes, which is less than asked for at the end of the file, and for
    /// reads of 2 GiB and more. Bytes of the buffer behind that number are undefined.
    ///
    /// # Errors
    /// As `pread(2)`.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        match self.past_mount(|| self.reader.read_past_mount(self.kernel.as_fd(), lane(), buffer, offset)) {
            Ok(()) => Ok(buffer.len()),
            Err(way) => {
                self.reader.note_reads(way, 1);
                self.for_calls().read_at(buffer, offset)
            }
        }
    }

    /// Tries a call past the mount, once more where a lease was asked for and given.
    ///
    /// # Errors
    /// The way to take instead.
    fn past_mount(&self, mut call: impl FnMut() -> Result<(), Way>) -> Result<(), Way> {
        match call() {
            Err(Way::NoLeaseYet) => {
                match self.reader.consider_asking(self.kernel.as_fd(), |refused| self.wish(refused)) {
                    Way::Directly => call(),
                    way => Err(way),
                }
            }
            outcome => outcome,
        }
    }

    /// The leases to be asked for, after a refusal: for a file that changes only with another description for calls through the kernel.
    fn wish(&self, refused: Option<LeaseRefusal>) -> LeaseWish {
        match wish_for(self.kernel.as_fd(), refused) {
            LeaseWish::AnyFile if self.past_pages().is_none() => LeaseWish::UnchangedFile,
            wish => wish,
        }
    }

    fn past_pages(&self) -> Option<&fs::File> {
        self.past_pages.get_or_init(|| Some(open_past_pages(self.kernel.as_fd()).ok()?.into())).as_ref()
    }

    /// The description for calls through the kernel.
    fn for_calls(&self) -> &fs::File {
        let past_pages = if self.reader.keeps_pages_away() { self.past_pages() } else { None };
        past_pages.unwrap_or(&self.kernel)
    }

    /// Writes at an offset; the position of the open file stays. Returns the number of bytes, as `pwrite(2)` does.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        if data.is_empty() {
            return self.kernel.write_at(data, offset);
        }
        match self.past_mount(|| self.reader.write_past_mount(self.kernel.as_fd(), lane(), data, offset)) {
            Ok(()) => Ok(data.len()),
            Err(way) => {
                self.reader.note_writes(way, 1);
                if way == Way::TooLarge {
                    return Err(Errno::FBIG.into());
                }
                self.for_calls().write_at(data, offset)
            }
        }
    }

    /// How the reads were served so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.reader.report()
    }
}

impl From<fs::File> for File {
    /// Takes an open file over. It must not be made to append, or to bypass the page cache, afterwards (`fcntl(2)`).
    fn from(kernel: fs::File) -> Self {
        Self { kernel, reader: Reader::new(CALLS_BEFORE), past_pages: OnceLock::new() }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}
