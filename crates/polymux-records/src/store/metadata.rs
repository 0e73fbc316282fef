//! Typed access to the store, and number ranges.
//!
//! Invariant of number ranges: no number is handed out before the upper end of its range is durable; after an unclean
//! stop the rest of the range is skipped, so that no number is ever used twice (DESIGN section 4).

use std::sync::Arc;

use polymux_meta::{Batch, CopySync, MetadataStore, Notes, Room, Sequence, StoreError};
use polymux_types::{Block, Ino, ObjectId, TierId};

use super::boot_format;
use super::directory_format::{Dirent, PositionEntry};
use super::disowned_format::DisownedRecord;
use super::extent_format::ExtentRecord;
use super::frame::{Reader, Writer};
use super::heat_format::ClockRecord;
use super::inline_format;
use super::inode_format::InodeRecord;
use super::keys::{self, NumberKind};
use super::number_range::{AheadRange, NumberRange, RangeSource};
use super::profile_format;
use super::stamp_mark_format::StampMark;
use super::volume_format::{EpochRecord, TierRecord, VolumeRecord};
use crate::attributes::DirectoryEntry;
use crate::error::{Error, Result};
use crate::parts::BootId;
use crate::report::TierProfile;

/// Numbers made durable at once. One flush for this many creations.
const RANGE_SIZE: u64 = 65_536;

/// Entries read from the store in one go while walking a range.
const WALK_STEP: usize = 1024;

/// A heat record as it is: inode, chunk and value.
pub(crate) type HeatEntry = ((Ino, u32), Vec<u8>);

/// The store, spoken to in records.
pub struct Metadata {
    store: Arc<dyn MetadataStore>,
    /// Notes that outlive the process.
    notes: Option<Arc<Notes>>,
    only_the_daemon_died: bool,
    inos: NumberRange,
    objects: NumberRange,
}

impl Metadata {
    /// Over a store that is open.
    pub fn new(store: Arc<dyn MetadataStore>) -> Self {
        let (notes, only_the_daemon_died) = (store.notes(), store.only_the_process_died());
        Self { store, notes, only_the_daemon_died, inos: NumberRange::default(), objects: NumberRange::default() }
    }

    /// Notes of data that is not logged, where there is memory that outlives the process.
    pub fn notes(&self) -> Option<&Notes> {
        self.notes.as_deref()
    }

    /// The last daemon died, and nothing else: whatever it was asked to do, and answered, is there (docs/design/0023).
    pub fn only_the_daemon_died(&self) -> bool {
        self.only_the_daemon_died
    }

    /// Notes that all state that the last daemon left in memory is taken over.
    pub fn survivors_are_taken_up(&self) {
        self.store.survivors_are_taken_up();
    }

    /// The store itself, for walks over all records.
    pub fn store(&self) -> &dyn MetadataStore {
        self.store.as_ref()
    }

    /// Applies a batch as a whole; durable after [`Metadata::sync`] through the returned sequence.
    #[inline]
    pub fn commit(&self, batch: Batch) -> Result<Sequence> {
        Ok(self.store.commit(batch)?)
    }

    /// Makes all transactions up to one durable.
    #[inline]
    pub fn sync(&self, through: Sequence) -> Result<()> {
        Ok(self.store.sync(through)?)
    }

    /// The last transaction.
    #[inline]
    pub fn committed(&self) -> Sequence {
        self.store.committed()
    }

    /// The last transaction that is durable.
    #[inline]
    pub fn durable(&self) -> Sequence {
        self.store.durable()
    }

    /// Waits for the second copy; see [`MetadataStore::sync_copy`].
    pub fn sync_copy(&self, through: Sequence) -> Result<CopySync> {
        Ok(self.store.sync_copy(through)?)
    }

    /// Gives the second copy up; see [`MetadataStore::abandon_copy`].
    pub fn abandon_copy(&self, raised: Sequence) -> CopySync {
        self.store.abandon_copy(raised)
    }

