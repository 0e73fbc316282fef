//! One lease, as the program has it.

use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use polymux_lease::message::{Granted, Visit};
use polymux_lease::{Changes, LeasedMap, Life, UseCounts, Written, command, message};
use polymux_types::{LeaseRefusal, LeaseTicket, LeaseWish, MapRun};
use rustix::fs::FileType;
use rustix::io::{Errno, ReadWriteFlags};

use crate::host::{FileIdentity, Host};
use crate::report::Way;

/// Reads up to here are tried from memory first, so that those that a device answers are counted as such.
const SHORT_MAX: usize = 64 << 10;
/// Longer writes go through the kernel: there is no copy of their bytes.
pub const WRITE_MAX: usize = 256 << 10;

/// Why there is no lease.
#[derive(Debug)]
pub(crate) enum NoLease {
    /// The file is on no volume that gives leases, and never will be.
    NoVolume,
    /// The daemon says so.
    Refused(LeaseRefusal),
    /// Its door is not to be reached from here, or it did not answer.
    Unreachable(#[allow(dead_code, reason = "for those who debug")] io::Error),
}

/// `FUSE_SUPER_MAGIC` of include/uapi/linux/magic.h.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// Whether a file is a regular one on a FUSE mount: other drivers may understand the command as something else.
fn may_be_of_a_volume(file: BorrowedFd<'_>) -> io::Result<bool> {
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::RegularFile;
    Ok(is_file && u64::try_from(rustix::fs::fstatfs(file)?.f_type) == Ok(FUSE_MAGIC))
}

/// An object, opened with the access that the file has.
struct Object<H: Host> {
    descriptor: H::Descriptor,
    /// Its file system tells which bytes are in memory, as far as is known.
    tells_memory: AtomicBool,
}

impl<H: Host> Object<H> {
    fn new(descriptor: H::Descriptor) -> Self {
        Self { descriptor, tells_memory: AtomicBool::new(true) }
    }
}

/// A lease that was given.
pub(crate) struct Lease<H: Host> {
    since: Instant,
    has_ended: AtomicBool,
    /// Threads that may be writing to an object: descriptors are not released before they are done, because another file could have the number then.
    writing: AtomicU32,
    is_released: AtomicBool,
    /// To be looked for at each read; `None` where the descriptor cannot become that of another file.
    identity: Option<FileIdentity>,
    map: LeasedMap,
    life: Life,
    runs: Vec<MapRun>,
    objects: Vec<Object<H>>,
    counts: UseCounts,
    /// The daemon sees the end of the lease by its end.
    connection: H::Descriptor,
}

/// The parts of a lease, mapped and in the places where they stay.
struct Received<H: Host> {
    map: LeasedMap,
    life: Life,
    counts: UseCounts,
    objects: Vec<Object<H>>,
}

impl<H: Host> Received<H> {
    fn of(granted: Granted) -> io::Result<Self> {
        Ok(Self {
            map: LeasedMap::map(&granted.map)?,
            life: Life::map(&granted.life)?,
            counts: UseCounts::map(&granted.counts)?,
            objects: H::place(granted.objects)?.into_iter().map(Object::new).collect(),
        })
    }
}

impl<H: Host> Lease<H> {
    /// Asks for a lease on an open file.
    pub(crate) fn ask(file: BorrowedFd<'_>, wish: LeaseWish) -> Result<Self, NoLease> {
        if !may_be_of_a_volume(file).map_err(NoLease::Unreachable)? {
            return Err(NoLease::NoVolume);
        }
        let answer = match command::ask(file, wish) {
            Ok(answer) => answer,
            Err(error) if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) => return Err(NoLease::NoVolume),
            Err(error) => return Err(NoLease::Unreachable(error)),
        };
        let refused = |code| NoLease::Refused(LeaseRefusal::from_code(code));
        let ticket = command::decode(&answer).map_err(refused)?;
        // The daemon was waited for until here as for every call. From here on it is waited for no longer than is promised.
        let _quiet = H::quiet();
        let (connection, received) = Self::receive(&ticket)
            .map_err(|error| match error.kind() {
                // Before Linux 6.16 a daemon that refuses cannot say why.
                io::ErrorKind::ConnectionReset => NoLease::Refused(LeaseRefusal::Busy),
                _ => NoLease::Unreachable(error),
            })?
            .map_err(refused)?;
        Self::of(file, connection, received).map_err(NoLease::Unreachable)
    }

