//! One short method for each kind of request: what is asked of the families of operations, and how it is answered.
//!
//! What is true here:
//! * Every request is answered exactly once. Where the watcher answered it first, what the operation brought (a pinned
//!   inode, an open file) is taken back.
//! * Whoever may not wait is never held up by a tier: what might wait there comes back untouched, and is served again by
//!   somebody who may. Reads, writes and flushes are tried first, because the file system can say that they would wait
//!   (`Wait::Never`).
//! * Nothing else is decided here.

use std::time::Duration;

use polymux_fs::{SyncKind, Wait};
use polymux_transport::wire::{
    Attr, AttrReply, CopyWidth, EntryReply, Header, Listing, OpenFlags, OpenReply, Operation, Request, StatxReply,
    copied, created, seek_result, written, xattr_size,
};
use polymux_transport::{Patience, Reply, Service};
use polymux_types::{Errno, Ino};

use crate::adapter::{Adapter, Outcome, ino};
use crate::convert::{self, KEEP};
use crate::files::{OPENED, Place};
use crate::names::{ModeAndMask, NewName};
use crate::xattrs::Value;

impl Service for Adapter {
    fn serve(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
        use Operation as Op;
        let header = &request.header;
        let place = |handle, offset| Place { ino: ino(header), handle, offset };
        let wait = match patience {
            Patience::MayWait => Wait::Allowed,
            Patience::AtOnce if self.may_wait_for_a_tier(&request.operation) => return Some(reply),
            Patience::AtOnce => Wait::Never,
        };
        match request.operation {
            Op::Read { handle, offset, size } => return self.read(header, place(handle, offset), size, reply, wait),
            Op::Write { handle, offset, flags, data, .. } => {
                let work = || self.write_file(header, place(handle, offset), data, flags, wait);
                return self.answer_unless_it_waits(header, reply, wait, work, |reply, count| {
                    reply.body(&written(count));
                });
            }
            Op::Flush { handle } => {
                let work = || self.flush_file(header, handle, wait);
                return self.answer_unless_it_waits(header, reply, wait, work, |reply, ()| reply.ok());
            }
            Op::Lookup { name } => self.lookup(header, name, reply),
            Op::GetAttr => self.answer_attr(header, reply, || self.get_attributes(header)),
            Op::SetAttr { change } => self.answer_attr(header, reply, || self.set_attributes(header, &change)),
            Op::Open { flags } => self.open(header, flags, reply),
            Op::Release { handle } => self.release(header, handle, reply),
            Op::Unlink { name } => self.answer(header, reply, || self.remove_name(header, name)),
            Op::RemoveDirectory { name } => self.answer(header, reply, || self.remove_directory(header, name)),
            Op::Rename { name, new_parent, new_name, flags } => {
                self.answer(header, reply, || self.rename_name(header, name, (Ino(new_parent), new_name), flags));
            }
            Op::Link { node, name } => self.link(header, Ino(node), name, reply),
            Op::Allocate { handle, offset, length, mode } => {
                self.answer(header, reply, || self.allocate_range(header, place(handle, offset), length, mode));
            }
            Op::CopyRange { source, target_node, target: (handle, offset), length, width } => {
                let target = Place { ino: Ino(target_node), handle, offset };
                self.copy(header, place(source.0, source.1), target, (length, width), reply);
            }
            _ => self.serve_others(request, reply),
        }
        None
    }

    fn forget(&self, node: u64, count: u64) {
        self.forget_inode(Ino(node), count);
    }
}

impl Adapter {
    /// Whether an operation may have to wait for a tier or a flush, and cannot say so before it does. While sizes are
    /// guesses (after a crash), everything may.
    fn may_wait_for_a_tier(&self, operation: &Operation<'_>) -> bool {
        use Operation as Op;
        match operation {
            Op::Sync { .. } | Op::SyncDirectory | Op::SyncVolume | Op::StatFs => true,
            Op::Allocate { .. } | Op::CopyRange { .. } | Op::Seek { .. } | Op::Rename { .. } => true,
            Op::SetAttr { change } => change.size.is_some(),
            _ => !self.fs.may_keep_attributes(),
        }
    }

