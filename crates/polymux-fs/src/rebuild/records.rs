//! From placed files and directories to the records of a volume.

use polymux_data::namespace::COOKIE_FIRST;
use polymux_meta::{Batch, MetadataStore};
use polymux_records::attributes::FileKind;
use polymux_records::error::{Error, Result};
use polymux_records::parts::BootId;
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::volume_format::FORMAT_VERSION;
use polymux_records::store::{
    Dirent, EntryCount, EpochRecord, ExtentRecord, FileRecord, InodeBody, InodeRecord, ObjectEntry, PositionEntry,
    Shutdown, TierRecord, TierStanding, VolumeRecord, boot_format, put_number_range_end,
};
use polymux_tier::{ObjectRef, ObjectStamp, Wait};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Epoch, Ino, ObjectId, Timestamp, VolumeId};

use super::place::PlacedFile;
use super::ranges::{self, TierObject};
use super::scan::Scan;
use super::tree::{Directory, Tree};
use super::{Meter, Numbers, RebuildSource, SourceTier};

/// Changes that are committed together.
const BATCH_CHANGES_MAX: usize = 4096;
/// Blocks copied at once.
const COPIED_BLOCKS: u64 = 256;

/// Copies the bytes that are not in the file which needs their object. The copies are described and durable before any
/// record names them; after a crash they are files like others, and another rebuild finds them.
pub(super) fn copy_versions(
    tiers: &[SourceTier<'_>],
    volume: VolumeId,
    placed: &mut [PlacedFile],
    numbers: &mut Numbers,
    now: Timestamp,
) -> Result<()> {
    for file in placed {
        let Some(copy) = file.to_copy.take() else { continue };
        let tier = &tiers[copy.tier];
        let failed = |error| Error::tier(tier.label.tier, error);
        let id = ObjectId(numbers.object);
        numbers.object += 1;
        let bucket = Bucket(u16::try_from(id.0 % u64::from(BUCKETS)).expect("a remainder below the buckets fits"));
        let target = ObjectRef::new(id, bucket);
        tier.tier.create(target).map_err(failed)?;
        tier.tier.stamp(target, &stamp_of(volume, file, now)).map_err(failed)?;
        let source = TierObject { tier: tier.tier, object: copy.source };
        for (start, end) in copy.ranges {
            let mut block = start;
            while block < end {
                let count = COPIED_BLOCKS.min(end - block);
                let mut bytes = ranges::read_blocks(source, block, count).map_err(failed)?;
                let left = usize::try_from(file.file.size.saturating_sub(block.first_byte())).unwrap_or(usize::MAX);
                bytes.truncate(left);
                write_all(tier, target, block.first_byte(), &bytes)?;
                block = block + count;
            }
        }
        tier.tier.sync(target).map_err(failed)?;
        file.file.objects = vec![ObjectEntry::new(tier.label.tier, id, bucket)];
    }
    Ok(())
}

fn write_all(tier: &SourceTier<'_>, object: ObjectRef, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let written = tier.tier.write(object, offset + done as u64, &bytes[done..], Wait::Allowed);
        done += written.map_err(|error| Error::tier(tier.label.tier, error))?;
    }
    Ok(())
}

fn stamp_of(volume: VolumeId, placed: &PlacedFile, now: Timestamp) -> ObjectStamp {
    ObjectStamp {
        volume,
        ino: placed.file.ino,
        generation: 1,
        mode: FileKind::Regular.type_bits() | placed.file.permissions,
        uid: placed.file.uid,
        gid: placed.file.gid,
        modified: now,
        path: [b"lost+found/".as_slice(), &placed.name].concat(),
        refresh: None,
    }
}

/// State for writing a store.
struct Writing<'a> {
    store: &'a dyn MetadataStore,
    batch: Batch,
    now: Timestamp,
}

