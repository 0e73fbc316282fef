//! Operations on data, attributes and the volume as a whole: the second half of the harness.

use polymux_fs::{Caller, FileKind, SeekTarget, SetAttributes, SetTime, SyncKind, WriteOrigin};
use polymux_types::{Errno, Ino, Timestamp};

use super::harness::{Check, Harness, agree, filled, must, options_of, same};
use super::operation::{Index, OpenMode, Operation, xattr_name};
use super::reference::{Node, to_usize};

impl Harness {
    pub(super) fn apply_to_data(&mut self, operation: &Operation) -> Check {
        match *operation {
            Operation::Open { file, mode } => self.open(file, mode),
            Operation::Truncate { file, size } => self.truncate(file, size),
            Operation::CopyRange { source, target, length } => self.copy_range(source, target, length),
            Operation::Close { handle } => self.handle(handle).map_or(Ok(()), |(index, _)| self.close(index)),
            Operation::Write { handle, offset, length, fill } => self.write(handle, offset, &filled(length, fill)),
            Operation::Read { handle, offset, length } => self.read(handle, offset, length),
            Operation::TruncateHandle { handle, size } => self.truncate_handle(handle, size),
            Operation::Seek { handle, offset } => self.seek(handle, offset),
            Operation::Sync { handle } => {
                let Some((_, handle)) = self.handle(handle) else { return Ok(()) };
                must("sync", self.volume.fs().sync(&Caller::root(), handle, SyncKind::All))
            }
            Operation::Allocate { handle, offset, length, kind } => {
                let Some((index, handle)) = self.handle(handle) else { return Ok(()) };
                if length == 0 && !self.reference.descriptions[index].write {
                    // Which of the two errors comes first is decided above this interface.
                    return Ok(());
                }
                let found = self.volume.fs().allocate(&Caller::root(), handle, offset, length, kind);
                agree(self.reference.allocate(index, offset, length, kind), found)?;
                self.compare_node(self.reference.descriptions[index].node)
            }
            _ => unreachable!("{operation:?} is applied elsewhere"),
        }
    }

    fn open(&mut self, file: Index, mode: OpenMode) -> Check {
        let Some((node, ino)) = self.node_where(file, |kind| kind == FileKind::Regular) else { return Ok(()) };
        if self.handles.len() == super::harness::DESCRIPTIONS_MAX {
            self.close(0)?;
        }
        let handle = must("open", self.volume.fs().open(&Caller::root(), ino, options_of(mode)))?;
        self.opened(node, mode, handle);
        self.compare_node(node)
    }

    pub(super) fn close(&mut self, index: usize) -> Check {
        let handle = self.handles.remove(index);
        self.reference.close(index);
        must("flush", self.volume.fs().flush(&Caller::root(), handle))?;
        must("release", self.volume.fs().release(handle))
    }

    fn write(&mut self, handle: Index, offset: u64, data: &[u8]) -> Check {
        let Some((index, handle)) = self.handle(handle) else { return Ok(()) };
        let found = self.volume.fs().write(&Caller::root(), handle, offset, data, WriteOrigin::Call);
        if let Some(((), written)) = agree(self.reference.write(index, offset, data), found)? {
            same("bytes written", &data.len(), &written)?;
        }
        let node = self.reference.descriptions[index].node;
        self.compare_node(node)
    }

    fn read(&mut self, handle: Index, offset: u64, length: u64) -> Check {
        let Some((index, handle)) = self.handle(handle) else { return Ok(()) };
        let mut buffer = vec![0xa5; to_usize(length)];
        let found = self.volume.fs().read(&Caller::root(), handle, offset, &mut buffer);
        match agree(self.reference.read(index, offset, length), found)? {
            Some((expected, count)) => same_bytes(offset, expected, &buffer[..count]),
            None => Ok(()),
        }
    }

    fn truncate(&mut self, file: Index, size: u64) -> Check {
        let Some((node, ino)) = self.node_where(file, |_| true) else { return Ok(()) };
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let found = self.volume.fs().set_attributes(&Caller::root(), ino, &change);
        agree(self.reference.truncate(node, size), found)?;
        self.compare_node(node)
    }

    fn truncate_handle(&mut self, handle: Index, size: u64) -> Check {
        let Some((index, handle)) = self.handle(handle) else { return Ok(()) };
        let description = self.reference.descriptions[index].clone();
        if !description.write {
            return Ok(());
        }
        let change = SetAttributes { size: Some(size), handle: Some(handle), ..SetAttributes::default() };
        let found = self.volume.fs().set_attributes(&Caller::root(), self.inos[&description.node], &change);
        agree(self.reference.truncate(description.node, size), found)?;
        self.compare_node(description.node)
    }

    /// Where data and holes are is the file system's choice; that they cover the file and that holes are zero is not.
    fn seek(&mut self, handle: Index, offset: u64) -> Check {
        let Some((index, handle)) = self.handle(handle) else { return Ok(()) };
        let content = self.reference.file(self.reference.descriptions[index].node).content.clone();
        let size = content.len() as u64;
        let root = Caller::root();
        let data = self.volume.fs().seek(&root, handle, offset, SeekTarget::Data);
        let hole = self.volume.fs().seek(&root, handle, offset, SeekTarget::Hole);
        if offset >= size {
            agree::<(), _>(Err(Errno::ENXIO), data)?;
            return agree::<(), _>(Err(Errno::ENXIO), hole).map(|_| ());
        }
        let data = match data {
            Ok(data) => data,
            Err(error) if error.errno() == Errno::ENXIO => size,
            Err(error) => return Err(format!("SEEK_DATA failed: {error}")),
        };
        let hole = must("SEEK_HOLE", hole)?;
        if data < offset || data > size || hole < offset || hole > size {
            return Err(format!("data at {data}, hole at {hole}, searched from {offset} in {size} bytes"));
        }
        if content[to_usize(offset)..to_usize(data)].iter().any(|byte| *byte != 0) {
            return Err(format!("{offset}..{data} is called a hole and is not zero"));
        }
        same("one of data and hole begins at the offset", &true, &(data == offset || hole == offset))?;
        same("data and hole begin at different places", &true, &(data != hole || data == size))
    }

