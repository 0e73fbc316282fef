//! Open files: reading, writing, syncing, copying.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use polymux_data::io::{Keeper, WriteRequest, lost_bytes, patience};
use polymux_records::attributes::HandleId;
use polymux_records::attributes::{AllocateKind, FileKind, OpenOptions, SyncKind, WriteOrigin};
use polymux_records::caller::{Caller, Wait};
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::passthrough::IoDecision;
use polymux_records::passthrough::IoMode;
use polymux_types::limits::FILE_SIZE_MAX;
use polymux_types::{Errno, Ino, StreamId};
use polymux_volume::access::{EXECUTE, READ, WRITE};
use polymux_volume::inode::{Creation, FileState, Handle, Inode, check_allocation, check_not_immutable, check_open};

use crate::mounted::Mounted;

/// Bytes copied at once by `copy_range`.
const COPY_STEP: usize = 1024 * 1024;
/// Most bytes of one `copy_range`; it is allowed to copy less than it was asked for.
const COPY_MAX: u64 = 256 * 1024 * 1024;

/// Notes that bytes acknowledged to a program could not be written and that the kernel drops them.
fn note_lost_pages(file: &FileState) {
    file.raise_error_sequence(&mut file.layout.write());
    // Its pages differ from the stored bytes.
    file.direct.pages_stale.store(true, Ordering::Release);
}

/// A description of a file that is opened.
fn describe(inode: &Arc<Inode>, options: OpenOptions, creation: Option<Creation>) -> Result<Handle> {
    let mut lifecycle = inode.lifecycle.lock();
    if lifecycle.gone {
        return Err(Errno::ENOENT.into());
    }
    lifecycle.handles += 1;
    lifecycle.writers += u64::from(options.write);
    drop(lifecycle);
    let seen = inode.file().map_or(0, |file| file.durability.error_sequence.load(Ordering::Acquire));
    Ok(Handle {
        inode: inode.clone(),
        options,
        error_seen: AtomicU32::new(seen),
        io_mode: OnceLock::new(),
        is_untold: AtomicBool::new(false),
        creation,
        memory_reads: OnceLock::new(),
        has_leases: AtomicBool::new(false),
        asked_for_lease_ms: AtomicU64::new(0),
        leases_ended: AtomicU32::new(0),
        has_ended: AtomicBool::new(false),
    })
}

/// The file behind a handle.
fn file_of(handle: &Handle) -> Result<&FileState> {
    handle.inode.file().ok_or_else(|| Errno::EBADF.into())
}

