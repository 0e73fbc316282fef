//! A file system of two files whose bytes are those of objects beside it, with leases on the objects.
//!
//! Invariants:
//! * Whatever ends a lease has ended it before the object is touched, and so before it is answered.
//! * A grant waits for the kernel without a lock: the kernel sends the dirty pages meanwhile, and these writes are no recall,
//!   because the leaseholder has no lease before the grant is answered.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polymux_transport::wire::{
    Attr, AttrChange, AttrReply, Capabilities, EntryReply, OpenFlags, OpenReply, Operation, Request, commanded, written,
};
use polymux_transport::{
    Connection, Device, MountAudience, MountFlags, MountSettings, Patience, Reply, Service, Unmount, Wishes, Worker,
    mount, negotiate, unmount,
};
use polymux_types::{Errno, Timestamp};
use rustix::ioctl::{Opcode, opcode};

/// How files are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    CachedAndKept,
    Cached,
    Direct,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::CachedAndKept, Self::Cached, Self::Direct];
    pub const CACHED: [Self; 2] = [Self::CachedAndKept, Self::Cached];

    fn flags(self) -> OpenFlags {
        match self {
            Self::CachedAndKept => OpenFlags::KEEP_CACHE,
            Self::Cached => OpenFlags::default(),
            Self::Direct => OpenFlags::DIRECT_IO.and(OpenFlags::PARALLEL_DIRECT_WRITES),
        }
    }
}

/// Gives the lease.
pub const GRANT: Opcode = opcode::none(b'P', 1);
/// Ends the lease without a trace and makes the kernel forget pages and attributes: the beginning of a scenario.
pub const RESET: Opcode = opcode::none(b'P', 2);
/// Makes the kernel forget pages and attributes, and leaves the lease as it is.
pub const FORGET: Opcode = opcode::none(b'P', 3);
/// Reports on the lease since the grant, as numbers of eight bytes each.
pub const ASK: Opcode = opcode::read::<[u8; ANSWER_LENGTH]>(b'P', 4);
pub const ANSWER_LENGTH: usize = 8 * 7;
/// Stands for a number that there is not.
pub const NONE: u64 = u64::MAX;

const ROOT: u64 = 1;
/// The files follow the root.
pub const FILES: [&str; 2] = ["file", "other"];
/// How long attributes are valid where nobody writes beside the mount.
const KEEP: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Lease {
    lives: bool,
    /// The kernel forgets its pages for a grant that was not answered yet.
    is_being_granted: bool,
    reads: u64,
    writes: u64,
    resizes: u64,
    /// Dirty pages that came on account of the grant.
    written_back: u64,
    /// Where the kernel, and where the object had the end for the first append.
    append: Option<(u64, u64)>,
}

impl Lease {
    fn answer(&self) -> Vec<u8> {
        let (of_kernel, of_object) = self.append.unwrap_or((NONE, NONE));
        let numbers =
            [self.lives.into(), self.reads, self.writes, self.resizes, self.written_back, of_kernel, of_object];
        numbers.iter().flat_map(|number: &u64| number.to_le_bytes()).collect()
    }
}

struct Object {
    file: File,
    lease: Mutex<Lease>,
}

struct Daemon {
    device: Arc<Device>,
    mode: Mode,
    objects: [Object; 2],
}

impl Daemon {
    fn object(&self, node: u64) -> Result<&Object, Errno> {
        let number = node.checked_sub(ROOT + 1).and_then(|number| usize::try_from(number).ok());
        number.and_then(|number| self.objects.get(number)).ok_or(Errno::ENOENT)
    }

    /// Attributes, and how long they are valid.
    fn attributes(&self, ino: u64) -> Result<AttrReply, Errno> {
        let attr = Attr { ino, mode: libc::S_IFDIR | 0o755, links: 2, ..Attr::default() };
        if ino == ROOT {
            return Ok(AttrReply { keep_attr: KEEP, attr });
        }
        let object = self.object(ino)?;
        let keep_attr = if object.lease.lock().lives { Duration::ZERO } else { KEEP };
        let metadata = object.file.metadata()?;
        let modified =
            Timestamp::new(metadata.mtime(), u32::try_from(metadata.mtime_nsec()).expect("nanoseconds of a second"));
        let mode = libc::S_IFREG | 0o644;
        let (size, blocks) = (metadata.size(), metadata.blocks());
        Ok(AttrReply { keep_attr, attr: Attr { mode, links: 1, size, blocks, modified, block_size: 4096, ..attr } })
    }

