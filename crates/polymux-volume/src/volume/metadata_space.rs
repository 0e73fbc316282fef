//! Whether metadata still has free space, and how that bounds new files and data.

use polymux_meta::Room;
use polymux_records::error::Result;
use polymux_types::Errno;

use super::Volume;
use crate::space::TierHandle;

/// When less is free under the metadata store, nothing new is made; deleting still works. On a small file system it is a part of it
/// that is less than the reserve which files leave there.
const METADATA_ROOM_MIN: u64 = 4 * 1024 * 1024;
const METADATA_ROOM_DIVISOR: u64 = 128;

impl Volume {
    /// Refuses to create anything when the free space for metadata is nearly used up.
    pub fn check_metadata_room(&self) -> Result<()> {
        if self.metadata.room() == Room::Ballast {
            return Err(Errno::ENOSPC.into());
        }
        let Some(tier) = self.tiers.metadata_tier() else { return Ok(()) };
        let is_short = tier.space().is_some_and(|space| {
            let room = space.file_system_free.saturating_add(space.root_reserve);
            room < METADATA_ROOM_MIN.min(space.file_system_total / METADATA_ROOM_DIVISOR)
        });
        if is_short { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }

    /// Why no new data comes to a tier that is in service, or nothing at all can be changed.
    pub fn shortage_of(&self, tier: &TierHandle) -> Option<String> {
        match self.metadata.stopped().filter(|_| tier.holds_metadata()) {
            Some(why) => {
                Some(format!("{why}: files are read, and nothing is changed until the volume is mounted again"))
            }
            None => tier.shortage(self.metadata.room()),
        }
    }
}
