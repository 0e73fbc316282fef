//! The content of files: objects, extents, inline data, extended attributes.

use polymux_types::Ino;

use super::Check;
use crate::blockmap::{BlockMap, Extent, Owner};
use crate::error::Result;
use crate::store::describe::decode_bytes;
use crate::store::disowned_format::{DisownedKind, DisownedRecord};
use crate::store::extent_format::ExtentRecord;
use crate::store::inode_format::{InodeBody, InodeRecord};
use crate::store::keys;
use crate::store::record_kinds::KnownRecord;

/// Attributes that the record of an inode has flags for.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Extents of the inode that the walk is at.
#[derive(Default)]
pub(super) struct Extents {
    ino: Option<Ino>,
    found: Vec<Extent>,
}

impl Check<'_> {
    pub(in crate::store) fn extent(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino, key, value } = record;
        if self.extents.ino != Some(ino) {
            self.finish_extents()?;
            self.extents.ino = Some(ino);
        }
        let record = ExtentRecord::decode(value)?;
        let end = keys::end_block_of_key(key).unwrap_or_default();
        self.extents.found.push(Extent { start: record.start_block, end, owner: record.owner });
        Ok(())
    }

    /// Checks the extents of one inode together.
    pub(super) fn finish_extents(&mut self) -> Result<()> {
        let Extents { ino, found } = std::mem::take(&mut self.extents);
        let Some(ino) = ino else { return Ok(()) };
        let Some(InodeBody::Regular(file)) = self.inode_record(ino)?.map(|record| record.body) else {
            self.violated("extent", format!("inode {ino} has extents and is no regular file"));
            return Ok(());
        };
        if file.objects.len() == 1 && !found.is_empty() {
            self.violated("extent", format!("inode {ino} has one object and {} extents", found.len()));
        }
        if let Err(reason) = BlockMap::from_extents(file.home, &found) {
            self.violated("extent", format!("inode {ino}: {reason}"));
        }
        for extent in found {
            if let Owner::Slot(slot) = extent.owner
                && usize::from(slot) >= file.objects.len()
            {
                let Extent { start, end, .. } = extent;
                self.violated(
                    "extent",
                    format!("inode {ino}: blocks {start} to {end} are in slot {slot}, which is empty"),
                );
            }
        }
        Ok(())
    }

    pub(in crate::store) fn disowned(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { key, value, .. } = record;
        let record = DisownedRecord::decode(key, value)?;
        if record.kind == DisownedKind::Object {
            self.objects.insert((record.tier, record.object), None);
        }
        self.object_number(record.object.0, "a disowned range");
        Ok(())
    }

    fn object_number(&mut self, object: u64, subject: &str) {
        if self.object_end.is_none_or(|end| object >= end) {
            self.violated("numbers", format!("{subject}: object {object:016x} is beyond the end of the range"));
        }
    }

    /// Checks the content in the record of an inode.
    pub(super) fn content_of_inode(&mut self, ino: Ino, record: &InodeRecord) -> Result<()> {
        let InodeBody::Regular(file) = &record.body else { return Ok(()) };
        for entry in &file.objects {
            let subject = format!("inode {ino}");
            match self.objects.insert((entry.tier, entry.object), Some(ino)) {
                None => {}
                Some(None) => {
                    let detail = format!(
                        "{subject} uses object {:016x} of tier {}, which is given up",
                        entry.object, entry.tier
                    );
                    self.violated("object", detail);
                }
                Some(Some(other)) => {
                    let detail = format!(
                        "{subject} and inode {other} share object {:016x} of tier {}",
                        entry.object, entry.tier
                    );
                    self.violated("object", detail);
                }
            }
            self.object_number(entry.object.0, &subject);
            if self.store.get(&keys::tier(entry.tier))?.is_none() {
                self.violated(
                    "tier",
                    format!("{subject} has an object on tier {}, which the volume has not", entry.tier),
                );
            }
        }
        if file.is_inline() && self.store.get(&keys::inline(ino))?.is_none() {
            self.violated("inline", format!("inode {ino} is inline and its data is missing"));
        }
        Ok(())
    }

    pub(in crate::store) fn inline(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino, value, .. } = record;
        let length = decode_bytes("inline data", value)?.len() as u64;
        match self.inode_record(ino)?.map(|record| record.body) {
            Some(InodeBody::Regular(file)) if file.is_inline() && file.size_floor == length => {}
            Some(InodeBody::Regular(file)) if file.is_inline() => {
                let detail = format!("inode {ino} has {length} bytes of inline data and says {}", file.size_floor);
                self.violated("inline", detail);
            }
            // Beside objects it means nothing.
            Some(InodeBody::Regular(file)) if !file.objects.is_empty() => {}
            _ => self.violated("inline", format!("inode {ino} has inline data and is no inline file")),
        }
        Ok(())
    }

    pub(in crate::store) fn xattr(&mut self, record: &KnownRecord<'_>) -> Result<()> {
        let &KnownRecord { ino, key, .. } = record;
        let name = keys::name_of_xattr_key(key).unwrap_or_default();
        let shown = name.escape_ascii();
        let Some(record) = self.inode_record(ino)? else {
            self.violated("xattr", format!("attribute `{shown}` belongs to inode {ino}, which is not there"));
            return Ok(());
        };
        let is_access = name == ACCESS_ACL;
        let is_default = name == DEFAULT_ACL;
        if record.lacks_xattrs || is_access && !record.has_access_acl || is_default && !record.has_default_acl {
            self.violated("xattr", format!("inode {ino} says that it has no attribute `{shown}`"));
        }
        Ok(())
    }
}
