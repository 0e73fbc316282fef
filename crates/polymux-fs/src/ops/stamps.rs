//! Objects say of themselves what they belong to, for rebuilding a volume whose metadata is lost (DESIGN section 4).
//!
//! Lazily, in the background, and best effort: nothing reads a stamp while the metadata is there, so a tier that cannot
//! hold one, or a file that moved since, costs no more than a worse guess later.

use std::sync::atomic::Ordering;

use polymux_tier::ObjectStamp;

use crate::core::Core;
use crate::error::Result;
use crate::inode::{Inode, reference_of};

impl Core {
    /// Refreshes the stamps of a file's objects, where new ones were made since.
    pub(crate) fn stamp_if_due(&self, inode: &Inode) -> Result<()> {
        let Some(file) = inode.file() else { return Ok(()) };
        if !file.stamp_due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(path) = self.path_of(inode.ino)? else { return Ok(()) };
        let stamp = {
            let common = inode.common.read();
            ObjectStamp {
                volume: self.id,
                ino: inode.ino,
                generation: inode.generation,
                mode: inode.kind.type_bits() | common.permissions,
                uid: common.uid,
                gid: common.gid,
                modified: common.modified,
                path,
            }
        };
        let objects = file.layout.read().objects.clone();
        for entry in &objects {
            let Some(tier) = self.tiers.by_id(entry.tier)?.shared() else { continue };
            if let Err(error) = tier.stamp(reference_of(entry), &stamp) {
                log::debug!("object {:016x} stays without a stamp: {error}", entry.object);
            }
        }
        Ok(())
    }
}