    #[allow(clippy::type_complexity, reason = "what is received, the code of a refusal, or an error")]
    fn receive(ticket: &LeaseTicket) -> io::Result<Result<(H::Descriptor, Received<H>), u32>> {
        let not_now = || io::Error::from(io::ErrorKind::WouldBlock);
        let connection = {
            let _receiving = H::receiving().ok_or_else(not_now)?;
            H::place(vec![message::connection()?])?.pop().ok_or_else(not_now)?
        };
        let visit = Visit::begin(connection, ticket)?;
        visit.wait()?;
        let received = {
            let _receiving = H::receiving().ok_or_else(not_now)?;
            match visit.receive()? {
                Ok(granted) => Received::of(granted)?,
                Err(code) => return Ok(Err(code)),
            }
        };
        Ok(Ok((visit.end(), received)))
    }

    fn of(file: BorrowedFd<'_>, connection: H::Descriptor, received: Received<H>) -> io::Result<Self> {
        let Received { map, life, counts, objects } = received;
        let identity = if H::IS_UNAWARE { Some(FileIdentity::of(file)?) } else { None };
        if identity.is_some_and(|identity| identity.inode != map.inode()) {
            return Err(io::Error::other("the program opened another file meanwhile"));
        }
        let runs = map.runs(objects.len())?;
        Ok(Self {
            since: Instant::now(),
            has_ended: AtomicBool::new(false),
            writing: AtomicU32::new(0),
            is_released: AtomicBool::new(false),
            identity,
            map,
            life,
            runs,
            objects,
            counts,
            connection,
        })
    }