    /// Makes everything durable and leaves nothing to replay.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(self.store.checkpoint()?)
    }

    /// Why nothing can be committed any more, where an error stopped the store.
    pub fn stopped(&self) -> Option<StoreError> {
        self.store.stopped()
    }

    /// Whether metadata may grow.
    pub fn room(&self) -> Room {
        self.store.room()
    }

    /// Bytes that the store takes on its file system.
    pub fn bytes_used(&self) -> u64 {
        self.store.bytes_used()
    }

    /// The volume record.
    pub fn volume(&self) -> Result<Option<VolumeRecord>> {
        self.store.get(&keys::volume())?.map(|record| VolumeRecord::decode(&record)).transpose()
    }

    /// The epoch record.
    pub fn epoch(&self) -> Result<Option<EpochRecord>> {
        self.store.get(&keys::epoch())?.map(|record| EpochRecord::decode(&record)).transpose()
    }

    /// The records of all tiers, by number.
    pub fn tiers(&self) -> Result<Vec<(TierId, TierRecord)>> {
        let mut tiers = Vec::new();
        self.walk(keys::tiers(), |key, value| {
            let number = key.get(5..7).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes);
            let id = TierId(number.ok_or_else(|| Error::corrupted("the tier table", "a key is malformed"))?);
            tiers.push((id, TierRecord::decode(id, value)?));
            Ok(())
        })?;
        Ok(tiers)
    }

    /// The first tier number that no tier ever had.
    pub fn next_tier(&self) -> Result<u64> {
        let after_largest = self.tiers()?.iter().map(|(id, _)| u64::from(id.0) + 1).max().unwrap_or(0);
        let key = keys::number_range(NumberKind::Tier);
        // Until a tier joins or leaves there is no record.
        let recorded = if self.store.get(&key)?.is_some() { self.number_range_end(NumberKind::Tier)? } else { 0 };
        Ok(recorded.max(after_largest))
    }

    /// The record of an inode.
    pub fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>> {
        self.store.get(&keys::inode(ino))?.map(|record| InodeRecord::decode(ino, &record)).transpose()
    }

    /// The entry of a name in a directory.
    pub fn dirent(&self, parent: Ino, name: &[u8]) -> Result<Option<Dirent>> {
        self.store.get(&keys::dirent(parent, name))?.map(|record| Dirent::decode(&record)).transpose()
    }

    /// Entries of a directory after a cookie.
    pub fn directory_entries(&self, parent: Ino, after: u64, limit: usize) -> Result<Vec<DirectoryEntry>> {
        let (from, to) = keys::positions_after(parent, after);
        let mut entries = Vec::new();
        for (key, value) in self.store.range(&from, &to, limit)? {
            let cookie = keys::cookie_of_position_key(&key)
                .ok_or_else(|| Error::corrupted("a directory position", "its key is malformed"))?;
            let PositionEntry { ino, kind, name } = PositionEntry::decode(&value)?;
            entries.push(DirectoryEntry { cookie, ino, kind, name });
        }
        Ok(entries)
    }

    /// One of the names of an inode.
    pub fn any_name(&self, ino: Ino) -> Result<Option<(Ino, Vec<u8>)>> {
        let (from, to) = keys::parent_names(ino);
        let first = self.store.range(&from, &to, 1)?;
        Ok(first.first().and_then(|(key, _)| keys::parent_and_name_of_key(key)))
    }

    /// An extended attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.store.get(&keys::xattr(ino, name))?.map(|record| decode_xattr(&record)).transpose()
    }

    /// Every inode with an attribute of this name, and its value. Walks all attributes.
    pub fn pins(&self, name: &[u8]) -> Result<Vec<(Ino, String)>> {
        let mut pins = Vec::new();
        self.walk(keys::all_xattrs(), |key, value| {
            if let Some((ino, found)) = keys::parts_of_xattr_key(key)
                && found == name
            {
                pins.push((ino, String::from_utf8_lossy(&decode_xattr(value)?).into_owned()));
            }
            Ok(())
        })?;
        Ok(pins)
    }

    /// Looks for an attribute of this name among the next `limit` ones after a key, or from the first on where that is
    /// empty. Returns whether one was found, and the last key that was looked at where there may be more.
    pub fn look_for_xattr(&self, name: &[u8], after: &[u8], limit: usize) -> Result<(bool, Option<Vec<u8>>)> {
        let (mut from, to) = keys::all_xattrs();
        if !after.is_empty() {
            from = keys::Key::from_slice(after);
            from.push(0);
        }
        let entries = self.store.range(&from, &to, limit)?;
        let is_found = entries.iter().any(|(key, _)| keys::parts_of_xattr_key(key).is_some_and(|(_, of)| of == name));
        let is_last = entries.len() < limit;
        Ok((is_found, entries.into_iter().last().map(|(key, _)| key).filter(|_| !is_last)))
    }

    /// Names of the extended attributes of an inode.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.walk(keys::xattrs(ino), |key, _| {
            names.extend(keys::name_of_xattr_key(key));
            Ok(())
        })?;
        Ok(names)
    }

    /// The content of an inline file that is `size` bytes long.
    pub fn inline_data(&self, ino: Ino, size: u64) -> Result<Vec<u8>> {
        match self.store.get(&keys::inline(ino))? {
            Some(record) => inline_format::decode(ino, size, &record),
            None => Err(Error::corrupted(format!("the inline data of inode {ino}"), "it is missing")),
        }
    }

    /// Up to `limit` inodes after a number that have inline data, in ascending order, and how many bytes each has.
    pub fn inline_files(&self, after: Ino, limit: usize) -> Result<Vec<(Ino, u64)>> {
        let (from, to) = keys::inline_after(after);
        let entries = self.store.range(&from, &to, limit)?;
        let file = |(key, record): &(Vec<u8>, Vec<u8>)| {
            let ino = keys::ino_of_inode_key(key);
            let ino = ino.ok_or_else(|| Error::corrupted("inline data", "its key is malformed"))?;
            // One that is damaged says so where it is read.
            Ok((ino, inline_format::content_length(ino, record).unwrap_or(0)))
        };
        entries.iter().map(file).collect()
    }

    /// Exceptions of the block lookup table: end block and extent.
    pub fn extents(&self, ino: Ino) -> Result<Vec<(Block, ExtentRecord)>> {
        let mut extents = Vec::new();
        self.walk(keys::extents(ino), |key, value| {
            let end =
                keys::end_block_of_key(key).ok_or_else(|| Error::corrupted("an extent", "its key is malformed"))?;
            extents.push((end, ExtentRecord::decode(value)?));
            Ok(())
        })?;
        Ok(extents)
    }

    /// End blocks of the exceptions that are on record, whatever they say.
    pub fn extent_ends(&self, ino: Ino) -> Result<Vec<Block>> {
        let mut ends = Vec::new();
        self.walk(keys::extents(ino), |key, _| {
            ends.extend(keys::end_block_of_key(key));
            Ok(())
        })?;
        Ok(ends)
    }

    /// All pending frees.
    pub fn disowned(&self) -> Result<Vec<DisownedRecord>> {
        let mut records = Vec::new();
        self.walk(keys::all_disowned(), |key, value| {
            records.push(DisownedRecord::decode(key, value)?);
            Ok(())
        })?;
        Ok(records)
    }

    /// Inodes without a name.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        let mut inos = Vec::new();
        self.walk(keys::orphans(), |key, _| {
            inos.extend(keys::ino_of_orphan_key(key));
            Ok(())
        })?;
        Ok(inos)
    }

    /// Up to `limit` heat records from a place on, as they are: one that does not verify is a lost hint, not an error.
    pub fn heat_records(&self, from: Option<(Ino, u32)>, limit: usize) -> Result<Vec<HeatEntry>> {
        let (from, to) = keys::heat_from(from);
        let entries = self.store.range(&from, &to, limit)?;
        let place = |(key, value): (Vec<u8>, Vec<u8>)| {
            let place = keys::parts_of_heat_key(&key);
            Ok((place.ok_or_else(|| Error::corrupted("a heat record", "its key is malformed"))?, value))
        };
        entries.into_iter().map(place).collect()
    }

    /// The logical clock as it was saved last; `None` in a volume that never had one.
    pub fn logical_clock(&self) -> Result<Option<ClockRecord>> {
        self.store.get(&keys::logical_clock())?.map(|record| ClockRecord::decode(&record)).transpose()
    }

    /// The profiles of the devices of tiers. A record that does not verify is a lost hint, not an error.
    pub fn profiles(&self) -> Result<Vec<(TierId, TierProfile)>> {
        let mut profiles = Vec::new();
        self.walk(keys::profiles(), |key, value| {
            if let (Some(id), Ok(profile)) = (keys::tier_of_key(key), profile_format::decode(value)) {
                profiles.push((id, profile));
            }
            Ok(())
        })?;
        Ok(profiles)
    }

    /// Commits the profile of the device of a tier.
    pub fn put_profile(&self, id: TierId, profile: &TierProfile) -> Result<Sequence> {
        let mut batch = Batch::new();
        batch.put(keys::profile(id), profile_format::encode(profile));
        self.commit(batch)
    }

    /// The boot of a kernel that may use objects since an earlier mount.
    pub fn boot_with_objects(&self) -> Result<Option<BootId>> {
        self.store.get(&keys::boot_with_objects())?.map(|record| boot_format::decode(&record)).transpose()
    }

    /// How far descriptions follow; `None` where nothing is known of them. One that does not verify says nothing.
    pub fn stamp_mark(&self) -> Result<Option<StampMark>> {
        Ok(self.store.get(&keys::stamp_mark())?.and_then(|record| StampMark::decode(&record).ok()))
    }

    /// Directories that were renamed and below which not everything is described yet.
    pub fn renamed_directories(&self) -> Result<Vec<Ino>> {
        let mut inos = Vec::new();
        self.walk(keys::renamed_directories(), |key, _| {
            inos.extend(keys::ino_of_inode_key(key));
            Ok(())
        })?;
        Ok(inos)
    }

    /// Commits the logical clock.
    pub fn put_logical_clock(&self, record: &ClockRecord) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(keys::logical_clock(), record.encode());
        self.commit(batch).map(|_| ())
    }

    /// Visits every inode record.
    pub fn for_each_inode(&self, mut visit: impl FnMut(Ino, InodeRecord) -> Result<()>) -> Result<()> {
        self.walk(keys::inodes(), |key, value| {
            let ino =
                keys::ino_of_inode_key(key).ok_or_else(|| Error::corrupted("an inode", "its key is malformed"))?;
            visit(ino, InodeRecord::decode(ino, value)?)
        })
    }

    /// The first `limit` inodes with a number above this one.
    pub fn inodes_after(&self, after: Ino, limit: usize) -> Result<Vec<(Ino, InodeRecord)>> {
        let (_, to) = keys::inodes();
        let mut from = keys::inode(after);
        from.push(0);
        let decode = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let ino =
                keys::ino_of_inode_key(key).ok_or_else(|| Error::corrupted("an inode", "its key is malformed"))?;
            Ok((ino, InodeRecord::decode(ino, value)?))
        };
        self.store.range(&from, &to, limit)?.iter().map(decode).collect()
    }

    /// As [`Self::inodes_after`]; a record that cannot be read is returned as its error.
    pub fn inode_records_after(&self, after: Ino, limit: usize) -> Result<Vec<(Ino, Result<InodeRecord>)>> {
        let (_, to) = keys::inodes();
        let mut from = keys::inode(after);
        from.push(0);
        let decode = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let ino = keys::ino_of_inode_key(key);
            let ino = ino.ok_or_else(|| Error::corrupted("an inode", "its key is malformed"))?;
            Ok((ino, InodeRecord::decode(ino, value)))
        };
        self.store.range(&from, &to, limit)?.iter().map(decode).collect()
    }

    fn walk(&self, range: keys::KeyRange, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let (mut from, to) = range;
        loop {
            let entries = self.store.range(&from, &to, WALK_STEP)?;
            for (key, value) in &entries {
                visit(key, value)?;
            }
            let Some((last, _)) = entries.last().filter(|_| entries.len() == WALK_STEP) else {
                return Ok(());
            };
            from = keys::Key::from_slice(last);
            from.push(0);
        }
    }

    /// A new inode number. `wait` returns once a transaction is durable wherever the volume can be started from.
    pub fn allocate_ino(&self, wait: impl Fn(Sequence) -> Result<()>) -> Result<Ino> {
        self.inos.allocate(&StoredRange { metadata: self, kind: NumberKind::Ino, wait }).map(Ino)
    }

    /// A new object id; `wait` as in [`Metadata::allocate_ino`].
    pub fn allocate_object(&self, wait: impl Fn(Sequence) -> Result<()>) -> Result<ObjectId> {
        self.objects.allocate(&StoredRange { metadata: self, kind: NumberKind::Object, wait }).map(ObjectId)
    }

    fn reserve_range(&self, kind: NumberKind) -> Result<AheadRange> {
        let start = self.number_range_end(kind)?;
        let end = start.checked_add(RANGE_SIZE).ok_or_else(|| Error::corrupted("a number range", "it is used up"))?;
        let mut batch = Batch::new();
        put_number_range_end(&mut batch, kind, end);
        let sequence = self.commit(batch)?;
        Ok(AheadRange { start, end, sequence })
    }

    /// The first number that was never handed out nor reserved.
    pub fn number_range_end(&self, kind: NumberKind) -> Result<u64> {
        let record = self.store.get(&keys::number_range(kind))?;
        let record = record.ok_or_else(|| Error::corrupted("a number range", "its record is missing"))?;
        let mut reader = Reader::new("a number range", &record, 1)?;
        let end = reader.u64()?;
        reader.finish()?;
        Ok(end)
    }
}

