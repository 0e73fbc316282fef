//! Parts common to all requests: the caller, how a failure becomes an errno and a log line, and that a panic stays
//! within its request. The families of operations (`names`, `files`, `directories`, `xattrs`) are written on top.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use polymux_fs::{Caller, Error, FileSystem, Permissions, Wait};
use polymux_transport::wire::{Attr, Header};
use polymux_transport::{Agreement, Device};
use polymux_types::{Errno, Ino, StreamId};

use crate::convert;
use crate::listings::Listings;
use crate::open_files::OpenFiles;
use crate::options::ExtendedAttributes;
use crate::pending::PendingRequests;
use crate::programs::Programs;
use crate::requests::Requests;
use crate::room::WriteRoom;
use crate::threads::credentials_of;
use crate::write_back::WriteBack;

/// Serves one mount. Shared by all threads of the transport.
#[derive(Clone)]
pub(crate) struct Adapter {
    pub(crate) fs: Arc<FileSystem>,
    /// Requests in flight.
    pub(crate) requests: Arc<Requests>,
    pub(crate) extended_attributes: ExtendedAttributes,
    /// Whether the kernel collects writes.
    pub(crate) write_back: WriteBack,
    /// Free space for collected writes.
    pub(crate) room: Arc<WriteRoom>,
    /// Requests that wait until a file is written back.
    pub(crate) pending: Arc<PendingRequests>,
    /// Where notifications go.
    pub(crate) device: Arc<Device>,
    /// Whether the daemon runs as root: the kernel mounts the file systems of other users without set-id programs.
    pub(crate) runs_as_root: bool,
    /// Files that are being executed.
    pub(crate) programs: Arc<Programs>,
    /// Listings of directories.
    pub(crate) listings: Arc<Listings>,
    /// Files that are open, on record for a later daemon.
    pub(crate) open_files: Arc<OpenFiles>,
}

/// Result of a request.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// A request in words, for the log.
#[derive(Clone, Copy, Debug)]
struct Subject {
    operation: &'static str,
    ino: Ino,
}

impl Adapter {
    /// One for a connection that begins now or was taken over.
    pub(crate) fn new(
        fs: Arc<FileSystem>,
        extended_attributes: ExtendedAttributes,
        device: Arc<Device>,
        agreement: &Agreement,
    ) -> Self {
        Self {
            fs,
            requests: Arc::new(Requests::new()),
            extended_attributes,
            write_back: WriteBack::of(agreement),
            room: Arc::new(WriteRoom::new()),
            pending: Arc::default(),
            device,
            runs_as_root: rustix::process::geteuid().is_root(),
            programs: Arc::default(),
            listings: Arc::default(),
            open_files: Arc::default(),
        }
    }

    /// Runs one operation. Its error is logged as loudly as it deserves, and a panic is answered with `EIO`: the
    /// program that asked would otherwise wait for ever.
    pub(crate) fn run<T>(
        &self,
        operation: &'static str,
        ino: Ino,
        body: impl FnOnce(&FileSystem) -> polymux_fs::Result<T>,
    ) -> Outcome<T> {
        match catch_unwind(AssertUnwindSafe(|| body(&self.fs))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                log_error(Subject { operation, ino }, &error);
                Err(error.errno())
            }
            Err(panic) => {
                log::error!("{operation} of inode {}: internal error: {}", ino.get(), panic_text(panic.as_ref()));
                Err(Errno::EIO)
            }
        }
    }

    /// Makes an inode's attributes an entry that the kernel keeps: pinned before the answer is sent, so that the
    /// forget that follows can never come first.
    pub(crate) fn entry(fs: &FileSystem, attributes: &polymux_fs::Attributes) -> Attr {
        fs.pin(attributes.ino);
        convert::attr(attributes)
    }
}

/// The inode that a request is about.
pub(crate) fn ino(header: &Header) -> Ino {
    Ino(header.node)
}

/// The subject of an operation. The kernel has checked permissions, and it sends no supplementary groups.
pub(crate) fn caller(header: &Header) -> Caller {
    Caller {
        uid: header.uid,
        gid: header.gid,
        groups: Vec::new(),
        umask: 0,
        stream: StreamId(u64::from(header.pid)),
        wait: Wait::Allowed,
        permissions: Permissions::CheckedByKernel,
    }
}

/// As [`caller`], with the umask, which creation clears from modes.
pub(crate) fn caller_with_umask(header: &Header, umask: u32) -> Caller {
    Caller { umask, ..caller(header) }
}

/// As [`caller`], with supplementary groups, which are read from the requesting thread. Only the few rules that clear the set-group-id bit need
/// them; of a thread of which nothing is known there are none.
pub(crate) fn caller_with_groups(header: &Header) -> Caller {
    let groups = if header.uid == 0 {
        Vec::new()
    } else {
        credentials_of(header).map(|credentials| credentials.groups).unwrap_or_default()
    };
    Caller { groups, ..caller(header) }
}

fn log_error(subject: Subject, error: &Error) {
    if let Some(level) = error.log_level() {
        log::log!(level, "{} of inode {}: {error}", subject.operation, subject.ino.get());
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&'static str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
