//! POSIX ACLs in the form that the kernel hands to file systems: extended attributes `system.posix_acl_*`, version 2,
//! little-endian (`struct posix_acl_xattr_header`, `posix_acl_xattr_entry`).

use polymux_records::caller::Caller;
use polymux_types::Errno;

/// Name of the ACL that guards a file.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Name of the ACL that files made in a directory inherit.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const UNDEFINED_ID: u32 = u32::MAX;

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    UserObject,
    User(u32),
    GroupObject,
    Group(u32),
    Mask,
    Other,
}

/// A valid ACL: owner, owning group and others are there once each, a mask where users or groups are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<(Tag, u32)>,
}

impl Acl {
    /// Reads and checks the attribute's value. An ACL without entries is `None`: it means removal.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        let (version, rest) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if rest.is_empty() {
            return Ok(None);
        }
        if !rest.len().is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let mut entries = Vec::with_capacity(rest.len() / 8);
        for entry in rest.chunks_exact(8) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let permissions = u32::from(u16::from_le_bytes([entry[2], entry[3]]));
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let tag = match (tag, id) {
                (0x01, _) => Tag::UserObject,
                (0x02, id) if id != UNDEFINED_ID => Tag::User(id),
                (0x04, _) => Tag::GroupObject,
                (0x08, id) if id != UNDEFINED_ID => Tag::Group(id),
                (0x10, _) => Tag::Mask,
                (0x20, _) => Tag::Other,
                _ => return Err(Errno::EINVAL),
            };
            if permissions > 7 {
                return Err(Errno::EINVAL);
            }
            entries.push((tag, permissions));
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::EINVAL) }
    }

    fn is_valid(&self) -> bool {
        let ascending = self.entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let has = |tag| self.find(tag).is_some();
        let names_somebody = self.entries.iter().any(|(tag, _)| matches!(tag, Tag::User(_) | Tag::Group(_)));
        ascending
            && has(Tag::UserObject)
            && has(Tag::GroupObject)
            && has(Tag::Other)
            && (!names_somebody || has(Tag::Mask))
    }

    /// The attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions) in &self.entries {
            let (number, id) = match tag {
                Tag::UserObject => (0x01_u16, UNDEFINED_ID),
                Tag::User(id) => (0x02, *id),
                Tag::GroupObject => (0x04, UNDEFINED_ID),
                Tag::Group(id) => (0x08, *id),
                Tag::Mask => (0x10, UNDEFINED_ID),
                Tag::Other => (0x20, UNDEFINED_ID),
            };
            value.extend_from_slice(&number.to_le_bytes());
            value.extend_from_slice(&u16::try_from(*permissions).expect("three bits fit").to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    fn find(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|(of, _)| *of == tag).map(|(_, permissions)| *permissions)
    }

    fn set(&mut self, tag: Tag, permissions: u32) {
        if let Some((_, of)) = self.entries.iter_mut().find(|(of, _)| *of == tag) {
            *of = permissions;
        }
    }

    /// The permission bits that stand for this ACL: the group bits are those of the mask.
    pub fn mode_bits(&self) -> u32 {
        let of = |tag| self.find(tag).unwrap_or(0);
        let group = self.find(Tag::Mask).unwrap_or_else(|| of(Tag::GroupObject));
        of(Tag::UserObject) << 6 | group << 3 | of(Tag::Other)
    }

    /// Whether permission bits say all of it, so that it need not be stored.
    pub fn is_plain(&self) -> bool {
        self.entries.len() == 3
    }

    /// The ACL after `chmod`.
    pub fn apply_mode(&mut self, mode: u32) {
        self.set(Tag::UserObject, mode >> 6 & 7);
        self.set(Tag::Other, mode & 7);
        let group = if self.find(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObject };
        self.set(group, mode >> 3 & 7);
    }

    /// The ACL and permission bits that a new file inherits from its directory's default ACL, masked by the requested mode.
    pub fn inherit(&self, mode: u32) -> (Self, u32) {
        let mut acl = self.clone();
        let of = |tag| self.find(tag).unwrap_or(0);
        let group = if self.find(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObject };
        acl.set(Tag::UserObject, of(Tag::UserObject) & (mode >> 6));
        acl.set(group, of(group) & (mode >> 3));
        acl.set(Tag::Other, of(Tag::Other) & mode);
        let bits = (mode & !0o777) | acl.mode_bits();
        (acl, bits)
    }

    /// The check algorithm of acl(5), for a caller that is not privileged and whose access is not decided otherwise.
    pub(crate) fn permits(&self, caller: &Caller, owner: u32, group: u32, wanted: u32) -> bool {
        let mask = self.find(Tag::Mask).unwrap_or(7);
        let grants = |permissions: u32| permissions & wanted == wanted;
        if caller.uid == owner {
            return grants(self.find(Tag::UserObject).unwrap_or(0));
        }
        if let Some(permissions) = self.find(Tag::User(caller.uid)) {
            return grants(permissions & mask);
        }
        let mut is_member = false;
        for (tag, permissions) in &self.entries {
            let applies = match tag {
                Tag::GroupObject => caller.is_in_group(group),
                Tag::Group(gid) => caller.is_in_group(*gid),
                _ => false,
            };
            if applies {
                is_member = true;
                if grants(permissions & mask) {
                    return true;
                }
            }
        }
        !is_member && grants(self.find(Tag::Other).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u32)]) -> Acl {
        let acl = Acl { entries: entries.to_vec() };
        assert!(acl.is_valid());
        acl
    }

    fn sample() -> Acl {
        acl(&[
            (Tag::UserObject, 7),
            (Tag::User(1000), 6),
            (Tag::GroupObject, 5),
            (Tag::Group(100), 2),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ])
    }

    #[test]
    fn an_acl_reads_back_as_it_was_written() {
        assert_eq!(Acl::parse(&sample().encode()), Ok(Some(sample())));
    }

    #[test]
    fn an_acl_without_mask_for_named_users_is_refused() {
        let mut broken = sample();
        broken.entries.remove(4);
        assert_eq!(Acl::parse(&broken.encode()), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn the_mask_limits_named_users_and_groups_but_not_the_owner() {
        let acl = sample();
        assert!(acl.permits(&Caller::user(1, 1), 1, 2, 7));
        assert!(acl.permits(&Caller::user(1000, 1), 1, 2, 6));
        assert!(!acl.permits(&Caller::user(1000, 1), 1, 2, 1));
        assert!(acl.permits(&Caller::user(5, 100), 1, 2, 2));
        assert!(!acl.permits(&Caller::user(5, 100), 1, 2, 4));
        assert!(!acl.permits(&Caller::user(5, 5), 1, 2, 4));
    }

    #[test]
    fn an_inherited_acl_is_cut_by_the_mode_asked_for() {
        let (inherited, bits) = sample().inherit(0o640);
        assert_eq!(bits, 0o640);
        assert_eq!(inherited.find(Tag::Mask), Some(4));
        assert_eq!(inherited.find(Tag::User(1000)), Some(6));
    }
}
