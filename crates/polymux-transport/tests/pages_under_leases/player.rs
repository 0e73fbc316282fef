//! Who uses the mount, and the leaseholder, who writes the object beside it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::ioctl::{Getter, NoArg, Opcode, ioctl};

use super::bytes::{length, offset};
use super::daemon::{self, ANSWER_LENGTH, ASK, FILES, FORGET, GRANT, Mode, NONE, RESET};

/// The fate of a lease since its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub lives: bool,
    pub reads: u64,
    pub writes: u64,
    pub resizes: u64,
    pub written_back: u64,
    /// Where the kernel, and where the object had the end for the first append.
    pub append: Option<(usize, usize)>,
}

impl Account {
    pub fn expect_alive(&self, what: &str) {
        let untouched = self.lives && (self.reads, self.writes, self.resizes) == (0, 0, 0);
        assert!(untouched, "{what} does not recall the lease: {self:?}");
    }

    pub fn expect_recalled_by_read(&self, what: &str) {
        assert!(!self.lives && self.reads > 0, "{what} recalls the lease by a READ: {self:?}");
    }

    pub fn expect_recalled_by_write(&self, what: &str) {
        assert!(!self.lives && self.writes > 0, "{what} recalls the lease by a WRITE: {self:?}");
    }
}

pub struct Player {
    place: PathBuf,
    pub mode: Mode,
    /// The object, as the leaseholder has it.
    pub object: File,
    /// The file on the mount, as those have it who were there before any lease.
    pub file: File,
}

impl Player {
    pub fn new(place: PathBuf, mode: Mode) -> Self {
        let object = File::options().read(true).write(true).open(daemon::object(&place, FILES[0]));
        let file = File::options().read(true).write(true).open(daemon::mountpoint(&place).join(FILES[0]));
        let [object, file] = [object, file].map(|opened| opened.expect("it is there"));
        Self { place, mode, object, file }
    }

    /// A file on the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        daemon::mountpoint(&self.place).join(name)
    }

    /// A file beside the mount.
    pub fn beside(&self, name: &str) -> PathBuf {
        daemon::object(&self.place, name)
    }

    pub fn open(&self, flags: i32) -> File {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags);
        options.open(self.path(FILES[0])).expect("a file on the mount is opened")
    }

    /// Gives the file a content; the kernel knows its size and has none of its pages.
    pub fn begin(&self, content: &[u8]) {
        self.object.set_len(0).expect("an object is emptied");
        self.overwrite(0, content);
        self.command::<RESET>("reset");
        assert_eq!(self.size(), content.len(), "the kernel knows the size at the beginning");
    }

    fn command<const COMMAND: Opcode>(&self, what: &str) {
        // SAFETY: the daemon of this test knows the command, which has no argument.
        let outcome = unsafe { ioctl(&self.file, NoArg::<COMMAND>::new()) };
        outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    pub fn grant(&self) {
        self.command::<GRANT>("grant");
    }

    /// The kernel forgets pages and attributes.
    pub fn forget(&self) {
        self.command::<FORGET>("forget");
    }

    pub fn ask(&self) -> Account {
        // SAFETY: the daemon of this test answers the command with as many bytes.
        let answer = unsafe { ioctl(&self.file, Getter::<ASK, [u8; ANSWER_LENGTH]>::new()) }.expect("ask");
        let mut numbers = answer.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().expect("seven numbers");
        let (lives, reads, writes, resizes, written_back) = (next() == 1, next(), next(), next(), next());
        let append = Some((next(), next())).filter(|(of_kernel, _)| *of_kernel != NONE);
        let append = append.map(|(of_kernel, of_object)| (length(of_kernel), length(of_object)));
        Account { lives, reads, writes, resizes, written_back, append }
    }

    /// The leaseholder writes.
    pub fn overwrite(&self, position: usize, bytes: &[u8]) {
        self.object.write_all_at(bytes, offset(position)).expect("an object is written");
    }

    /// The bytes of the object.
    pub fn content(&self) -> Vec<u8> {
        read_to_end(&self.object, 0)
    }

    /// The bytes of the file through the mount, to its end.
    pub fn seen(&self) -> Vec<u8> {
        read_to_end(&self.file, 0)
    }

    /// The size through the mount.
    pub fn size(&self) -> usize {
        length(self.file.metadata().expect("attributes through a descriptor").len())
    }

    /// The size through the mount, asked for by path.
    pub fn size_by_path(&self) -> usize {
        length(std::fs::metadata(self.path(FILES[0])).expect("attributes by path").len())
    }
}

/// Reads from a position until a read gives nothing.
pub fn read_to_end(file: &File, position: usize) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match file.read_at(&mut buffer, offset(position + bytes.len())).expect("a file is read") {
            0 => return bytes,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
