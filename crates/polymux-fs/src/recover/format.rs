//! Making a new volume.

use polymux_records::error::Error;
use polymux_records::parts::{NewVolume, Parts, TierPresence, VolumeError};
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::volume_format::FORMAT_VERSION;
use polymux_records::store::{
    EntryCount, EpochRecord, InodeBody, InodeRecord, Metadata, Shutdown, StampMark, TierRecord, TierStanding,
    VolumeRecord, put_number_range_end,
};
use polymux_tier::{CleanStamp, Label, TierError};
use polymux_types::{Epoch, Ino, TierId};
use polymux_volume::inode::{Inode, SizeTrust};
use polymux_volume::transaction::Transaction;

/// Numbers below this one are never handed out; the root directory is 1.
const FIRST_INO: u64 = 16;
const FIRST_OBJECT: u64 = 1;
/// The first epoch: labels and records begin with it.
pub(super) const FIRST_EPOCH: Epoch = Epoch(1);

/// Writes the records of an empty volume, durably, and then the labels.
pub(crate) fn format(parts: &Parts, volume: &NewVolume) -> Result<(), VolumeError> {
    let metadata = Metadata::new(parts.store.clone());
    if metadata.volume()?.is_some() {
        return Err(VolumeError::Store("the metadata store holds a volume already".to_owned()));
    }
    for member in &parts.tiers {
        check_unlabelled(&member.name, &member.presence)?;
    }
    let instances: Vec<u64> = (0..parts.tiers.len() as u64).map(|place| mix(parts.seed, place)).collect();
    let mut transaction = Transaction::default();
    let record = VolumeRecord { format_version: FORMAT_VERSION, id: volume.id, name: parts.name.clone() };
    transaction.batch.put(keys::volume(), record.encode());
    let epoch = EpochRecord { epoch: FIRST_EPOCH, raising: false, shutdown: Shutdown::Clean };
    transaction.batch.put(keys::epoch(), epoch.encode());
    for ((id, member), instance) in (0..).zip(&parts.tiers).zip(&instances) {
        let record = TierRecord {
            name: member.name.clone(),
            instance: *instance,
            epoch: FIRST_EPOCH,
            standing: TierStanding::InService,
        };
        transaction.batch.put(keys::tier(TierId(id)), record.encode());
    }
    put_number_range_end(&mut transaction.batch, NumberKind::Ino, FIRST_INO);
    put_number_range_end(&mut transaction.batch, NumberKind::Object, FIRST_OBJECT);
    put_number_range_end(&mut transaction.batch, NumberKind::ObjectMark, FIRST_OBJECT);
    // There is nothing yet that could be described.
    let mark = StampMark { through: parts.clock.now(), is_complete: true };
    transaction.batch.put(keys::stamp_mark(), mark.encode());
    put_root(&mut transaction, parts, volume)?;
    let sequence = metadata.commit(transaction.batch)?;
    metadata.sync(sequence)?;
    for ((id, member), instance) in (0..).zip(&parts.tiers).zip(&instances) {
        let TierPresence::Present(tier) = &member.presence else { continue };
        let label = Label {
            volume: volume.id,
            volume_name: parts.name.clone(),
            tier: TierId(id),
            tier_name: member.name.clone(),
            instance: *instance,
            epoch: FIRST_EPOCH,
            clean: CleanStamp::Clean { bytes_used: 0 },
        };
        tier.write_label(&label).map_err(|error| Error::tier(TierId(id), error))?;
    }
    Ok(())
}

fn check_unlabelled(name: &str, presence: &TierPresence) -> Result<(), VolumeError> {
    let tier = match presence {
        TierPresence::Present(tier) => tier,
        TierPresence::Missing(reason) => {
            return Err(VolumeError::TierMissing { name: name.to_owned(), reason: reason.clone() });
        }
    };
    match tier.read_label() {
        Err(TierError::Label(_)) => Ok(()),
        Err(error) => Err(VolumeError::Store(format!("tier `{name}`: {error}"))),
        Ok(label) => Err(VolumeError::OtherVolume {
            name: name.to_owned(),
            found: label.volume_name,
            expected: "a new volume".to_owned(),
        }),
    }
}

fn put_root(transaction: &mut Transaction, parts: &Parts, volume: &NewVolume) -> Result<(), Error> {
    let now = parts.clock.now();
    let record = InodeRecord {
        permissions: volume.root_permissions & 0o7777,
        uid: volume.root_uid,
        gid: volume.root_gid,
        links: 2,
        generation: 1,
        has_access_acl: false,
        has_default_acl: false,
        lacks_xattrs: true,
        attribute_flags: 0,
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        body: InodeBody::Directory {
            parent: Ino::ROOT,
            next_cookie: polymux_data::namespace::COOKIE_FIRST,
            entries: EntryCount::Exact(0),
        },
    };
    let inode = Inode::from_record(Ino::ROOT, record, &[], polymux_meta::Sequence(0), SizeTrust::Settled)?;
    if let Some(directory) = inode.directory() {
        transaction.put_directory(&inode, &directory.read());
    }
    Ok(())
}

/// A number that differs from seed to seed and from place to place (SplitMix64, finaliser).
pub(super) fn mix(seed: u64, place: u64) -> u64 {
    let mut value = seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
