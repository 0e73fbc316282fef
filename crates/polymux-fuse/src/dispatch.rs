//! One short method for each kind of request: which operation it calls, and how it is answered.
//!
//! Invariants:
//! * Every request is answered exactly once. Where the watcher answered it first, the result of the operation (a pinned
//!   inode, an open file) is taken back.
//! * A thread that may not wait is never held up by a tier: a request that might wait there comes back untouched, and is served
//!   again by a thread that may. Reads, writes, flushes and releases are tried first, because the file system can say that they
//!   would wait (`Wait::Never`).
//! * Nothing else is decided here.

use std::time::Duration;

use polymux_fs::{HandleId, SyncKind, Wait};
use polymux_transport::wire::{
    Attr, AttrReply, CopyWidth, EntryReply, Header, Listing, OpenReply, OpenRequestFlags, Operation, Request,
    StatxReply, commanded, copied, created, seek_result, written, xattr_size,
};
use polymux_transport::{Patience, Reply, Service};
use polymux_types::{Errno, Ino};

use crate::adapter::{Adapter, Outcome, ino};
use crate::convert::{self, KEEP, KEEP_MISSING, KEEP_RIGHTS};
use crate::files::{Place, Wanted};
use crate::names::{ModeAndMask, NewName};
use crate::options::ExtendedAttributes;
use crate::set_id;
use crate::unversioned::gives_rights;
use crate::write_back::WriteBack;
use crate::xattrs::Value;

impl Service for Adapter {
    fn serve(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
        use Operation as Op;
        self.note_use();
        let header = &request.header;
        let place = |handle, offset| Place { ino: ino(header), handle, offset };
        let wait = match patience {
            Patience::MayWait => Wait::Allowed,
            Patience::AtOnce if self.may_wait_for_a_tier(&request.operation) => return Some(reply),
            Patience::AtOnce => Wait::Never,
        };
        match request.operation {
            Op::Lookup { name } => return self.lookup(header, name, reply, wait),
            Op::GetAttr { handle } => {
                let reply = self.admit_write_later(header, handle, reply)?;
                let work = || self.get_attributes(header, wait);
                return self.answer_unless_it_waits(header, reply, wait, work, |reply, attr| self.attr(reply, attr));
            }
            Op::Statx { .. } => return self.statx(header, reply, wait),
            Op::SetAttr { change } => {
                let work =
                    || self.set_attributes(header, &change, wait).and_then(|attr| self.settled(header, attr, wait));
                return self.answer_unless_it_waits(header, reply, wait, work, |reply, attr| {
                    reply.body(&AttrReply { keep_attr: self.keep_attr_of_change(&attr), attr }.encode());
                });
            }
            Op::Open { flags, further } => return self.open(header, flags, further, reply, wait),
            Op::Read { handle, offset, size, pages } => {
                return self.read(header, place(handle, offset), Wanted { size, pages }, reply, wait);
            }
            Op::Write { handle, offset, flags, open_flags, data } => {
                let work = || self.write_file(header, place(handle, offset), data, flags, open_flags, wait);
                return self.answer_unless_it_waits(header, reply, wait, work, |reply, count| {
                    reply.body(&written(count));
                });
            }
            Op::Flush { handle } => {
                let work = || self.flush_file(header, handle, wait);
                return self.answer_unless_it_waits(header, reply, wait, work, |reply, ()| self.flushed(reply));
            }
            Op::Release { handle } => return self.release(header, handle, reply, wait),
            Op::Unlink { name } => self.answer_change(header, &[ino(header)], reply, || self.remove_name(header, name)),
            Op::RemoveDirectory { name } => {
                self.answer_change(header, &[ino(header)], reply, || self.remove_directory(header, name));
            }
            Op::Rename { name, new_parent, new_name, flags } => {
                let reply = self.replace_later(header, name, Ino(new_parent), new_name, flags, reply)?;
                self.answer_change(header, &[ino(header), Ino(new_parent)], reply, || {
                    self.rename_name(header, name, Ino(new_parent), new_name, flags)
                });
            }
            Op::Link { node, name } => self.link(header, Ino(node), name, reply),
            Op::Allocate { handle, offset, length, mode } => {
                self.answer(header, reply, || self.allocate_range(header, place(handle, offset), length, mode));
            }
            Op::CopyRange { source, target_node, target: (handle, offset), length, width } => {
                let target = Place { ino: Ino(target_node), handle, offset };
                self.copy(header, place(source.0, source.1), target, length, width, reply);
            }
            _ => self.serve_others(request, reply),
        }
        None
    }

