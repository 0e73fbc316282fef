//! `SEEK_DATA` and `SEEK_HOLE` across tiers.

use polymux_records::error::Result;
use polymux_tier::{SeekTarget, TierError, Wait};
use polymux_types::{Block, Errno};
use polymux_volume::inode::{FileState, Inode, reference_of};

use super::short::{Lost, is_object_short, lost_around};
use crate::data_path::DataPath;

impl DataPath {
    /// The first byte at or after `offset` that is data, or a hole; the end of the file is a hole. Lost bytes count as data, so that a
    /// program that copies the file gets the error.
    pub fn seek_file(&self, inode: &Inode, file: &FileState, offset: u64, target: SeekTarget) -> Result<u64> {
        match self.seek_runs(inode, file, offset, target) {
            Err(error) if is_object_short(&error) => {
                self.note_short_objects(inode, file)?;
                self.seek_runs(inode, file, offset, target)
            }
            outcome => outcome,
        }
    }

    fn seek_runs(&self, inode: &Inode, file: &FileState, offset: u64, target: SeekTarget) -> Result<u64> {
        self.ensure_size(inode, file)?;
        let _shared = file.barrier.read();
        let size = file.size();
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        if file.is_inline() {
            // All of it counts as data.
            return Ok(if target == SeekTarget::Data { offset } else { size });
        }
        let mut position = offset;
        while position < size {
            let (run, entry, lost) = {
                let layout = file.layout.read();
                let run = layout.map.run_at(Block::holding(position));
                let entry = layout.owner_of(&run).map(|(_, entry)| entry);
                (run, entry, lost_around(&layout.damaged, position))
            };
            let mut end = run.end.first_byte().min(size);
            match (lost, target) {
                (Lost::Here { .. }, SeekTarget::Data) => return Ok(position),
                (Lost::Here { until }, SeekTarget::Hole) => {
                    position = until;
                    continue;
                }
                (Lost::From(start), _) => end = end.min(start),
                (Lost::Nothing, _) => {}
            }
            let found = match &entry {
                Some(entry) => self.seek_object(entry, position, end, target)?,
                None => (target == SeekTarget::Hole).then_some(position),
            };
            if let Some(found) = found {
                return Ok(found);
            }
            position = end;
        }
        match target {
            SeekTarget::Hole => Ok(size),
            SeekTarget::Data => Err(Errno::ENXIO.into()),
        }
    }

    /// The first allocated blocks of a range of an object; see [`Tier::allocated`](polymux_tier::Tier::allocated).
    pub fn allocated_in(
        &self,
        entry: &polymux_records::store::ObjectEntry,
        range: std::ops::Range<u64>,
    ) -> Result<Option<std::ops::Range<u64>>> {
        self.volume.tiers.by_id(entry.tier)?.run(|tier| tier.allocated(reference_of(entry), range.start, range.end))
    }

    /// The first match in `start..end` of one object; beyond the object's own end is a hole.
    pub(super) fn seek_object(
        &self,
        entry: &polymux_records::store::ObjectEntry,
        start: u64,
        end: u64,
        target: SeekTarget,
    ) -> Result<Option<u64>> {
        let handle = self.volume.tiers.by_id(entry.tier)?;
        let tier = handle.get()?;
        let reference = reference_of(entry);
        match tier.seek(reference, start, target) {
            Ok(Some(found)) => {
                if target == SeekTarget::Hole && found < end {
                    // The end of an object counts as a hole.
                    self.check_object_end(entry, found, Wait::Allowed)?;
                }
                Ok((found < end).then_some(found))
            }
            Ok(None) if target == SeekTarget::Hole => {
                self.check_object_end(entry, start, Wait::Allowed)?;
                let stat = handle.run(|tier| tier.stat(reference))?;
                let hole = stat.size.max(start);
                Ok((hole < end).then_some(hole))
            }
            // Behind the last byte of data, or of the object.
            Ok(None) => self.check_object_end(entry, start, Wait::Allowed).map(|()| None),
            // Without the answer all of it counts as data, which is always allowed.
            Err(TierError::Unsupported(_)) => Ok((target == SeekTarget::Data).then_some(start)),
            Err(error) => Err(handle.note_error(error)),
        }
    }
}