    fn look_up(&self, name: &[u8]) -> Result<[u8; 128], Errno> {
        let number = FILES.iter().position(|known| known.as_bytes() == name).ok_or(Errno::ENOENT)?;
        let AttrReply { keep_attr, attr } = self.attributes(ROOT + 1 + u64::try_from(number).expect("one or none"))?;
        Ok(EntryReply { generation: 0, keep_name: KEEP, keep_attr, attr }.encode())
    }

    fn read(&self, node: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let object = self.object(node)?;
        object.recall(|lease| lease.reads += 1);
        let mut bytes = vec![0; usize::try_from(size).expect("a request fits into memory")];
        let mut length = 0;
        while length < bytes.len() {
            let at = offset + u64::try_from(length).expect("a request is short");
            match object.file.read_at(&mut bytes[length..], at)? {
                0 => break,
                count => length += count,
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn write(&self, node: u64, offset: u64, appends: bool, is_from_cache: bool, data: &[u8]) -> Result<[u8; 8], Errno> {
        let object = self.object(node)?;
        let end = object.file.metadata()?.len();
        object.recall_by_write(is_from_cache, appends.then_some((offset, end)));
        object.file.write_all_at(data, if appends { end } else { offset })?;
        Ok(written(u32::try_from(data.len()).expect("a request is short")))
    }

    fn change(&self, node: u64, change: &AttrChange) -> Result<[u8; 104], Errno> {
        if let Some(size) = change.size {
            self.resize(node, size)?;
        }
        Ok(self.attributes(node)?.encode())
    }

    fn resize(&self, node: u64, size: u64) -> Result<(), Errno> {
        let object = self.object(node)?;
        object.recall(|lease| lease.resizes += 1);
        Ok(object.file.set_len(size)?)
    }

    fn open(&self, node: u64, flags: i32) -> Result<[u8; 16], Errno> {
        if flags & libc::O_TRUNC != 0 {
            self.resize(node, 0)?;
        }
        Ok(OpenReply::new(0, self.mode.flags()).encode())
    }

    fn command(&self, node: u64, command: u32) -> Result<Vec<u8>, Errno> {
        let object = self.object(node)?;
        let lease = &object.lease;
        if command == GRANT {
            *lease.lock() = Lease { lives: true, is_being_granted: true, ..Lease::default() };
            self.device.write_back(node);
            lease.lock().is_being_granted = false;
        } else if command == RESET {
            *lease.lock() = Lease::default();
            self.device.write_back(node);
        } else if command == FORGET {
            self.device.write_back(node);
        } else if command == ASK {
            return Ok(commanded(&lease.lock().answer()));
        } else {
            return Err(Errno::ENOTTY);
        }
        Ok(commanded(&[]))
    }
}

impl Object {
    fn recall(&self, count: impl Fn(&mut Lease)) {
        let mut lease = self.lease.lock();
        lease.lives = false;
        count(&mut lease);
    }

    fn recall_by_write(&self, is_from_cache: bool, append: Option<(u64, u64)>) {
        let mut lease = self.lease.lock();
        if is_from_cache && lease.is_being_granted {
            lease.written_back += 1;
            return;
        }
        lease.lives = false;
        lease.writes += 1;
        lease.append = lease.append.or(append);
    }
}

impl Service for Daemon {
    fn serve(&self, request: &Request<'_>, reply: Reply, patience: Patience) -> Option<Reply> {
        let node = request.header.node;
        // Forgetting pages waits for other requests.
        if patience == Patience::AtOnce && matches!(request.operation, Operation::Ioctl { .. }) {
            return Some(reply);
        }
        match request.operation {
            Operation::Lookup { name } => reply.result(self.look_up(name)),
            Operation::GetAttr { .. } => reply.result(self.attributes(node).map(|attributes| attributes.encode())),
            Operation::SetAttr { change } => reply.result(self.change(node, &change)),
            Operation::Open { flags, .. } => reply.result(self.open(node, flags)),
            Operation::Read { offset, size, .. } => reply.result(self.read(node, offset, size)),
            Operation::Write { offset, flags, open_flags, data, .. } => {
                let is_from_cache = flags.is_from_cache();
                let appends = !is_from_cache && open_flags & libc::O_APPEND != 0;
                reply.result(self.write(node, offset, appends, is_from_cache, data));
            }
            Operation::Ioctl { command, .. } => reply.result(self.command(node, command)),
            Operation::OpenDirectory => reply.body(&OpenReply::new(0, OpenFlags::default()).encode()),
            Operation::Flush { .. } | Operation::Release { .. } | Operation::ReleaseDirectory { .. } => reply.ok(),
            Operation::Sync { .. } => {
                reply.outcome(self.object(node).and_then(|object| Ok(object.file.sync_data()?)));
            }
            // Copies are among them: the kernel makes reads and writes of these then.
            _ => reply.error(Errno::ENOSYS),
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}

/// As the adapter wishes them (`polymux-fuse/src/wishes.rs`), without the collection of writes and all that has nothing to do with
/// the bytes of files.
fn wishes() -> Wishes {
    let capabilities = Capabilities::ASYNC_READ
        | Capabilities::ATOMIC_O_TRUNC
        | Capabilities::BIG_WRITES
        | Capabilities::ASYNC_DIO
        | Capabilities::MAX_PAGES
        | Capabilities::EXPLICIT_INVAL_DATA
        | Capabilities::HANDLE_KILLPRIV_V2
        | Capabilities::DIRECT_IO_ALLOW_MMAP;
    Wishes { capabilities, write_max: 1 << 20, background_max: 64, congestion_threshold: 48 }
}

/// A directory with the objects, and the mount within it; taken down when dropped.
pub struct Fixture {
    connection: Arc<Connection>,
    workers: Vec<Worker>,
    directory: tempfile::TempDir,
}

pub fn mountpoint(place: &Path) -> PathBuf {
    place.join("mount")
}

pub fn object(place: &Path, name: &str) -> PathBuf {
    place.join(name)
}

impl Fixture {
    pub fn mount_or_skip(mode: Mode) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            eprintln!("skipped: /dev/fuse cannot be opened: {error}");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("polymux-leases-").tempdir().expect("a directory is made");
        let mounted = mountpoint(directory.path());
        std::fs::create_dir(&mounted).expect("a directory is made");
        let settings = MountSettings {
            source: "leases".to_owned(),
            subtype: "leases",
            audience: MountAudience::Owner,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        };
        let device = match mount(&mounted, &settings) {
            Ok(device) => Arc::new(device),
            Err(error) => {
                eprintln!("skipped: nothing can be mounted: {error}");
                return None;
            }
        };
        let (connection, workers) = Self::serve(device, mode, directory.path()).expect("the mount is served");
        Some(Self { connection, workers, directory })
    }

    fn serve(device: Arc<Device>, mode: Mode, place: &Path) -> io::Result<(Arc<Connection>, Vec<Worker>)> {
        let open = |name| {
            let path = object(place, name);
            File::options().read(true).write(true).create_new(true).open(path)
        };
        let [first, second] = FILES.map(|name| open(name).map(|file| Object { file, lease: Mutex::default() }));
        let agreement = negotiate(&device, |_| wishes())?;
        let daemon = Daemon { device: Arc::clone(&device), mode, objects: [first?, second?] };
        let connection = Arc::new(Connection::new(device, agreement, daemon));
        // One for a grant, one for the writes that the grant waits for, and one more.
        let workers = connection.start(3)?;
        Ok((connection, workers))
    }

    pub fn place(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        unmount(&mountpoint(self.place()), Unmount::Detach).expect("it can be unmounted");
        let workers = self.workers.drain(..).chain(self.connection.take_grown());
        for worker in workers.collect::<Vec<_>>() {
            worker.join().expect("the transport does not panic").expect("it ends well");
        }
    }
}
