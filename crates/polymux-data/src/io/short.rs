//! Objects that are shorter than they are known to have been: the bytes behind their end are lost.
//!
//! Invariants:
//! * Bytes behind the end of an object are no hole where the object is known to have been longer (`Layout::lose_end`). No tier is
//!   asked for that while reads come back whole.
//! * A lost range becomes a damaged range, as after a failed sync: it reads as EIO until it is written, cut off or accepted.
//! * The loss is recorded with the file held alone, so that the range is not written and the file not cut meanwhile.

use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::{TierError, Wait};
use polymux_types::Block;
use polymux_volume::inode::{FileState, Inode, reference_of};

use crate::data_path::DataPath;

/// Whether a call failed because an object lost its end.
pub(super) fn is_object_short(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ObjectShort { .. })
}

impl DataPath {
    /// Fails if the bytes behind `end` are not a hole but lost, because the object that ends there was longer.
    pub fn check_object_end(&self, entry: &ObjectEntry, end: u64, wait: Wait) -> Result<()> {
        if end >= entry.known_length {
            return Ok(());
        }
        if wait == Wait::Never {
            // A read that must not wait may end early for other reasons.
            return Err(ErrorKind::WouldBlock.into());
        }
        self.check_object_length(entry)
    }

    /// Asks for the length of an object, where something is known of it.
    pub fn check_object_length(&self, entry: &ObjectEntry) -> Result<()> {
        if entry.known_length == 0 {
            return Ok(());
        }
        let stat = self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(entry)))?;
        if stat.size < entry.known_length {
            return Err(ErrorKind::ObjectShort { tier: entry.tier, object: entry.object }.into());
        }
        Ok(())
    }

    /// Records the bytes that the objects of a file lost at their ends. Called without any lock of the file.
    pub fn note_short_objects(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        let _alone = file.lock_alone();
        let _append = file.append.lock();
        if file.is_changed_directly() {
            // The object says where such a file ends, and its known length may be out of date.
            return Ok(());
        }
        let short = self.short_objects(file)?;
        if !short.is_empty() {
            // Where the lost bytes were the end of the file, only the object knew of them.
            self.settle(inode, file)?;
            self.record_lost_ends(inode, file, &short)?;
        }
        file.allocation.clear_short();
        Ok(())
    }

    /// Slots whose objects are shorter than they were, and where they end now.
    fn short_objects(&self, file: &FileState) -> Result<Vec<(u8, u64)>> {
        let objects = file.layout.read().objects.clone();
        let mut short = Vec::new();
        for (slot, entry) in (0_u8..).zip(&objects) {
            if entry.known_length == 0 {
                continue;
            }
            match self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.stat(reference_of(entry))) {
                Ok(stat) if stat.size < entry.known_length => short.push((slot, stat.size)),
                Ok(_) => {}
                // Each read reports an object that is missing altogether.
                Err(error) if matches!(error.kind(), ErrorKind::Tier { source: TierError::NotFound(_), .. }) => {}
                Err(error) if error.is_about_tier() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(short)
    }

    fn record_lost_ends(&self, inode: &Inode, file: &FileState, short: &[(u8, u64)]) -> Result<()> {
        let _no_sync = file.durability.sync_gate.write();
        self.volume.damaged_files.lock().files.insert(inode.ino);
        let lost = self.volume.transact(&[inode], |transaction| {
            let mut lost = Vec::new();
            if inode.lifecycle.lock().gone {
                return Ok(lost);
            }
            let mut layout = file.layout.write();
            for (slot, end) in short {
                let entry = layout.object(*slot);
                lost.push((entry, *end, layout.lose_end(*slot, *end)));
            }
            file.raise_error_sequence(&mut layout);
            drop(layout);
            transaction.put_inode(inode);
            Ok(lost)
        })?;
        for (entry, end, ranges) in &lost {
            let bytes: u64 = ranges.iter().map(|(from, to)| to - from).sum();
            log::error!(
                "inode {}: object {:016x} of tier {} ends at byte {end} and was longer: {bytes} bytes are lost",
                inode.ino,
                entry.object,
                entry.tier
            );
        }
        self.volume.flush_inode(inode)
    }
}

/// Damage at a position and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The byte itself, and all up to another one.
    Here {
        until: u64,
    },
    /// The first damage is further behind.
    From(u64),
    Nothing,
}

/// Looks at damaged ranges, which ascend.
pub(super) fn lost_around(damaged: &[(u64, u64)], position: u64) -> Lost {
    match damaged.iter().find(|(_, to)| position < *to) {
        Some((from, to)) if *from <= position => Lost::Here { until: *to },
        Some((from, _)) => Lost::From(*from),
        None => Lost::Nothing,
    }
}

/// The first byte of the block that a range begins in.
pub(super) fn block_begin(offset: u64) -> u64 {
    Block::holding(offset).first_byte()
}