    fn serve_others(&self, request: &Request<'_>, reply: Reply) {
        use Operation as Op;
        let header = &request.header;
        match request.operation {
            Op::Statx { .. } => self.statx(header, reply),
            Op::ReadLink => answer_bytes(reply, self.read_link(header)),
            Op::Symlink { name, target } => {
                self.answer_entry(header, reply, || self.make_symlink(header, name, target));
            }
            Op::MakeNode { name, mode, device, umask } => {
                let new = NewName { name, mode: ModeAndMask { mode, umask } };
                self.answer_entry(header, reply, || self.make_node(header, new, device));
            }
            Op::MakeDirectory { name, mode, umask } => {
                let new = NewName { name, mode: ModeAndMask { mode, umask } };
                self.answer_entry(header, reply, || self.make_directory(header, new));
            }
            Op::Create { name, mode, umask, flags } => {
                let new = NewName { name, mode: ModeAndMask { mode, umask } };
                self.answer_created(header, reply, || self.create_file(header, new, flags));
            }
            Op::CreateUnnamed { mode, umask, flags } => {
                self.answer_created(header, reply, || self.create_unnamed(header, ModeAndMask { mode, umask }, flags));
            }
            Op::Sync { handle, data_only } => {
                let kind = if data_only { SyncKind::Data } else { SyncKind::All };
                self.answer(header, reply, || self.sync_file(header, handle, kind));
            }
            Op::Seek { handle, offset, whence } => self.answer_with(
                header,
                reply,
                || self.seek_file(header, handle, offset, whence),
                |reply, found| reply.body(&seek_result(found)),
            ),
            Op::OpenDirectory => match self.open_listing(header) {
                Ok(()) => reply.body(&OpenReply { handle: 0, flags: OpenFlags::default() }.encode()),
                Err(errno) => reply.error(errno),
            },
            Op::ReadDirectory { offset, size } => {
                let mut listing = Listing::new(size);
                match self.list_names(header, offset, &mut listing) {
                    Ok(()) => reply.body(listing.bytes()),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::ReadDirectoryPlus { offset, size } => self.read_directory_plus(header, offset, size, reply),
            Op::ReleaseDirectory => reply.ok(),
            Op::SyncDirectory => self.answer(header, reply, || self.sync_listing(header)),
            Op::StatFs => self.statfs(header, reply),
            Op::SyncVolume => self.answer(header, reply, || self.sync_volume(header)),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => {
                self.serve_xattrs(request, reply);
            }
            Op::Ioctl => reply.error(Errno::ENOTTY),
            // "Not implemented" makes the kernel do it by itself and not ask again: `access` is checked under
            // `default_permissions`, regular files are always ready, locks stay with the kernel.
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn serve_xattrs(&self, request: &Request<'_>, reply: Reply) {
        use Operation as Op;
        let header = &request.header;
        match request.operation {
            Op::SetXattr { name, value, flags, kills_set_group_id } => {
                self.answer(header, reply, || self.set_xattr(header, name, value, flags, kills_set_group_id));
            }
            Op::GetXattr { name, size } => {
                self.answer_with(header, reply, || self.get_xattr(header, name, size), answer_value);
            }
            Op::ListXattr { size } => {
                self.answer_with(header, reply, || self.list_xattrs(header, size), answer_value);
            }
            Op::RemoveXattr { name } => self.answer(header, reply, || self.remove_xattr(header, name)),
            _ => reply.error(Errno::ENOSYS),
        }
    }

    /// How long the kernel may keep attributes: no time while some may be a guess.
    fn keep(&self) -> Duration {
        if self.fs.may_keep_attributes() { KEEP } else { Duration::ZERO }
    }

    /// Carries an operation out, and answers or, where somebody else did so meanwhile, undoes it.
    fn answer_or_undo<T>(
        &self,
        header: &Header,
        reply: Reply,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
        undo: impl FnOnce(T),
    ) {
        let Some(debt) = self.requests.begin(header.node, reply) else { return };
        let outcome = work();
        match (debt.take(), outcome) {
            (Some(reply), Ok(value)) => answer(reply, value),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, Ok(value)) => undo(value),
            (None, Err(_)) => {}
        }
    }

    /// The same for what needs no undoing.
    fn answer_with<T>(
        &self,
        header: &Header,
        reply: Reply,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
    ) {
        self.answer_or_undo(header, reply, work, answer, drop);
    }

    /// The same for what can say that it would wait; then nothing was done, and the reply comes back.
    fn answer_unless_it_waits<T>(
        &self,
        header: &Header,
        reply: Reply,
        wait: Wait,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
    ) -> Option<Reply> {
        let debt = self.requests.begin(header.node, reply)?;
        let outcome = work();
        match (debt.take()?, outcome) {
            (reply, Err(Errno::EAGAIN)) if wait == Wait::Never => return Some(reply),
            (reply, Ok(value)) => answer(reply, value),
            (reply, Err(errno)) => reply.error(errno),
        }
        None
    }

    fn answer(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<()>) {
        self.answer_with(header, reply, work, |reply, ()| reply.ok());
    }

    fn answer_attr(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<Attr>) {
        self.answer_with(header, reply, work, |reply, attr| {
            reply.body(&AttrReply { keep_attr: self.keep(), attr }.encode());
        });
    }

    fn entry_reply(&self, attr: Attr) -> EntryReply {
        EntryReply { generation: convert::generation_of(attr.ino), keep_name: KEEP, keep_attr: self.keep(), attr }
    }

    /// Answers with an entry, which pins its inode.
    fn answer_entry(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<Attr>) {
        let answer = |reply: Reply, attr| reply.body(&self.entry_reply(attr).encode());
        self.answer_or_undo(header, reply, work, answer, |attr| self.forget_inode(Ino(attr.ino), 1));
    }

    /// Answers with an entry that is open, too.
    fn answer_created(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<(Attr, u64)>) {
        let answer = |reply: Reply, (attr, handle)| {
            reply.body(&created(&self.entry_reply(attr), &OpenReply { handle, flags: OPENED }));
        };
        self.answer_or_undo(header, reply, work, answer, |(attr, handle)| {
            let _ = self.release_file(Ino(attr.ino), handle);
            self.forget_inode(Ino(attr.ino), 1);
        });
    }

    fn lookup(&self, header: &Header, name: &[u8], reply: Reply) {
        let answer = |reply: Reply, found: Option<Attr>| {
            // Inode 0 tells the kernel to remember that there is no such name.
            let missing = EntryReply { keep_name: KEEP, keep_attr: self.keep(), ..EntryReply::default() };
            reply.body(&found.map_or(missing, |attr| self.entry_reply(attr)).encode());
        };
        let undo = |found: Option<Attr>| {
            if let Some(attr) = found {
                self.forget_inode(Ino(attr.ino), 1);
            }
        };
        self.answer_or_undo(header, reply, || self.lookup_name(header, name), answer, undo);
    }

    fn statx(&self, header: &Header, reply: Reply) {
        let answer = |reply: Reply, attr| reply.body(&StatxReply { keep_attr: self.keep(), attr }.encode());
        self.answer_with(header, reply, || self.get_attributes(header), answer);
    }

    /// The request is about the directory of the new name; what it waits for is the file.
    fn link(&self, header: &Header, node: Ino, name: &[u8], reply: Reply) {
        let of_file = Header { node: node.get(), ..*header };
        self.answer_entry(&of_file, reply, || self.make_link(header, node, name));
    }

    fn open(&self, header: &Header, flags: i32, reply: Reply) {
        let answer = |reply: Reply, handle| reply.body(&OpenReply { handle, flags: OPENED }.encode());
        // Nobody knows the handle.
        let undo = |handle| {
            let _ = self.release_file(ino(header), handle);
        };
        self.answer_or_undo(header, reply, || self.open_file(header, flags), answer, undo);
    }

    fn read(&self, header: &Header, place: Place, size: u32, reply: Reply, wait: Wait) -> Option<Reply> {
        let debt = self.requests.begin(header.node, reply)?;
        self.read_file(header, place, size, wait, |outcome| {
            match (debt.take()?, outcome) {
                (reply, Err(Errno::EAGAIN)) if wait == Wait::Never => return Some(reply),
                (reply, Ok(bytes)) => reply.body(bytes),
                (reply, Err(errno)) => reply.error(errno),
            }
            None
        })
    }

    /// Carried out in any case: nobody asks again.
    fn release(&self, header: &Header, handle: u64, reply: Reply) {
        let debt = self.requests.begin_always(header.node, reply);
        let outcome = self.release_file(ino(header), handle);
        if let Some(reply) = debt.take() {
            reply.outcome(outcome);
        }
    }

    fn copy(&self, header: &Header, source: Place, target: Place, (length, width): (u64, CopyWidth), reply: Reply) {
        let of_target = Header { node: target.ino.get(), ..*header };
        let answer = |reply: Reply, count| match width {
            CopyWidth::Short => reply.body(&written(count)),
            CopyWidth::Long => reply.body(&copied(u64::from(count))),
        };
        self.answer_with(&of_target, reply, || self.copy_range(header, source, target, length), answer);
    }

    fn read_directory_plus(&self, header: &Header, offset: u64, size: u32, reply: Reply) {
        let mut listing = Listing::new(size);
        let list = || {
            let entry = |attr| self.entry_reply(attr);
            let pinned = self.list_entries(header, offset, &mut listing, entry)?;
            Ok((listing, pinned))
        };
        let answer = |reply: Reply, (listing, _): (Listing, Vec<Ino>)| reply.body(listing.bytes());
        self.answer_or_undo(header, reply, list, answer, |(_, pinned)| {
            pinned.into_iter().for_each(|ino| self.forget_inode(ino, 1));
        });
    }

    /// About the volume, not about the inode that was named.
    fn statfs(&self, header: &Header, reply: Reply) {
        let of_volume = Header { node: 0, ..*header };
        let work = || self.run("statfs", ino(header), |fs| fs.space());
        self.answer_with(&of_volume, reply, work, |reply, space| reply.body(&convert::space(&space).encode()));
    }
}

fn answer_bytes(reply: Reply, outcome: Outcome<Vec<u8>>) {
    match outcome {
        Ok(bytes) => reply.body(&bytes),
        Err(errno) => reply.error(errno),
    }
}

fn answer_value(reply: Reply, value: Value) {
    match value {
        Value::Size(size) => reply.body(&xattr_size(size)),
        Value::Bytes(bytes) => reply.body(&bytes),
    }
}