    fn forget(&self, node: u64, count: u64) {
        self.note_use();
        self.forget_inode(Ino(node), count);
    }
}

impl Adapter {
    /// Whether an operation may have to wait for a tier or a flush, and cannot say so before it does. Among these are writes to
    /// a tier: of a frozen XFS it was seen that it holds up even those that ask not to be (`RWF_NOWAIT`).
    fn may_wait_for_a_tier(&self, operation: &Operation<'_>) -> bool {
        use Operation as Op;
        match operation {
            Op::Sync { .. } | Op::SyncDirectory | Op::SyncVolume | Op::StatFs | Op::ReadDirectoryPlus { .. } => true,
            Op::Allocate { .. } | Op::CopyRange { .. } | Op::Seek { .. } | Op::Rename { .. } | Op::Link { .. } => true,
            Op::SetAttr { change } => change.size.is_some() || set_id::is_empty(change),
            // How a description does its I/O is decided with a look at the object.
            Op::Open { .. } => true,
            Op::Write { handle, .. } => !self.fs.is_inline(HandleId(*handle)).unwrap_or(false),
            _ => !self.fs.may_keep_attributes(),
        }
    }

    /// Answers a FLUSH. A kernel that collects writes sends the bytes and the times of a file at each close in any case, and the work that is left
    /// to do then is done with these and at the release, so it need not send a message of its own; it never does again after `ENOSYS`.
    fn flushed(&self, reply: Reply) {
        match self.write_back {
            WriteBack::On => reply.error(Errno::ENOSYS),
            WriteBack::Off => reply.ok(),
        }
    }