    fn copy_range(&mut self, source: (Index, u64), target: (Index, u64), length: u64) -> Check {
        let (Some(from), Some(to)) = (self.handle(source.0), self.handle(target.0)) else { return Ok(()) };
        if self.reference.descriptions[to.0].append || length == 0 {
            return Ok(());
        }
        let found = self.volume.fs().copy_range(&Caller::root(), from.1, source.1, to.1, target.1, length);
        let expected = self.reference.copy_limit((from.0, source.1), (to.0, target.1), length);
        let Some((limit, count)) = agree(expected, found)? else { return Ok(()) };
        if count > limit || (count == 0 && limit > 0) {
            return Err(format!("copied {count} of at most {limit} bytes"));
        }
        self.reference.copy((from.0, source.1), (to.0, target.1), count);
        self.compare_node(self.reference.descriptions[to.0].node)
    }

    pub(super) fn apply_to_attributes(&mut self, operation: &Operation) -> Check {
        let carries_xattrs = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
        let root = Caller::root();
        match *operation {
            Operation::ChangeMode { node, permissions } => {
                let change = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
                let node = self.node_where(node, |kind| kind != FileKind::Symlink);
                self.change(node, &change, |file| file.permissions = permissions)
            }
            Operation::ChangeOwner { node, uid, gid } => {
                let change = SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() };
                let node = self.node_where(node, |_| true);
                self.change(node, &change, |file| (file.uid, file.gid) = (uid, gid))
            }
            Operation::ChangeTimes { node, seconds, nanoseconds } => {
                let time = Timestamp::new(seconds, nanoseconds);
                let change = SetAttributes { modified: Some(SetTime::To(time)), ..SetAttributes::default() };
                let node = self.node_where(node, |_| true);
                self.change(node, &change, |file| file.modified = Some(time))
            }
            Operation::SetXattr { node, name, length, mode } => {
                let Some((node, ino)) = self.node_where(node, carries_xattrs) else { return Ok(()) };
                let value = filled(u64::from(length), name);
                let found = self.volume.fs().set_xattr(&root, ino, &xattr_name(name), &value, mode);
                agree(self.reference.set_xattr(node, &xattr_name(name), &value, mode), found).map(|_| ())
            }
            Operation::GetXattr { node, name } => {
                let Some((node, ino)) = self.node_where(node, carries_xattrs) else { return Ok(()) };
                let expected = self.reference.file(node).xattrs.get(&xattr_name(name)).ok_or(Errno::ENODATA);
                match agree(expected, self.volume.fs().xattr(&root, ino, &xattr_name(name)))? {
                    Some((expected, found)) => same("value", expected, &found),
                    None => Ok(()),
                }
            }
            Operation::RemoveXattr { node, name } => {
                let Some((node, ino)) = self.node_where(node, carries_xattrs) else { return Ok(()) };
                let found = self.volume.fs().remove_xattr(&root, ino, &xattr_name(name));
                agree(self.reference.remove_xattr(node, &xattr_name(name)), found).map(|_| ())
            }
            Operation::ListXattrs { node } => {
                let Some((node, ino)) = self.node_where(node, carries_xattrs) else { return Ok(()) };
                self.compare_xattrs(node, ino)
            }
            _ => unreachable!("{operation:?} is applied elsewhere"),
        }
    }

    fn change(
        &mut self,
        node: Option<(Node, Ino)>,
        change: &SetAttributes,
        apply: impl FnOnce(&mut super::reference::File),
    ) -> Check {
        let Some((node, ino)) = node else { return Ok(()) };
        let attributes = must("set_attributes", self.volume.fs().set_attributes(&Caller::root(), ino, change))?;
        apply(self.reference.file_mut(node));
        self.compare_attributes(node, &attributes)
    }

    pub(super) fn apply_to_volume(&mut self, operation: &Operation) -> Check {
        match *operation {
            Operation::SyncVolume => must("sync_volume", self.volume.fs().sync_volume()),
            Operation::SyncDirectory { directory } => {
                let (_, ino) = self.directory(directory);
                must("sync_directory", self.volume.fs().sync_directory(&Caller::root(), ino))
            }
            Operation::Step => {
                self.volume.step();
                Ok(())
            }
            Operation::Remount => {
                self.forget_handles();
                self.volume.remount();
                self.compare_trees()
            }
            Operation::SyncAndCrash => {
                must("sync_volume", self.volume.fs().sync_volume())?;
                self.forget_handles();
                self.volume.crash();
                self.compare_trees()
            }
            Operation::ProcessDeath => {
                self.forget_handles();
                self.volume.kill_daemon();
                self.compare_trees()
            }
            _ => unreachable!("{operation:?} is applied elsewhere"),
        }
    }

    fn forget_handles(&mut self) {
        self.handles.clear();
        self.reference.close_all();
    }
}

/// Says where two runs of bytes differ.
pub(super) fn same_bytes(offset: u64, expected: &[u8], found: &[u8]) -> Check {
    same("length of what was read", &expected.len(), &found.len())?;
    match expected.iter().zip(found).position(|(expected, found)| expected != found) {
        None => Ok(()),
        Some(index) => {
            Err(format!("byte {} should be {:#04x}, is {:#04x}", offset + index as u64, expected[index], found[index]))
        }
    }
}