    /// Since when the program has it.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether everything that was read by it before this call is true.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.map.is_current() && self.life.goes_on() && !self.has_ended.load(Ordering::SeqCst)
    }

    /// Ends it for all who still have it. Bytes that they read meanwhile, of whatever has the number of an object by then, are not believed, because this is seen first.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if self.writing.load(Ordering::SeqCst) == 0 {
            self.release();
        }
    }

    fn release(&self) {
        if !self.is_released.swap(true, Ordering::SeqCst) {
            self.objects.iter().for_each(|object| H::release(&object.descriptor));
            H::release(&self.connection);
        }
    }

    /// Whether the file may change while it lives.
    pub(crate) fn changes(&self) -> Changes {
        self.map.changes()
    }

    /// Whether bytes up to an offset lie behind those that it covers, although the file may have grown since.
    pub(crate) fn is_outgrown_by(&self, end: u64) -> bool {
        self.runs.last().is_some_and(|last| end > last.end) && self.runs.iter().any(|run| run.is_writable)
    }

    /// Writes all of the data, or says which way to take instead: then they may be in the object or not, and are to be written once more, through the kernel.
    pub(crate) fn write(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<(), Way> {
        let end = offset.checked_add(data.len() as u64).filter(|_| data.len() <= WRITE_MAX).ok_or(Way::Beyond)?;
        let place = self.runs.partition_point(|run| run.end <= offset);
        // Another file system would not keep a write over two objects whole beside a reader.
        let run = self.runs.get(place).filter(|run| run.is_writable && end <= run.end).ok_or(Way::Beyond)?;
        let object = &self.objects[run.object.ok_or(Way::Beyond)?];
        if self.identity.is_some_and(|identity| FileIdentity::of(file).ok() != Some(identity)) || !H::overwrites(file) {
            return Err(Way::OtherFile);
        }
        // A handler that jumped out of it would leave it announced for ever.
        let _quiet = H::quiet();
        H::with_copy(data, |copy| self.write_announced(object, copy, offset)).ok_or(Way::Beyond)?
    }

    fn write_announced(&self, object: &Object<H>, data: &[u8], offset: u64) -> Result<(), Way> {
        self.writing.fetch_add(1, Ordering::SeqCst);
        self.counts.begin_write();
        let outcome = self.write_object(object, data, offset);
        self.counts.end_write();
        let is_last = self.writing.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.has_ended.load(Ordering::SeqCst) {
            self.release();
        }
        if outcome.is_ok() {
            self.counts.note_write(offset);
        }
        outcome
    }

    /// Called while the write is announced.
    fn write_object(&self, object: &Object<H>, data: &[u8], offset: u64) -> Result<(), Way> {
        if !self.map.admits_write() || !self.life.goes_on() || self.has_ended.load(Ordering::SeqCst) {
            return Err(Way::Recalled);
        }
        if !H::is_intact(&object.descriptor) {
            return Err(Way::Failed);
        }
        loop {
            match rustix::io::pwrite(&object.descriptor, data, offset) {
                Ok(count) if count == data.len() => break,
                Err(Errno::INTR) => {}
                // The kernel has sent the signal that goes with it, and would send it again.
                Err(Errno::FBIG) => return Err(Way::TooLarge),
                // The kernel knows how much of it can be written, and why no more.
                Ok(_) | Err(_) => return Err(Way::Failed),
            }
        }
        // The next daemon does not wait for writes that began under this one.
        match self.map.written() {
            Written::ToFile if self.life.goes_on() => Ok(()),
            Written::ToFile | Written::ToObjectAlone => Err(Way::Recalled),
        }
    }

    /// Reads all of a buffer, or says which way to take instead. By `last_end`, where the last read ended, streams differ from single reads: a guess, which
    /// threads may spoil for one another.
    pub(crate) fn read(
        &self,
        file: BorrowedFd<'_>,
        buffer: &mut [u8],
        offset: u64,
        last_end: &AtomicU64,
    ) -> Result<(), Way> {
        let end = offset.checked_add(buffer.len() as u64).ok_or(Way::Beyond)?;
        if self.runs.last().is_none_or(|last| end > last.end) {
            return Err(Way::Beyond);
        }
        if self.identity.is_some_and(|identity| FileIdentity::of(file).ok() != Some(identity)) {
            return Err(Way::OtherFile);
        }
        let is_stream = last_end.load(Ordering::Relaxed) == offset || buffer.len() > SHORT_MAX;
        last_end.store(end, Ordering::Relaxed);
        let mut place = self.runs.partition_point(|run| run.end <= offset);
        let mut filled = 0;
        while filled < buffer.len() {
            let run = self.runs[place];
            let position = offset + filled as u64;
            let length =
                usize::try_from((run.end - position).min((buffer.len() - filled) as u64)).unwrap_or(usize::MAX);
            let part = &mut buffer[filled..filled + length];
            match run.object {
                None if self.identity.is_some() => return Err(Way::Beyond),
                None => part.fill(0),
                Some(object) => self.read_object(&self.objects[object], part, position, is_stream)?,
            }
            filled += length;
            place += 1;
        }
        if is_stream {
            self.counts.note_stream(offset, buffer.len());
        }
        // Last of all: only now it is known that the bytes are those of the file.
        if self.is_current() { Ok(()) } else { Err(Way::Recalled) }
    }

    fn read_object(&self, object: &Object<H>, part: &mut [u8], position: u64, is_stream: bool) -> Result<(), Way> {
        let Object { descriptor, tells_memory } = object;
        if !H::is_intact(descriptor) {
            return Err(Way::Failed);
        }
        if !is_stream && tells_memory.load(Ordering::Relaxed) {
            match rustix::io::preadv2(descriptor, &mut [IoSliceMut::new(part)], position, ReadWriteFlags::NOWAIT) {
                Ok(count) if count == part.len() => return Ok(()),
                Ok(_) | Err(Errno::AGAIN) => self.counts.note_random(position),
                // This file system cannot tell which bytes are in memory.
                Err(Errno::OPNOTSUPP | Errno::INVAL) => tells_memory.store(false, Ordering::Relaxed),
                Err(_) => {}
            }
        }
        let mut filled = 0;
        while filled < part.len() {
            match rustix::io::pread(descriptor, &mut part[filled..], position + filled as u64) {
                // The object is shorter than the map says: zeros, or a loss. The daemon knows.
                Ok(0) => return Err(Way::Beyond),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Way::Failed),
            }
        }
        Ok(())
    }
}