/// The number ranges of one kind, as the store keeps them.
struct StoredRange<'a, W> {
    metadata: &'a Metadata,
    kind: NumberKind,
    wait: W,
}

impl<W: Fn(Sequence) -> Result<()>> RangeSource for StoredRange<'_, W> {
    fn reserve_ahead(&self) -> Option<AheadRange> {
        // A failure here is retried, and reported, when the range is needed.
        self.metadata.reserve_range(self.kind).ok()
    }

    fn reserve(&self, ahead: Option<AheadRange>) -> Result<(u64, u64)> {
        let range = ahead.map_or_else(|| self.metadata.reserve_range(self.kind), Ok)?;
        (self.wait)(range.sequence)?;
        Ok((range.start, range.end))
    }
}

/// Has all objects described anew at the next mount: for a store that may be older than the descriptions, because it was made
/// from its second copy. Durable when it returns.
///
/// # Errors
///
/// The store cannot be written.
pub fn describe_all_anew(store: &dyn MetadataStore) -> Result<()> {
    let mut batch = Batch::new();
    batch.delete(keys::stamp_mark());
    let sequence = store.commit(batch)?;
    Ok(store.sync(sequence)?)
}

/// Adds the reservation of all numbers below `end`.
pub fn put_number_range_end(batch: &mut Batch, kind: NumberKind, end: u64) {
    let mut writer = Writer::new(1);
    writer.u64(end);
    batch.put(keys::number_range(kind), writer.finish());
}

fn decode_xattr(record: &[u8]) -> Result<Vec<u8>> {
    let mut reader = Reader::new("an extended attribute", record, 1)?;
    let value = reader.bytes()?;
    reader.finish()?;
    Ok(value)
}

/// Adds the setting of an extended attribute.
pub fn put_xattr(batch: &mut Batch, ino: Ino, name: &[u8], value: &[u8]) {
    let mut writer = Writer::new(1);
    writer.bytes(value);
    batch.put(keys::xattr(ino, name), writer.finish());
}
