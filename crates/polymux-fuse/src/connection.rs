//! The protocol's side of the adapter: what is agreed with the kernel, and one short method per kind of request.
//!
//! Every request is answered exactly once. Nothing here decides anything: the families of operations do.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use polymux_fs::SyncKind;
use polymux_types::limits::{ATOMIC_WRITE_SIZE_MAX, BLOCK_SIZE, NAME_LENGTH_MAX};

use crate::adapter::Adapter;
use crate::convert::{self, KEEP};
use crate::files::{OPENED, Place};
use crate::names::{Change, ModeAndMask, Reply};
use crate::requests::Debt;
use crate::xattrs::Value;

/// What is asked of the kernel where it offers it. Left out on purpose: `WRITEBACK_CACHE` (it would forbid passthrough
/// and hide the order of writes), `ATOMIC_O_TRUNC`, `POSIX_LOCKS` and `FLOCK_LOCKS` (the kernel keeps locks),
/// `HANDLE_KILLPRIV` (its second form is better, see `set_id`), `AUTO_INVAL_DATA` (contents never change
/// behind the kernel), `SETXATTR_EXT` (fuser 0.18 does not know its longer request).
const CAPABILITIES: [InitFlags; 12] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// Requests that the kernel may send ahead (read-ahead, write-back) before it waits for answers.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

thread_local! {
    static WITHIN_REQUEST: Cell<bool> = const { Cell::new(false) };
}

/// Says that a panic on this thread is caught by the adapter.
pub(crate) struct RequestGuard;

impl RequestGuard {
    pub(crate) fn enter() -> Self {
        WITHIN_REQUEST.set(true);
        Self
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        WITHIN_REQUEST.set(false);
    }
}

/// Names of fuser's threads begin like this.
const TRANSPORT_THREAD: &str = "fuser-";

/// Makes a panic of the transport itself end the process. fuser 0.18 would lose the thread and never answer its
/// request, so that the program waits for ever and the mount hangs once all threads are gone; a process that ends
/// makes every request fail at once, and the next mount recovers.
pub(crate) fn end_process_when_transport_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            earlier(panic);
            let thread = std::thread::current();
            let is_transport = thread.name().is_some_and(|name| name.starts_with(TRANSPORT_THREAD));
            if is_transport && !WITHIN_REQUEST.get() {
                log::error!("the FUSE transport failed ({panic}); ending the process so that the mount does not hang");
                std::process::abort();
            }
        }));
    });
}

fn answer(debt: Debt<'_, ReplyEmpty>, outcome: Reply<()>) {
    match (debt.take(), outcome) {
        (Some(reply), Ok(())) => reply.ok(),
        (Some(reply), Err(errno)) => reply.error(errno),
        (None, _) => {}
    }
}

fn answer_value(debt: Debt<'_, ReplyXattr>, outcome: Reply<Value>) {
    match (debt.take(), outcome) {
        (Some(reply), Ok(Value::Size(size))) => reply.size(size),
        (Some(reply), Ok(Value::Bytes(bytes))) => reply.data(&bytes),
        (Some(reply), Err(errno)) => reply.error(errno),
        (None, _) => {}
    }
}

fn answer_written(debt: Debt<'_, ReplyWrite>, outcome: Reply<u32>) {
    match (debt.take(), outcome) {
        (Some(reply), Ok(count)) => reply.written(count),
        (Some(reply), Err(errno)) => reply.error(errno),
        (None, _) => {}
    }
}

impl Adapter {
    /// How long the kernel may keep attributes: no time while some may be a guess.
    pub(crate) fn keep(&self) -> Duration {
        if self.fs.may_keep_attributes() { KEEP } else { Duration::ZERO }
    }

    fn answer_attr(&self, debt: Debt<'_, ReplyAttr>, outcome: Reply<fuser::FileAttr>) {
        match (debt.take(), outcome) {
            (Some(reply), Ok(attr)) => reply.attr(&self.keep(), &attr),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, _) => {}
        }
    }

    /// Answers with an entry, which pins its inode; where nobody takes the answer any more, that is taken back.
    fn answer_entry(&self, debt: Debt<'_, ReplyEntry>, outcome: Reply<fuser::FileAttr>) {
        match (debt.take(), outcome) {
            (Some(reply), Ok(attr)) => {
                let generation = convert::generation_of(attr.ino.0);
                reply.entry_with_ttls(&KEEP, &self.keep(), &attr, generation);
            }
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, Ok(attr)) => self.forget_inode(attr.ino, 1),
            (None, Err(_)) => {}
        }
    }
}

