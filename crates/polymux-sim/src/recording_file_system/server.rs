//! The protocol's side: requests of the kernel become operations on the tree.
//!
//! Invariants:
//! * Files are opened for direct I/O, so every read and write of a program arrives, as one request up to a megabyte and in
//!   the order of the program. Names and attributes are cached by the kernel: they change only through it.
//! * Operations that a store does not use are refused (links, renames of directories): each would need a crash state rule.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polymux_transport::wire::{
    Attr, AttrReply, EntryReply, Listing, OpenFlags, OpenReply, Operation, Request, Room, Space, created, written,
};
use polymux_transport::{Patience, Reply, Service};
use polymux_types::Errno;
use rustix::fs::OFlags;

use super::record::{Durability, NodeId, NodeKind};
use super::tree::Tree;

/// How long the kernel may keep names and attributes.
const KEEP: Duration = Duration::from_secs(3600);

/// Blocks of 4 KiB that are always free: 16 GiB.
const BLOCKS_FREE: u64 = 4 * 1024 * 1024;

const BLOCK_LENGTH: u32 = 4096;

pub(super) struct Server {
    pub(super) tree: Arc<Mutex<Tree>>,
}

/// Every file is opened in the same way.
const OPENED: OpenReply = OpenReply::new(0, OpenFlags::DIRECT_IO);

fn mode_of(kind: NodeKind) -> u32 {
    match kind {
        NodeKind::File => 0o100_600,
        NodeKind::Directory => 0o40_700,
    }
}

fn attr(id: NodeId, (kind, length): (NodeKind, u64)) -> Attr {
    Attr {
        ino: id.0,
        size: length,
        blocks: length.div_ceil(512),
        mode: mode_of(kind),
        links: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        block_size: BLOCK_LENGTH,
        ..Attr::default()
    }
}

impl Server {
    fn attr(&self, id: NodeId) -> Result<Attr, Errno> {
        Ok(attr(id, self.tree.lock().attributes(id)?))
    }

    fn attr_reply(&self, id: NodeId) -> Result<Vec<u8>, Errno> {
        Ok(AttrReply { keep_attr: KEEP, attr: self.attr(id)? }.encode().to_vec())
    }

    fn entry(&self, found: Result<NodeId, Errno>) -> Result<EntryReply, Errno> {
        Ok(EntryReply { generation: 0, keep_name: KEEP, keep_attr: KEEP, attr: self.attr(found?)? })
    }

    fn entry_reply(&self, found: Result<NodeId, Errno>) -> Result<Vec<u8>, Errno> {
        Ok(self.entry(found)?.encode().to_vec())
    }

    fn set_length(&self, id: NodeId, length: Option<u64>) -> Result<Vec<u8>, Errno> {
        if let Some(length) = length {
            self.tree.lock().resize(id, length)?;
        }
        self.attr_reply(id)
    }

    /// Reserving space past the end makes a file longer; other forms are refused.
    fn allocate(&self, id: NodeId, end: Option<u64>, mode: i32) -> Result<(), Errno> {
        let end = end.filter(|_| mode == 0).ok_or(Errno::EOPNOTSUPP)?;
        let mut tree = self.tree.lock();
        let (_, length) = tree.attributes(id)?;
        if end > length { tree.resize(id, end) } else { Ok(()) }
    }

    fn write(&self, id: NodeId, offset: u64, data: &[u8], open_flags: i32) -> Result<Vec<u8>, Errno> {
        let flags = OFlags::from_bits_retain(open_flags.cast_unsigned());
        // O_SYNC contains the bit of O_DSYNC.
        let durability = if flags.intersects(OFlags::DSYNC) { Durability::Durable } else { Durability::Cached };
        self.tree.lock().write(id, offset, data, durability)?;
        Ok(written(u32::try_from(data.len()).expect("a request is short")).to_vec())
    }

    fn rename(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), flags: u32) -> Result<(), Errno> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        self.tree.lock().rename(from.0, OsStr::from_bytes(from.1), to.0, OsStr::from_bytes(to.1))
    }

    fn list(&self, id: NodeId, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let mut names = self.tree.lock().list(id)?;
        let mut listing = Listing::new(size);
        // The number of a name is never used again, and so a listing goes on where it stopped whatever was removed.
        names.sort_unstable_by_key(|(_, id, _)| *id);
        for (name, id, kind) in names.into_iter().filter(|(_, id, _)| id.0 > offset) {
            if listing.add(id.0, id.0, mode_of(kind), name.as_bytes()) == Room::Full {
                break;
            }
        }
        Ok(listing.bytes().to_vec())
    }
}

impl Service for Server {
    fn serve(&self, request: &Request<'_>, reply: Reply, _: Patience) -> Option<Reply> {
        let id = NodeId(request.header.node);
        let create = |name, kind| self.tree.lock().create(id, OsStr::from_bytes(name), kind);
        let remove = |name, kind| self.tree.lock().remove(id, OsStr::from_bytes(name), kind);
        match request.operation {
            Operation::Lookup { name } => {
                let found = self.tree.lock().lookup(id, OsStr::from_bytes(name));
                reply.result(self.entry_reply(found));
            }
            Operation::GetAttr { .. } => reply.result(self.attr_reply(id)),
            Operation::SetAttr { change } => reply.result(self.set_length(id, change.size)),
            Operation::MakeDirectory { name, .. } => {
                let made = create(name, NodeKind::Directory);
                reply.result(self.entry_reply(made));
            }
            Operation::Unlink { name } => reply.outcome(remove(name, NodeKind::File)),
            Operation::RemoveDirectory { name } => reply.outcome(remove(name, NodeKind::Directory)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                reply.outcome(self.rename((id, name), (NodeId(new_parent), new_name), flags));
            }
            Operation::Open { .. } => reply.body(&OPENED.encode()),
            Operation::Create { name, .. } => {
                let made = create(name, NodeKind::File);
                reply.result(self.entry(made).map(|entry| created(&entry, &OPENED).to_vec()));
            }
            Operation::Read { offset, size, .. } => {
                let length = usize::try_from(size).expect("a request fits into memory");
                let read = self.tree.lock().read(id, offset, length);
                reply.result(read);
            }
            Operation::Write { offset, data, open_flags, .. } => {
                reply.result(self.write(id, offset, data, open_flags));
            }
            Operation::Sync { .. } | Operation::SyncDirectory => {
                let synced = self.tree.lock().sync(id);
                reply.outcome(synced);
            }
            Operation::OpenDirectory => reply.body(&OpenReply::new(0, OpenFlags::default()).encode()),
            Operation::ReadDirectory { offset, size, .. } => reply.result(self.list(id, offset, size)),
            Operation::Release { .. } | Operation::ReleaseDirectory { .. } => reply.ok(),
            Operation::StatFs => {
                let blocks = [BLOCKS_FREE; 3];
                let space = Space { blocks, files: [BLOCKS_FREE; 2], block_size: BLOCK_LENGTH, name_length_max: 255 };
                reply.body(&space.encode());
            }
            Operation::Allocate { offset, length, mode, .. } => {
                reply.outcome(self.allocate(id, offset.checked_add(length), mode));
            }
            // Flushing at close is among them: the kernel asks once and never again. A process that is killed while it has
            // files of its own mount open would wait for an answer of itself.
            _ => reply.error(Errno::ENOSYS),
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}