    fn serve_others(&self, request: &Request<'_>, reply: Reply) {
        use Operation as Op;
        let header = &request.header;
        match request.operation {
            Op::ReadLink => reply.result(self.read_link(header)),
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
            // Not implemented: the kernel opens and closes directories by itself from then on, and keeps their listings.
            Op::OpenDirectory => reply.error(Errno::ENOSYS),
            Op::ReadDirectory { offset, size, .. } => {
                let mut listing = Listing::new(size);
                let listed = self.list_names(header, offset, &mut listing);
                reply.result(listed.map(|()| listing.bytes()));
            }
            Op::ReadDirectoryPlus { offset, size, .. } => {
                self.read_directory_plus(header, offset, size, reply);
            }
            // Of a directory that was opened with an earlier daemon, which answered that.
            Op::ReleaseDirectory { .. } => reply.ok(),
            Op::SyncDirectory => self.answer(header, reply, || self.sync_listing(header)),
            Op::StatFs => self.statfs(header, reply),
            Op::SyncVolume => self.answer(header, reply, || self.sync_volume(header)),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => {
                self.serve_xattrs(request, reply);
            }
            Op::Ioctl { handle, command, data, answer_length } => {
                let work = || match command {
                    polymux_lease::command::NUMBER => self.lease_ticket(header, handle, data, answer_length),
                    _ => self.command(header, command, data, answer_length),
                };
                self.answer_with(header, reply, work, |reply, answer| reply.body(&commanded(&answer)));
            }
            // "Not implemented" makes the kernel do it by itself and not ask again: `access` is checked under
            // `default_permissions`, regular files are always ready, locks stay with the kernel.
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn serve_xattrs(&self, request: &Request<'_>, reply: Reply) {
        use Operation as Op;
        let header = &request.header;
        if self.extended_attributes == ExtendedAttributes::Refused {
            // The kernel does not ask again.
            return reply.error(Errno::ENOSYS);
        }
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

    /// How long the kernel may keep attributes: no time while some may be a guess, while it changes the object itself, or while it has to ask
    /// before it collects a write.
    fn keep_attr(&self, attr: &Attr) -> Duration {
        let may_change =
            !self.fs.may_keep_attributes() || self.room.is_short() || self.fs.is_changed_directly(Ino(attr.ino));
        match (may_change, gives_rights(attr)) {
            (true, _) => Duration::ZERO,
            (false, true) => KEEP_RIGHTS,
            (false, false) => KEEP,
        }
    }

    /// How long the kernel may keep attributes that it installs although it may have learned since that they are outdated (`unversioned`).
    fn keep_attr_of_change(&self, attr: &Attr) -> Duration {
        if gives_rights(attr) { Duration::ZERO } else { self.keep_attr(attr) }
    }

    /// Carries an operation out, and answers or, where another thread answered meanwhile, undoes it. Where the caller may not wait
    /// and the operation says that it would, nothing was done, and the reply comes back.
    fn answer_or_undo<T>(
        &self,
        header: &Header,
        reply: Reply,
        wait: Wait,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
        undo: impl FnOnce(T),
    ) -> Option<Reply> {
        let debt = self.requests.begin(header.node, reply)?;
        let outcome = work();
        match (debt.take(), outcome) {
            (Some(reply), Err(Errno::EAGAIN)) if wait == Wait::Never => return Some(reply),
            (Some(reply), Ok(value)) => answer(reply, value),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, Ok(value)) => undo(value),
            (None, Err(_)) => {}
        }
        None
    }

    /// As [`Self::answer_or_undo`], for an operation that needs no undo.
    fn answer_unless_it_waits<T>(
        &self,
        header: &Header,
        reply: Reply,
        wait: Wait,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
    ) -> Option<Reply> {
        self.answer_or_undo(header, reply, wait, work, answer, drop)
    }

    /// As [`Self::answer_unless_it_waits`], for an operation that never returns `WouldBlock`.
    fn answer_with<T>(
        &self,
        header: &Header,
        reply: Reply,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
    ) {
        self.answer_with_undo(header, reply, work, answer, drop);
    }

    /// As [`Self::answer_with`]; `undo` runs if another thread has answered the request.
    fn answer_with_undo<T>(
        &self,
        header: &Header,
        reply: Reply,
        work: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
        undo: impl FnOnce(T),
    ) {
        let left = self.answer_or_undo(header, reply, Wait::Allowed, work, answer, undo);
        assert!(left.is_none(), "a request that may wait is answered");
    }

    pub(crate) fn answer(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<()>) {
        self.answer_with(header, reply, work, |reply, ()| reply.ok());
    }

    pub(crate) fn attr(&self, reply: Reply, attr: Attr) {
        reply.body(&AttrReply { keep_attr: self.keep_attr(&attr), attr }.encode());
    }

    fn entry_reply(&self, attr: Attr) -> EntryReply {
        EntryReply {
            generation: convert::generation_of(attr.ino),
            keep_name: KEEP,
            keep_attr: self.keep_attr(&attr),
            attr,
        }
    }

    /// Answers a change of names in these directories, which makes nothing that an answer would describe.
    pub(crate) fn answer_change(
        &self,
        header: &Header,
        directories: &[Ino],
        reply: Reply,
        change: impl FnOnce() -> Outcome<()>,
    ) {
        self.answer_change_with_undo(header, directories, reply, change, |reply, ()| reply.ok(), drop);
    }

    /// As [`Self::answer_with_undo`], for a change of names in these directories. The kernel knows of one that is answered with success. One that fails
    /// may have been made all the same, and the kernel takes it for one that was not, as one that another thread answered. It finds its copies of the
    /// names outdated by the modification time, for which it asks when the directories are opened.
    fn answer_change_with_undo<T>(
        &self,
        header: &Header,
        directories: &[Ino],
        reply: Reply,
        change: impl FnOnce() -> Outcome<T>,
        answer: impl FnOnce(Reply, T),
        undo: impl FnOnce(T),
    ) {
        let change = || {
            change().inspect_err(|errno| {
                // These are found before anything is changed, and are common.
                if !matches!(*errno, Errno::EEXIST | Errno::ENOENT | Errno::ENOTEMPTY | Errno::EACCES) {
                    self.outdate(directories);
                }
            })
        };
        let undo = |made| {
            self.outdate(directories);
            undo(made);
        };
        self.answer_with_undo(header, reply, change, answer, undo);
    }

    fn outdate(&self, directories: &[Ino]) {
        for directory in directories {
            // One that is gone has no listing.
            let _gone = self.fs.end_edition(*directory);
            self.device.expire_attributes(directory.get());
        }
    }

    /// Answers with the entry of a new name, which pins its inode.
    fn answer_entry(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<Attr>) {
        let answer = |reply: Reply, attr| reply.body(&self.entry_reply(attr).encode());
        let undo = |attr: Attr| self.forget_inode(Ino(attr.ino), 1);
        self.answer_change_with_undo(header, &[ino(header)], reply, work, answer, undo);
    }

    /// Answers with an entry that is open, too.
    fn answer_created(&self, header: &Header, reply: Reply, work: impl FnOnce() -> Outcome<(Attr, OpenReply)>) {
        let answer = |reply: Reply, (attr, open)| reply.body(&created(&self.entry_reply(attr), &open));
        let undo = |(attr, open): (Attr, OpenReply)| {
            self.take_file_back(open.handle);
            self.forget_inode(Ino(attr.ino), 1);
        };
        self.answer_change_with_undo(header, &[ino(header)], reply, work, answer, undo);
    }

    fn lookup(&self, header: &Header, name: &[u8], reply: Reply, wait: Wait) -> Option<Reply> {
        let answer = |reply: Reply, found: Option<Attr>| {
            // Inode 0 tells the kernel to remember that there is no such name.
            let missing = EntryReply { keep_name: KEEP_MISSING, ..EntryReply::default() };
            reply.body(&found.map_or(missing, |attr| self.entry_reply(attr)).encode());
        };
        let undo = |found: Option<Attr>| {
            if let Some(attr) = found {
                self.forget_inode(Ino(attr.ino), 1);
            }
        };
        self.answer_or_undo(header, reply, wait, || self.lookup_name(header, name, wait), answer, undo)
    }

    fn statx(&self, header: &Header, reply: Reply, wait: Wait) -> Option<Reply> {
        let answer =
            |reply: Reply, attr: Attr| reply.body(&StatxReply { keep_attr: self.keep_attr(&attr), attr }.encode());
        self.answer_unless_it_waits(header, reply, wait, || self.get_attributes(header, wait), answer)
    }

    /// The request is about the directory of the new name; it waits for the file.
    fn link(&self, header: &Header, node: Ino, name: &[u8], reply: Reply) {
        let of_file = Header { node: node.get(), ..*header };
        let make = || {
            let attr = self.make_link(header, node, name)?;
            self.settled(&of_file, attr, Wait::Allowed).inspect_err(|_| self.forget_inode(node, 1))
        };
        let answer = |reply: Reply, attr: Attr| {
            let keep_attr = self.keep_attr_of_change(&attr);
            reply.body(&EntryReply { keep_attr, ..self.entry_reply(attr) }.encode());
        };
        let undo = |attr: Attr| self.forget_inode(Ino(attr.ino), 1);
        self.answer_change_with_undo(&of_file, &[ino(header)], reply, make, answer, undo);
    }

    fn open(&self, header: &Header, flags: i32, further: OpenRequestFlags, reply: Reply, wait: Wait) -> Option<Reply> {
        let answer = |reply: Reply, open: OpenReply| reply.body(&open.encode());
        // The kernel does not know the handle. Undone in any case, also where that waits: the thread hung already.
        let undo = |open: OpenReply| {
            self.take_file_back(open.handle);
        };
        self.answer_or_undo(header, reply, wait, || self.open_file(header, flags, further, wait), answer, undo)
    }

    fn read(&self, header: &Header, place: Place, wanted: Wanted, reply: Reply, wait: Wait) -> Option<Reply> {
        let debt = self.requests.begin(header.node, reply)?;
        self.read_file(header, place, wanted, wait, |outcome| {
            match (debt.take()?, outcome) {
                (reply, Err(Errno::EAGAIN)) if wait == Wait::Never => return Some(reply),
                (reply, Ok(bytes)) => reply.body(bytes),
                (reply, Err(errno)) => reply.error(errno),
            }
            None
        })
    }

    /// Carried out in any case, here or by a thread that may wait: the kernel does not ask again.
    fn release(&self, header: &Header, handle: u64, reply: Reply, wait: Wait) -> Option<Reply> {
        let debt = self.requests.begin_always(header.node, reply);
        let outcome = self.release_file(ino(header), handle, wait);
        match (debt.take()?, outcome) {
            (reply, Err(Errno::EAGAIN)) if wait == Wait::Never => return Some(reply),
            (reply, outcome) => reply.outcome(outcome),
        }
        None
    }

    fn copy(&self, header: &Header, source: Place, target: Place, length: u64, width: CopyWidth, reply: Reply) {
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
        let undo = |(_, pinned): (Listing, Vec<Ino>)| pinned.into_iter().for_each(|ino| self.forget_inode(ino, 1));
        self.answer_with_undo(header, reply, list, answer, undo);
    }

    /// About the volume, not about the inode that was named.
    fn statfs(&self, header: &Header, reply: Reply) {
        let of_volume = Header { node: 0, ..*header };
        let work = || self.run("statfs", ino(header), |fs| fs.space());
        self.answer_with(&of_volume, reply, work, |reply, space| reply.body(&convert::space(&space).encode()));
    }
}

fn answer_value(reply: Reply, value: Value) {
    match value {
        Value::Size(size) => reply.body(&xattr_size(size)),
        Value::Bytes(bytes) => reply.body(&bytes),
    }
}