fn sync_kind(data_only: bool) -> SyncKind {
    if data_only { SyncKind::Data } else { SyncKind::All }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            if config.add_capabilities(capability).is_err() {
                log::info!("the kernel does not offer {capability:?}; going on without");
            }
        }
        // Only with ACLs: then the mask is applied here, because a default ACL replaces it.
        if config.capabilities().contains(InitFlags::FUSE_POSIX_ACL)
            && config.add_capabilities(InitFlags::FUSE_DONT_MASK).is_err()
        {
            log::info!("the kernel does not leave the umask to us; default ACLs are narrowed by it");
        }
        let request_size = u32::try_from(ATOMIC_WRITE_SIZE_MAX).expect("one MiB");
        if let Err(nearest) = config.set_max_write(request_size) {
            log::info!("requests of {request_size} bytes are not possible; using {nearest}");
            let _ = config.set_max_write(nearest);
        }
        if config.set_max_background(BACKGROUND_REQUESTS_MAX).is_err() {
            log::info!("the kernel keeps its own limit of background requests");
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        let found = self.lookup_name(request, parent, name);
        self.answer_entry(debt, found.map(|entry| entry.unwrap_or_else(convert::negative_entry)));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.forget_inode(ino, count);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        self.answer_attr(debt, self.get_attributes(request, ino));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _born: Option<SystemTime>,
        _changed_by: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, size, accessed, modified, handle };
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        self.answer_attr(debt, self.set_attributes(request, ino, &change));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.read_link(request, ino) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        self.answer_entry(debt, self.make_node(request, parent, name, ModeAndMask { mode, umask }, rdev));
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        self.answer_entry(debt, self.make_directory(request, parent, name, ModeAndMask { mode, umask }));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        answer(debt, self.remove_name(request, parent, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        answer(debt, self.remove_directory(request, parent, name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        self.answer_entry(debt, self.make_symlink(request, parent, name, target.as_os_str()));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        answer(debt, self.rename_name(request, (parent, name), (new_parent, new_name), flags));
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        self.answer_entry(debt, self.make_link(request, ino, parent, name));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        let outcome = self.open_file(request, ino, flags);
        match (debt.take(), outcome) {
            (Some(reply), Ok(handle)) => reply.opened(handle, OPENED),
            (Some(reply), Err(errno)) => reply.error(errno),
            // Nobody knows the handle.
            (None, Ok(handle)) => {
                let _ = self.release_file(ino, handle);
            }
            (None, Err(_)) => {}
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let Some(debt) = self.requests.begin(parent.0, reply) else { return };
        let outcome = self.create_file(request, parent, name, ModeAndMask { mode, umask }, flags);
        match (debt.take(), outcome) {
            (Some(reply), Ok((attr, handle))) => {
                reply.created(&self.keep(), &attr, convert::generation_of(attr.ino.0), handle, OPENED);
            }
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, Ok((attr, handle))) => {
                let _ = self.release_file(attr.ino, handle);
                self.forget_inode(attr.ino, 1);
            }
            (None, Err(_)) => {}
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        self.read_file(request, Place { ino, handle, offset }, size, |outcome| match (debt.take(), outcome) {
            (Some(reply), Ok(bytes)) => reply.data(bytes),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, _) => {}
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer_written(debt, self.write_file(request, Place { ino, handle, offset }, data, write_flags));
    }

    fn flush(&self, request: &Request, ino: INodeNo, handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer(debt, self.flush_file(request, ino, handle));
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let debt = self.requests.begin_always(ino.0, reply);
        answer(debt, self.release_file(ino, handle));
    }

    fn fsync(&self, request: &Request, ino: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer(debt, self.sync_file(request, ino, handle, sync_kind(data_only)));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_listing(request, ino) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list_names(request, ino, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let Some(mut debt) = self.requests.begin(ino.0, reply) else { return };
        let outcome = self.list_entries(request, ino, offset, &mut debt);
        match (debt.take(), outcome) {
            (Some(reply), Ok(_)) => reply.ok(),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, Ok(pinned)) => pinned.into_iter().for_each(|ino| self.forget_inode(ino, 1)),
            (None, Err(_)) => {}
        }
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer(debt, self.sync_listing(request, ino));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let block = u32::try_from(BLOCK_SIZE).expect("a block is small");
        let name_length = u32::try_from(NAME_LENGTH_MAX).expect("a name is short");
        let Some(debt) = self.requests.begin(0, reply) else { return };
        let outcome = self.run("statfs", ino.0, |fs| fs.space());
        let Some(reply) = debt.take() else { return };
        match outcome {
            Ok(space) => reply.statfs(
                space.total / BLOCK_SIZE,
                space.free / BLOCK_SIZE,
                space.available / BLOCK_SIZE,
                space.files_total,
                space.files_free,
                block,
                name_length,
                block,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer(debt, self.set_xattr(request, ino, name, value, flags));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer_value(debt, self.get_xattr(request, ino, name, size));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer_value(debt, self.list_xattrs(request, ino, size));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer(debt, self.remove_xattr(request, ino, name));
    }

    /// Never asked under `default_permissions`; "not implemented" tells the kernel to decide by itself.
    fn access(&self, _request: &Request, _ino: INodeNo, _mask: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// "Not implemented" tells the kernel that regular files are always ready, and it does not ask again.
    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        answer(debt, self.allocate_range(request, Place { ino, handle, offset }, length, mode));
    }

    fn lseek(&self, request: &Request, ino: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Some(debt) = self.requests.begin(ino.0, reply) else { return };
        let outcome = self.seek_file(request, ino, handle, offset, whence);
        match (debt.take(), outcome) {
            (Some(reply), Ok(found)) => reply.offset(found),
            (Some(reply), Err(errno)) => reply.error(errno),
            (None, _) => {}
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        source: INodeNo,
        source_handle: FileHandle,
        source_offset: u64,
        target: INodeNo,
        target_handle: FileHandle,
        target_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let source = Place { ino: source, handle: source_handle, offset: source_offset };
        let target = Place { ino: target, handle: target_handle, offset: target_offset };
        let Some(debt) = self.requests.begin(target.ino.0, reply) else { return };
        answer_written(debt, self.copy_range(request, source, target, length));
    }
}
