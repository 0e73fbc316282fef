//! Putting what runs ahead of its record into the log: times, and the bytes of inline files.

use std::sync::atomic::Ordering;

use polymux_records::caller::Wait;
use polymux_records::error::Result;
use polymux_volume::inode::Inode;

use crate::data_path::DataPath;

impl DataPath {
    /// Puts times, and inline bytes, that run ahead of the record into the log.
    pub fn flush_times(&self, inode: &Inode) -> Result<()> {
        if !inode.times_dirty.load(Ordering::Acquire) || self.volume.is_read_only() {
            return Ok(());
        }
        if inode.lifecycle.lock().gone {
            return Ok(());
        }
        if let Some(file) = inode.file() {
            self.log_inline(inode, file, Wait::Allowed)?;
            if !inode.times_dirty.load(Ordering::Acquire) {
                return Ok(());
            }
        }
        self.volume.put_with_state(inode, |_| Ok(()))
    }

    /// Puts everything that runs ahead of its record into the log and makes every transaction so far durable.
    pub fn flush_all_records(&self) -> Result<()> {
        self.put_all_records()?;
        self.volume.flush_through(self.volume.metadata.committed())
    }

    /// Puts everything that runs ahead of its record into the log; durable with the next flush.
    pub fn put_all_records(&self) -> Result<()> {
        for inode in self.volume.inodes.all() {
            self.flush_times(&inode)?;
        }
        Ok(())
    }
}
