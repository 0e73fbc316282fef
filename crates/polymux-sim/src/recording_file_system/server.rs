//! The protocol's side: requests of the kernel become operations on the tree.
//!
//! What is true here:
//! * Files are opened for direct I/O, so every read and write of a program arrives, as one request up to a megabyte and in
//!   the order of the program. Names and attributes are cached by the kernel: they change only through it.
//! * What a store does not use is refused (links, renames of directories): a crash state would have to have a rule for it.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::record::{Durability, NodeId, NodeKind};
use super::tree::Tree;

/// How long the kernel may keep names and attributes.
const KEEP: Duration = Duration::from_secs(3600);

const REQUEST_LENGTH_MAX: u32 = 1024 * 1024;

/// Blocks of 4 KiB that are always free: 16 GiB.
const BLOCKS_FREE: u64 = 4 * 1024 * 1024;

const BLOCK_LENGTH: u32 = 4096;

pub(super) struct Server {
    pub(super) tree: Arc<Mutex<Tree>>,
}

fn attr(id: NodeId, (kind, length): (NodeKind, u64)) -> FileAttr {
    let (kind, perm) = match kind {
        NodeKind::File => (FileType::RegularFile, 0o600),
        NodeKind::Directory => (FileType::Directory, 0o700),
    };
    FileAttr {
        ino: INodeNo(id.0),
        size: length,
        blocks: length.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: BLOCK_LENGTH,
        flags: 0,
    }
}

fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Server {
    fn attr(&self, id: NodeId) -> Result<FileAttr, Errno> {
        Ok(attr(id, self.tree.lock().attributes(id)?))
    }

    fn answer_entry(&self, reply: ReplyEntry, found: Result<NodeId, Errno>) {
        match found.and_then(|id| self.attr(id)) {
            Ok(attr) => reply.entry(&KEEP, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn set_length(&self, id: NodeId, length: Option<u64>) -> Result<FileAttr, Errno> {
        if let Some(length) = length {
            self.tree.lock().resize(id, length)?;
        }
        self.attr(id)
    }

    /// Reserving room past the end makes a file longer; other forms are refused.
    fn allocate(&self, id: NodeId, end: Option<u64>, mode: i32) -> Result<(), Errno> {
        let end = end.filter(|_| mode == 0).ok_or(Errno::EOPNOTSUPP)?;
        let mut tree = self.tree.lock();
        let (_, length) = tree.attributes(id)?;
        if end > length { tree.resize(id, end) } else { Ok(()) }
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config
            .set_max_write(REQUEST_LENGTH_MAX)
            .map(drop)
            .map_err(|nearest| io::Error::other(format!("requests have at most {nearest} bytes")))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree.lock().lookup(NodeId(parent.0), name);
        self.answer_entry(reply, found);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(NodeId(ino.0)) {
            Ok(attr) => reply.attr(&KEEP, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.set_length(NodeId(ino.0), size) {
            Ok(attr) => reply.attr(&KEEP, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let made = self.tree.lock().create(NodeId(parent.0), name, NodeKind::Directory);
        self.answer_entry(reply, made);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.tree.lock().remove(NodeId(parent.0), name, NodeKind::File));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.tree.lock().remove(NodeId(parent.0), name, NodeKind::Directory));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let outcome = if flags.is_empty() {
            self.tree.lock().rename(NodeId(parent.0), name, NodeId(new_parent.0), new_name)
        } else {
            Err(Errno::EINVAL)
        };
        answer(reply, outcome);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let made = self.tree.lock().create(NodeId(parent.0), name, NodeKind::File);
        match made.and_then(|id| self.attr(id)) {
            Ok(attr) => reply.created(&KEEP, &attr, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = usize::try_from(size).expect("a request fits into memory");
        let read = self.tree.lock().read(NodeId(ino.0), offset, length);
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        // O_SYNC contains the bit of O_DSYNC.
        let durability = if flags.intersects(OFlags::DSYNC) { Durability::Durable } else { Durability::Cached };
        let written = self.tree.lock().write(NodeId(ino.0), offset, data, durability);
        match written {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("a request is short")),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.tree.lock().sync(NodeId(ino.0)));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.tree.lock().sync(NodeId(ino.0)));
    }

    /// Not wanted: the kernel asks once and never again. A process that is killed while it has files of its own mount open
    /// would wait for an answer of itself.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.tree.lock().list(NodeId(ino.0)) {
            Ok(names) => names,
            Err(errno) => return reply.error(errno),
        };
        // The number of a name is never used again, and so a listing goes on where it stopped whatever was removed.
        let mut names = names;
        names.sort_unstable_by_key(|(_, id, _)| *id);
        for (name, id, kind) in names.into_iter().filter(|(_, id, _)| id.0 > offset) {
            let kind = match kind {
                NodeKind::File => FileType::RegularFile,
                NodeKind::Directory => FileType::Directory,
            };
            if reply.add(INodeNo(id.0), id.0, kind, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS_FREE, BLOCKS_FREE, BLOCKS_FREE, BLOCKS_FREE, BLOCKS_FREE, BLOCK_LENGTH, 255, BLOCK_LENGTH);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.allocate(NodeId(ino.0), offset.checked_add(length), mode));
    }
}