impl Writing<'_> {
    fn put(&mut self, key: keys::Key, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.batch.put_with(|bytes| bytes.extend_from_slice(&key), encode);
        if self.batch.len() >= BATCH_CHANGES_MAX { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.store.commit(std::mem::take(&mut self.batch))?;
        Ok(())
    }

    fn directory(&mut self, ino: Ino, directory: &Directory) -> Result<()> {
        let mut cookie = COOKIE_FIRST;
        let mut subdirectories = 0;
        for (name, (child, kind)) in &directory.entries {
            let (ino_of, kind) = (*child, *kind);
            subdirectories += u32::from(kind == FileKind::Directory);
            self.put(keys::dirent(ino, name), |bytes| Dirent { ino: ino_of, kind, cookie }.encode(bytes))?;
            let entry = PositionEntry { ino: ino_of, kind, name };
            self.put(keys::position(ino, cookie), |bytes| entry.encode(bytes))?;
            self.put(keys::parent_name(ino_of, ino, name), |_| {})?;
            cookie += 1;
        }
        let entries = EntryCount::Exact(directory.entries.len() as u64);
        let record = InodeRecord {
            permissions: directory.permissions,
            uid: directory.uid,
            gid: directory.gid,
            links: 2 + subdirectories,
            generation: 1,
            has_access_acl: false,
            has_default_acl: false,
            lacks_xattrs: true,
            attribute_flags: 0,
            accessed: self.now,
            modified: self.now,
            changed: self.now,
            born: self.now,
            body: InodeBody::Directory { parent: directory.parent, next_cookie: cookie, entries },
        };
        self.put(keys::inode(ino), |bytes| record.encode_into(bytes))
    }

    fn file(&mut self, placed: &PlacedFile) -> Result<()> {
        let file = &placed.file;
        for extent in &file.extents {
            let record = ExtentRecord { start_block: extent.start, owner: extent.owner };
            self.put(keys::extent(file.ino, extent.end), |bytes| bytes.extend_from_slice(&record.encode()))?;
        }
        let body = FileRecord {
            size_floor: file.size,
            extenders: 0,
            home: Some(file.home),
            objects: file.objects.clone(),
            error_sequence: 0,
            damaged: Vec::new(),
        };
        let checked = polymux_records::store::inode_format::check_file(&body);
        assert_eq!(checked, Ok(()), "inode {} breaks an invariant before commit", file.ino);
        let record = InodeRecord {
            permissions: file.permissions,
            uid: file.uid,
            gid: file.gid,
            links: 1,
            generation: file.generation,
            has_access_acl: false,
            has_default_acl: false,
            lacks_xattrs: true,
            attribute_flags: 0,
            accessed: file.modified,
            modified: file.modified,
            changed: self.now,
            born: file.modified.min(self.now),
            body: InodeBody::Regular(body),
        };
        self.put(keys::inode(file.ino), |bytes| record.encode_into(bytes))
    }

    /// The records of the volume as a whole, last: without them the store holds no volume.
    fn volume(
        &mut self,
        source: &RebuildSource,
        tiers: &[SourceTier<'_>],
        scan: &Scan,
        numbers: &Numbers,
    ) -> Result<()> {
        let mut tier_max = 0;
        for tier in tiers {
            let record = TierRecord {
                name: tier.name.to_owned(),
                instance: tier.label.instance,
                epoch: tier.label.epoch,
                standing: TierStanding::InService,
            };
            tier_max = tier_max.max(u64::from(tier.label.tier.0));
            self.put(keys::tier(tier.label.tier), |bytes| bytes.extend_from_slice(&record.encode()))?;
        }
        put_number_range_end(&mut self.batch, NumberKind::Ino, numbers.ino);
        put_number_range_end(&mut self.batch, NumberKind::Object, numbers.object);
        put_number_range_end(&mut self.batch, NumberKind::ObjectMark, numbers.object);
        put_number_range_end(&mut self.batch, NumberKind::Tier, tier_max + 1);
        // Above everything that a stamp or a label says, so that stamps to come count more.
        let epoch = EpochRecord { epoch: Epoch(scan.epoch_max + 1), raising: false, shutdown: Shutdown::Unclean };
        self.batch.put(keys::epoch(), epoch.encode());
        // It is unknown which programs use objects of a dead mount.
        self.batch.put(keys::boot_with_objects(), boot_format::encode(BootId::UNKNOWN));
        let record = VolumeRecord { format_version: FORMAT_VERSION, id: source.volume.id, name: source.name.clone() };
        self.batch.put(keys::volume(), record.encode());
        self.commit()
    }
}

/// Everything there is to write.
pub(super) struct Rebuilt<'a> {
    pub(super) scan: &'a Scan,
    pub(super) tree: &'a Tree,
    pub(super) files: &'a [PlacedFile],
    pub(super) numbers: &'a Numbers,
}

/// Writes the records, durably.
pub(super) fn write(
    store: &dyn MetadataStore,
    source: &RebuildSource,
    tiers: &[SourceTier<'_>],
    rebuilt: &Rebuilt<'_>,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let mut writing = Writing { store, batch: Batch::new(), now: source.clock.now() };
    meter.begin("writing records", (rebuilt.tree.len() + rebuilt.files.len()) as u64);
    for (ino, directory) in &rebuilt.tree.directories {
        writing.directory(*ino, directory)?;
        meter.add(1)?;
    }
    for file in rebuilt.files {
        writing.file(file)?;
        meter.add(1)?;
    }
    writing.volume(source, tiers, rebuilt.scan, rebuilt.numbers)?;
    Ok(store.sync(store.committed())?)
}
