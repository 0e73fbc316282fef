//! Pass over extended attributes: their owners, the flags of inodes about them, access control lists, pins.

use std::collections::BTreeMap;

use polymux_data::placement::PIN_ATTRIBUTE;
use polymux_meta::Batch;
use polymux_records::attributes::FileKind;
use polymux_records::error::Result;
use polymux_records::store::describe::decode_bytes;
use polymux_records::store::{InodeRecord, TierRecord, keys};
use polymux_types::{Ino, TierId};
use polymux_volume::access::{ACCESS_ACL, Acl, DEFAULT_ACL};

use super::cursor::first_of;
use super::paths::shown;
use super::{Examination, kinds, put_inode};

/// The attributes of an inode.
#[derive(Default)]
struct Attributes {
    any: bool,
    access: bool,
    default: bool,
    /// Rights of the group are taken with a list that cannot be read: they stood for its mask.
    take_group_rights: bool,
    /// The inode is written anew in any case.
    changed: bool,
}

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let tiers = exam.tier_records()?;
    let mut attributes = exam.cursor(keys::all_xattrs());
    let mut inodes = exam.cursor(keys::inodes());
    while let Some(ino) = first_of([attributes.ino()?, inodes.ino()?]) {
        let record = inodes.next_of(ino)?.map(|(_, value)| InodeRecord::decode(ino, &value));
        let mut has = Attributes::default();
        while let Some((key, value)) = attributes.next_of(ino)? {
            match &record {
                None => stray(exam, ino, &key)?,
                Some(Err(_)) => {}
                Some(Ok(record)) => attribute(exam, ino, record, &key, &value, &tiers, &mut has)?,
            }
        }
        if let Some(Ok(record)) = record {
            flags(exam, ino, record, &has)?;
        }
    }
    Ok(())
}

fn stray(exam: &mut Examination<'_>, ino: Ino, key: &[u8]) -> Result<()> {
    let mut repair = Batch::new();
    repair.delete(key);
    let name = keys::name_of_xattr_key(key).unwrap_or_default();
    let detail = format!("attribute `{}` of inode {ino}", shown(&name));
    exam.found(&kinds::XATTR_STRAY, Some(ino), detail, Some(repair)).map(|_| ())
}

fn attribute(
    exam: &mut Examination<'_>,
    ino: Ino,
    record: &InodeRecord,
    key: &[u8],
    value: &[u8],
    tiers: &BTreeMap<TierId, TierRecord>,
    has: &mut Attributes,
) -> Result<()> {
    let name = keys::name_of_xattr_key(key).unwrap_or_default();
    let Ok(value) = decode_bytes("an extended attribute", value) else {
        // Reported by the pass over all records; its content is unknown.
        has.any = true;
        has.access |= name == ACCESS_ACL;
        has.default |= name == DEFAULT_ACL;
        return Ok(());
    };
    let is_access = name == ACCESS_ACL;
    if is_access || name == DEFAULT_ACL {
        let is_in_place = is_access || record.body.kind() == FileKind::Directory;
        if is_in_place && matches!(Acl::parse(&value), Ok(Some(_))) {
            has.access |= is_access;
            has.default |= !is_access;
            has.any = true;
            return Ok(());
        }
        let mut repair = Batch::new();
        repair.delete(key);
        has.take_group_rights |= is_access;
        has.changed = true;
        exam.found(&kinds::ACL_INVALID, Some(ino), format!("`{}`", shown(&name)), Some(repair))?;
        return Ok(());
    }
    has.any = true;
    if name == PIN_ATTRIBUTE && !tiers.values().any(|tier| tier.name.as_bytes() == value) {
        let detail = format!("it is pinned to `{}`", shown(&value));
        exam.found(&kinds::PIN_TIER, Some(ino), detail, None)?;
    }
    Ok(())
}

/// Repairs the attribute flags of an inode record.
fn flags(exam: &mut Examination<'_>, ino: Ino, mut record: InodeRecord, has: &Attributes) -> Result<()> {
    let hides = record.lacks_xattrs && has.any;
    let is_right = !hides && record.has_access_acl == has.access && record.has_default_acl == has.default;
    if is_right && !has.changed {
        return Ok(());
    }
    record.lacks_xattrs &= !has.any;
    record.has_access_acl = has.access;
    record.has_default_acl = has.default;
    if has.take_group_rights {
        record.permissions &= !0o070;
    }
    let mut repair = Batch::new();
    put_inode(&mut repair, ino, &record);
    if has.changed {
        // Part of the repair of the list.
        return if exam.mode() == super::CheckMode::Repair { exam.change(&repair) } else { Ok(()) };
    }
    let detail = "its flags for extended attributes are not those of what it has".to_owned();
    exam.found(&kinds::XATTR_FLAG, Some(ino), detail, Some(repair)).map(|_| ())
}
