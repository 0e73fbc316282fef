//! An open file that is read past the mount where that is possible.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::Linked;
use crate::reader::{LANES, Reader};
use crate::report::{Report, Way};

/// Reads through the kernel before a lease is asked for, the first time and after each end of one.
const READS_BEFORE: u64 = 16;

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
}

impl File {
    /// Opens a file to be read.
    ///
    /// # Errors
    /// As [`std::fs::File::open`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::from(fs::File::open(path)?))
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
        let way = match self.reader.read_past_mount(self.kernel.as_fd(), LANE.with(|lane| *lane), buffer, offset) {
            Ok(()) => return Ok(buffer.len()),
            Err(Way::NoLeaseYet) => self.reader.consider_asking(self.kernel.as_fd()),
            Err(way) => way,
        };
        self.reader.note(way, 1);
        self.kernel.read_at(buffer, offset)
    }

    /// How the reads were served so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.reader.report()
    }
}

impl From<fs::File> for File {
    /// Takes an open file over. One that may be written is read through the kernel.
    fn from(kernel: fs::File) -> Self {
        Self { kernel, reader: Reader::new(READS_BEFORE) }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}