impl Mounted {
    pub(crate) fn open(&self, caller: &Caller, ino: Ino, options: OpenOptions) -> Result<HandleId> {
        let inode = self.volume.inode(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            FileKind::Symlink => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENXIO.into()),
        }
        let mut wanted = 0;
        if options.read && !options.execute {
            wanted |= READ;
        }
        if options.execute {
            wanted |= EXECUTE;
        }
        if options.write || options.append || options.truncate {
            wanted |= WRITE;
            self.volume.check_writable()?;
        }
        check_open(&inode, &options)?;
        self.volume.check_access(caller, &inode, wanted)?;
        if options.truncate {
            self.check_may_wait(caller)?;
        }
        self.check_answers_at_once(caller, &inode)?;
        if let Some(file) = inode.file() {
            // A file that looks shorter than it is would be copied short, without an error.
            self.data.ensure_size(&inode, file)?;
        }
        // Opened before it is emptied: an inline file is then logged or moved to an object when it is closed, after the writes.
        let handle = self.add_handle(&inode, options, None)?;
        if options.truncate
            && let Err(error) = self.empty_at_open(caller, &inode)
        {
            self.release(handle)?;
            return Err(error);
        }
        Ok(handle)
    }

    fn empty_at_open(&self, caller: &Caller, inode: &Inode) -> Result<()> {
        let file = inode.file().ok_or(Errno::EINVAL)?;
        self.drop_capabilities(caller, inode)?;
        self.data.truncate_file(inode, file, 0)?;
        self.note_modified(caller, inode);
        Ok(())
    }

    /// Adds a description; `creation` for the one that made the file.
    pub(crate) fn add_handle(
        &self,
        inode: &Arc<Inode>,
        options: OpenOptions,
        creation: Option<Creation>,
    ) -> Result<HandleId> {
        Ok(self.data.handles.insert(describe(inode, options, creation)?))
    }

    /// Opens a file for a description that the kernel has since before this mount, under the number that it has of it.
    pub(crate) fn restore_handle(&self, id: HandleId, ino: Ino, options: OpenOptions) -> Result<()> {
        let inode = self.volume.inode(ino)?;
        let file = inode.file().ok_or(Errno::EINVAL)?;
        self.data.handles.insert_as(id, describe(&inode, options, None)?);
        if options.write {
            // An earlier daemon may have emptied it, and then its close makes the newly written bytes durable.
            file.durability.emptyings.note();
        }
        let handle = self.data.handles.get(id)?;
        if let Err(error) = self.data.decide_io_mode(&handle) {
            self.release(id)?;
            return Err(error);
        }
        Ok(())
    }

    /// Says how a description that was just opened does its I/O.
    pub(crate) fn decide_io_mode_of(&self, handle: HandleId) -> Result<IoDecision> {
        let handle = self.data.handles.get(handle)?;
        self.data.decide_io_mode(&handle)
    }

    pub(crate) fn is_inline(&self, handle: HandleId) -> Result<bool> {
        Ok(file_of(&*self.data.handles.get(handle)?)?.is_inline())
    }

    pub(crate) fn read(&self, caller: &Caller, handle: HandleId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let handle = self.data.handles.get(handle)?;
        // A kernel that collects writes reads a page through whatever description wants to change a part of it.
        if !handle.options.read && !handle.options.execute && !self.data.collects_writes() {
            return Err(Errno::EBADF.into());
        }
        let file = file_of(&handle)?;
        if caller.wait == Wait::Never && file.is_changed_directly() {
            // How long it is has to be asked of its tier.
            return Err(ErrorKind::WouldBlock.into());
        }
        // The kernel of a mount has in its own memory the bytes that were read before.
        if handle.io_mode.get().is_none()
            && let Some(count) = self.data.read_from_memory(&handle, file, offset, buffer)
        {
            return Ok(count);
        }
        let keeper = if handle.io_mode.get() == Some(&IoMode::Cached) { Keeper::Reader } else { Keeper::Tier };
        let count = self.data.read_file(&handle.inode, file, offset, buffer, caller.wait, keeper)?;
        Counters::count(&self.volume.counters.reads);
        Counters::add(&self.volume.counters.bytes_read, count);
        self.data.note_accessed(&handle.inode);
        Ok(count)
    }

    /// As [`Mounted::write`], for all of the data or none: a write of which only a part fits fails, and does not extend the file.
    pub(crate) fn write_whole(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<usize> {
        let description = self.data.handles.get(handle)?;
        let file = file_of(&description)?;
        self.data.ensure_size(&description.inode, file)?;
        let size_before = file.size();
        let mut written = self.write(caller, handle, offset, data, origin)?;
        // Nothing is taken back because the rest would have to wait.
        let caller = &Caller { wait: Wait::Allowed, ..caller.clone() };
        while written < data.len() {
            // The rest of an append would go behind concurrent appends.
            let more = match description.options.append {
                true => Err(ErrorKind::NoSpace.into()),
                false => self.write(caller, handle, offset + written as u64, &data[written..], origin),
            };
            match more {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) => {
                    // If another writer made the file longer still, its bytes are behind these.
                    let begin = if description.options.append { size_before } else { offset };
                    if file.size() == begin + written as u64 && file.size() > size_before {
                        self.data.truncate_file(&description.inode, file, size_before)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(written)
    }

    pub(crate) fn write(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<usize> {
        let handle = self.data.handles.get(handle)?;
        let write = |caller: &Caller, written: usize| {
            let written = self.write_once(caller, &handle, offset + written as u64, &data[written..], origin)?;
            Ok(written.1)
        };
        if !origin.is_from_cache() {
            return write(caller, 0);
        }
        // Of a count that is short the kernel takes no notice, and forgets the rest: so this succeeds for all of it, or fails.
        let mut written = 0;
        while written < data.len() {
            let caller = &Caller { wait: patience(caller.wait, written), ..caller.clone() };
            match write(caller, written) {
                // Beyond the end of the file there is nothing to keep.
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return Err(error),
                Err(error) => {
                    note_lost_pages(file_of(&handle)?);
                    return Err(error);
                }
            }
        }
        Ok(data.len())
    }

    /// Writes at the end of a file that was opened to append; returns where, and how many bytes.
    pub(crate) fn append(
        &self,
        caller: &Caller,
        handle: HandleId,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<(u64, usize)> {
        let handle = self.data.handles.get(handle)?;
        assert!(handle.options.append && !origin.is_from_cache(), "only a call on a file that appends has no offset");
        self.write_once(caller, &handle, 0, data, origin)
    }

    /// Returns the offset of the first byte, and how many were written.
    fn write_once(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        origin: WriteOrigin,
    ) -> Result<(u64, usize)> {
        if !handle.options.write && !origin.is_from_cache() {
            return Err(Errno::EBADF.into());
        }
        self.volume.check_writable()?;
        // Data from the page cache is synced by the call that wrote it, and the open file description is a guess.
        let is_durable =
            handle.options.synchronous && origin == WriteOrigin::Call || origin == WriteOrigin::DurableCall;
        if is_durable {
            self.check_may_wait(caller)?;
        }
        let file = file_of(handle)?;
        self.check_write(handle, file, offset, origin)?;
        let data = match origin {
            WriteOrigin::Call | WriteOrigin::DurableCall | WriteOrigin::WriteBack => data,
            WriteOrigin::PageCache => self.within_file(&handle.inode, file, offset, data)?,
        };
        if !origin.is_from_cache() && !data.is_empty() {
            self.drop_capabilities(caller, &handle.inode)?;
        }
        let append = handle.options.append && !origin.is_from_cache();
        let request = WriteRequest { offset, data, append, wait: caller.wait, stream: caller.stream, origin };
        let outcome = self.data.write_file(&handle.inode, file, request);
        let (begin, written) = outcome.inspect_err(|error| self.note_would_block(error))?;
        Counters::count(&self.volume.counters.writes);
        Counters::add(&self.volume.counters.bytes_written, written);
        if written > 0 {
            match origin {
                WriteOrigin::Call | WriteOrigin::DurableCall => {
                    // The kernel does not take the time of such a write over, and would send its own older one.
                    file.direct.written_past_pages.store(self.data.collects_writes(), Ordering::Release);
                    self.note_modified(caller, &handle.inode);
                }
                WriteOrigin::PageCache => {
                    let owner_only = Caller { permissions: crate::Permissions::CheckedByKernel, ..caller.clone() };
                    self.note_modified(&owner_only, &handle.inode);
                }
                // When this happened the kernel says by itself; now would be too late, and might come after that.
                WriteOrigin::WriteBack => handle.inode.times_dirty.store(true, Ordering::Release),
            }
        }
        if is_durable {
            self.data.sync_for_program(&handle.inode, file, &handle.error_seen)?;
        }
        Ok((begin, written))
    }

    fn note_would_block(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::WouldBlock) {
            Counters::count(&self.volume.counters.would_block);
        }
    }

    /// Write-back of mapped pages never extends a file: bytes beyond the end are dropped.
    fn within_file<'a>(&self, inode: &Inode, file: &FileState, offset: u64, data: &'a [u8]) -> Result<&'a [u8]> {
        self.data.ensure_size(inode, file)?;
        let room = file.size().saturating_sub(offset);
        Ok(&data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
    }

    pub(crate) fn flush(&self, caller: &Caller, handle: HandleId) -> Result<()> {
        let handle = self.data.handles.get(handle)?;
        let file = file_of(&handle)?;
        if handle.options.write && self.data.awaits_sync_of_new_content(file) {
            self.check_may_wait(caller)?;
            file.durability.emptyings.note_sync();
            let synced = self.data.sync_and_report(&handle.inode, file, &handle.error_seen);
            return synced.inspect_err(|_| file.durability.emptyings.note());
        }
        if handle.options.write && !self.volume.is_read_only() {
            self.data.log_inline(&handle.inode, file, caller.wait)?;
        }
        let sequence = file.durability.error_sequence.load(Ordering::Acquire);
        if handle.error_seen.swap(sequence, Ordering::AcqRel) != sequence {
            return Err(lost_bytes(&handle.inode));
        }
        Ok(())
    }

    /// As [`Mounted::release`], for a caller that must not wait: a release that would wait is refused while the handle is still there,
    /// so that another thread can release it.
    pub(crate) fn release_at_once(&self, handle: HandleId) -> Result<()> {
        match self.log_before_release(handle) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => Err(error),
            // Any other error comes again, and is no reason to keep the handle.
            _ => self.release_as(handle, Wait::Never),
        }
    }

    /// Logs the record that [`Mounted::release`] would write; fails with `WouldBlock` if that needs a tier.
    fn log_before_release(&self, handle: HandleId) -> Result<()> {
        let handle = self.data.handles.get(handle)?;
        let inode = &handle.inode;
        if handle.io_mode.get().is_some_and(|mode| mode.is_passed_through()) {
            // The tier has to be asked for the kernel's changes to the object.
            return Err(ErrorKind::WouldBlock.into());
        }
        if handle.has_leases.load(Ordering::Acquire) {
            // Writes of its program are waited for.
            return Err(ErrorKind::WouldBlock.into());
        }
        let is_last = inode.lifecycle.lock().handles == 1;
        // A file without a name is deleted, and never logged.
        let has_name = inode.common.read().links > 0;
        let is_due = is_last && has_name && !self.volume.is_read_only() && inode.times_dirty.load(Ordering::Acquire);
        match inode.file() {
            Some(file) if is_due => self.data.log_inline(inode, file, Wait::Never),
            _ => Ok(()),
        }
    }

    /// Releases an open file description that was not reported to the kernel.
    pub(crate) fn take_back(&self, handle: HandleId) -> Result<()> {
        self.data.handles.get(handle)?.is_untold.store(true, Ordering::Release);
        self.release(handle)
    }

    pub(crate) fn release(&self, handle: HandleId) -> Result<()> {
        self.release_as(handle, Wait::Allowed)
    }

    fn release_as(&self, handle: HandleId, wait: Wait) -> Result<()> {
        let handle = self.data.handles.remove(handle)?;
        let inode = &handle.inode;
        if let Err(error) = self.data.end_io_mode(&handle) {
            log::warn!("inode {}: what the kernel did to its object is not known yet: {error}", inode.ino);
        }
        let is_last = {
            let mut lifecycle = inode.lifecycle.lock();
            lifecycle.handles = lifecycle.handles.checked_sub(1).expect("each handle is counted once");
            lifecycle.writers -= u64::from(handle.options.write);
            lifecycle.handles == 0
        };
        if handle.options.write {
            self.data.queue_if_rewritten(inode);
        }
        if !is_last {
            return Ok(());
        }
        if self.volume.is_read_only() {
            inode.forget_inline_bytes();
            return Ok(());
        }
        self.data.delete_if_unused(inode)?;
        if inode.lifecycle.lock().gone {
            return Ok(());
        }
        if let Some(file) = inode.file() {
            file.usage.closed_ms.store(self.volume.elapsed_ms().max(1), Ordering::Relaxed);
            self.data.note_closed(inode, file);
            if wait == Wait::Allowed {
                self.data.learn_allocation_at_close(inode, file);
            }
        }
        self.data.flush_times(inode)?;
        self.data.flush_soon_if_rewritten(inode);
        if inode.lifecycle.lock().handles == 0 {
            inode.forget_inline_bytes();
        }
        Ok(())
    }

    pub(crate) fn sync(&self, caller: &Caller, handle: HandleId, kind: SyncKind) -> Result<()> {
        self.check_may_wait(caller)?;
        let handle = self.data.handles.get(handle)?;
        if self.volume.is_read_only() {
            return Ok(());
        }
        let file = file_of(&handle)?;
        // Times of plain writes follow within the flush interval (docs/design/0002): a record for each fsync would
        // double its cost. An unclean stop takes them from the object.
        let _ = kind;
        self.data.sync_for_program(&handle.inode, file, &handle.error_seen)
    }

    pub(crate) fn allocate(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        length: u64,
        kind: AllocateKind,
    ) -> Result<()> {
        self.check_may_wait(caller)?;
        let handle = self.data.handles.get(handle)?;
        if !handle.options.write {
            return Err(Errno::EBADF.into());
        }
        self.volume.check_writable()?;
        if length == 0 {
            return Err(Errno::EINVAL.into());
        }
        let file = file_of(&handle)?;
        check_allocation(&handle.inode, kind)?;
        self.drop_capabilities(caller, &handle.inode)?;
        self.data.allocate_file(&handle.inode, file, offset, length, kind)?;
        self.note_modified(caller, &handle.inode);
        if handle.options.synchronous {
            self.data.sync_for_program(&handle.inode, file, &handle.error_seen)?;
        }
        Ok(())
    }

    pub(crate) fn seek(&self, handle: HandleId, offset: u64, target: crate::SeekTarget) -> Result<u64> {
        let handle = self.data.handles.get(handle)?;
        self.data.seek_file(&handle.inode, file_of(&handle)?, offset, target)
    }

    /// Copies bytes between two files, or within one where the ranges do not overlap. Holes stay holes at the end of a
    /// step; bytes are read and written as by any other program.
    pub(crate) fn copy_range(
        &self,
        caller: &Caller,
        source: (HandleId, u64),
        target: (HandleId, u64),
        length: u64,
    ) -> Result<u64> {
        self.check_may_wait(caller)?;
        let (from, to) = (self.data.handles.get(source.0)?, self.data.handles.get(target.0)?);
        if !from.options.read || !to.options.write || to.options.append {
            return Err(Errno::EBADF.into());
        }
        self.volume.check_writable()?;
        check_not_immutable(&to.inode)?;
        if target.1 > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        // As the kernel does: cut at the end of the source first, and only then look for an overlap.
        let source_file = file_of(&from)?;
        self.data.ensure_size(&from.inode, source_file)?;
        let length = length.min(source_file.size().saturating_sub(source.1));
        let overlaps = source.1 < target.1.saturating_add(length) && target.1 < source.1.saturating_add(length);
        if from.inode.ino == to.inode.ino && overlaps {
            return Err(Errno::EINVAL.into());
        }
        if length > 0 {
            self.drop_capabilities(caller, &to.inode)?;
        }
        let length = length.min(COPY_MAX);
        let mut buffer = vec![0; COPY_STEP.min(usize::try_from(length).unwrap_or(COPY_STEP))];
        let mut copied = 0;
        while copied < length {
            let step = usize::try_from(length - copied).unwrap_or(COPY_STEP).min(COPY_STEP);
            let (from_offset, to_offset) = (source.1 + copied, target.1 + copied);
            let outcome = self.copy_step(&from, from_offset, &to, to_offset, &mut buffer[..step], caller.stream);
            match outcome {
                Ok(0) => break,
                Ok(count) => copied += count as u64,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if copied > 0 {
            self.data.note_accessed(&from.inode);
            self.note_modified(caller, &to.inode);
        }
        if to.options.synchronous {
            self.data.sync_for_program(&to.inode, file_of(&to)?, &to.error_seen)?;
        }
        Ok(copied)
    }

    fn copy_step(
        &self,
        from: &Handle,
        from_offset: u64,
        to: &Handle,
        to_offset: u64,
        buffer: &mut [u8],
        stream: StreamId,
    ) -> Result<usize> {
        let count =
            self.data.read_file(&from.inode, file_of(from)?, from_offset, buffer, Wait::Allowed, Keeper::Tier)?;
        let data = &buffer[..count];
        let origin = WriteOrigin::Call;
        let request = WriteRequest { offset: to_offset, data, append: false, wait: Wait::Allowed, stream, origin };
        self.data.write_file(&to.inode, file_of(to)?, request).map(|(_, written)| written)
    }
}
