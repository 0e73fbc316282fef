//! A directory of files whose number, names and lengths never change: it stands for devices in tests and measurements.
//!
//! Invariants:
//! * Files are opened for direct I/O, so that writes of a loop device arrive at once and its flushes arrive as fsync.
//! * Nothing is asked of a file beyond its end: reads end there, and so do ranges to be zeroed; writes beyond it are refused.

use std::time::Duration;

use polymux_types::Errno;

use crate::connection::{Patience, Service};
use crate::reply::Reply;
use crate::wire::{Attr, AttrReply, EntryReply, OpenFlags, OpenReply, Operation, Request};

/// How long the kernel may keep names and attributes, which never change.
const KEEP: Duration = Duration::from_secs(3600);
/// Inode number of the root.
const ROOT: u64 = 1;
/// Inode numbers of the files follow that of the root.
const FIRST_FILE: u64 = 2;

/// The files of a [`FlatDirectory`], by number from 0. Each request may be answered later.
pub trait FlatFiles: Send + Sync + 'static {
    /// Their names.
    fn names(&self) -> &[&'static str];

    /// Bytes of a file.
    fn length(&self, file: usize) -> u64;

    /// Answers with the bytes of a range.
    fn read(&self, file: usize, offset: u64, length: usize, reply: Reply);

    /// Writes, and answers with [`crate::wire::written`].
    fn write(&self, file: usize, offset: u64, data: &[u8], reply: Reply);

    /// Turns a range into zeros.
    fn zero(&self, file: usize, offset: u64, length: u64, reply: Reply);

    /// Makes the written data durable.
    fn sync(&self, file: usize, reply: Reply);
}

/// Serves such files; for [`crate::Served`].
pub struct FlatDirectory<F>(pub F);

impl<F: FlatFiles> FlatDirectory<F> {
    fn file(&self, ino: u64) -> Result<usize, Errno> {
        let index = ino.checked_sub(FIRST_FILE).and_then(|index| usize::try_from(index).ok());
        index.filter(|index| *index < self.0.names().len()).ok_or(Errno::ENOENT)
    }

    fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let (kind, size) = match ino {
            ROOT => (libc::S_IFDIR, 0),
            ino => (libc::S_IFREG, self.0.length(self.file(ino)?)),
        };
        let blocks = size.div_ceil(512);
        Ok(Attr { ino, size, blocks, mode: kind | 0o700, links: 1, block_size: 4096, ..Attr::default() })
    }

    fn lookup(&self, name: &[u8]) -> Result<EntryReply, Errno> {
        let index = self.0.names().iter().position(|known| known.as_bytes() == name).ok_or(Errno::ENOENT)?;
        let attr = self.attr(FIRST_FILE + index as u64)?;
        Ok(EntryReply { generation: 0, keep_name: KEEP, keep_attr: KEEP, attr })
    }

    /// Whether a write lies within a file.
    fn check_within(&self, file: usize, offset: u64, length: usize) -> Result<(), Errno> {
        let is_within = offset.checked_add(length as u64).is_some_and(|end| end <= self.0.length(file));
        if is_within { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// Answers requests for the bytes of a file.
    fn serve_file(&self, file: usize, operation: &Operation<'_>, reply: Reply) {
        let until_end = |offset: u64, length: u64| length.min(self.0.length(file).saturating_sub(offset));
        match *operation {
            Operation::Read { offset, size, .. } => {
                let length = usize::try_from(until_end(offset, size.into())).expect("a request fits into memory");
                self.0.read(file, offset, length, reply);
            }
            Operation::Write { offset, data, .. } => match self.check_within(file, offset, data.len()) {
                Ok(()) => self.0.write(file, offset, data, reply),
                Err(errno) => reply.error(errno),
            },
            Operation::Sync { .. } => self.0.sync(file, reply),
            // A device has a fixed length and fixed space, so only discards and zeroing are requested.
            Operation::Allocate { offset, length, .. } => self.0.zero(file, offset, until_end(offset, length), reply),
            // Flushing at close is among them: the kernel asks once and never again.
            _ => reply.error(Errno::ENOSYS),
        }
    }
}

/// Whether an operation is carried out by the files, which may wait for a device.
fn may_wait(operation: &Operation<'_>) -> bool {
    use Operation as Op;
    matches!(operation, Op::Read { .. } | Op::Write { .. } | Op::Sync { .. } | Op::Allocate { .. })
}

impl<F: FlatFiles> Service for FlatDirectory<F> {
    fn serve(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
        if patience == Patience::AtOnce && may_wait(&request.operation) {
            return Some(reply);
        }
        let ino = request.header.node;
        match request.operation {
            Operation::Lookup { name } => match self.lookup(name) {
                Ok(entry) => reply.body(&entry.encode()),
                Err(errno) => reply.error(errno),
            },
            Operation::GetAttr { .. } => match self.attr(ino) {
                Ok(attr) => reply.body(&AttrReply { keep_attr: KEEP, attr }.encode()),
                Err(errno) => reply.error(errno),
            },
            Operation::Open { .. } => reply.body(&OpenReply::new(0, OpenFlags::DIRECT_IO).encode()),
            Operation::OpenDirectory => reply.body(&OpenReply::new(0, OpenFlags::default()).encode()),
            Operation::Release { .. } | Operation::ReleaseDirectory { .. } => reply.ok(),
            ref operation => match self.file(ino) {
                Ok(file) => self.serve_file(file, operation, reply),
                // The kernel handles all other requests for a directory by itself.
                Err(_) => reply.error(Errno::ENOSYS),
            },
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}
