//! New files that the kernel writes itself from their creation on (docs/design/0026).
//!
//! Invariants:
//! * Such a file has an object before its first byte, with the object as its size authority. Its record is durable by then, and the directory
//!   entry of the object too, or with the first sync of the object: the daemon does not see which bytes the kernel makes durable.
//! * It cannot go on elsewhere when its tier is full. So no other tier could take its growth, or the daemon writes it.
//! * A file that begins in the daemon after all has no object yet: every reason for that is looked for before one is made.

use std::sync::atomic::Ordering;

use polymux_policy::{PassthroughUse, Synced};
use polymux_records::error::Result;
use polymux_records::passthrough::Obstacle;
use polymux_tier::ObjectStat;
use polymux_volume::inode::{Creation, FileState, Handle, Inode, reference_of};
use polymux_volume::space::TierHandle;

use super::has_space_for;
use crate::data_path::DataPath;
use crate::placement::Request;

/// Least free space of a tier on which a file may grow without the daemon. In memory half a second passes until it is written, and the
/// space of a removed file is back after some tenths of one; a writer that the daemon does not see cannot be made to wait for it.
const SPACE_TO_GROW_MIN: u64 = 1 << 30;
/// Least free space for that while frees are pending, which take longer the more there are.
const SPACE_BESIDE_FREES_MIN: u64 = 2 << 30;

/// After a tier had no object to give to the kernel, new files begin in the daemon for so long.
const LENDING_PAUSE_MS: u64 = 1000;

impl DataPath {
    /// Gives a new file the object to which the kernel shall write, or says why not. Called with its `passed` lock and its barrier held
    /// alone.
    pub(super) fn begin_with_object(
        &self,
        inode: &Inode,
        file: &FileState,
        handle: &Handle,
        creation: &Creation,
    ) -> Result<Option<Obstacle>> {
        if self.passthrough_use(inode) == PassthroughUse::Off {
            return Ok(Some(Obstacle::Off));
        }
        if let Some(obstacle) = self.obstacle_of_description(inode, handle) {
            return Ok(Some(obstacle));
        }
        let request = Request { length: 1, file_end: 1, partial: false, except: None };
        let Some(tier) = self.placement.place_now(inode, &request).into_iter().next() else {
            return Ok(Some(Obstacle::Room));
        };
        if self.may_go_on_elsewhere(tier) {
            return Ok(Some(Obstacle::Grows));
        }
        let tier = self.volume.tiers.by_id(tier)?;
        if let Some(obstacle) = self.obstacle_of_tier_to_changes(&tier) {
            return Ok(Some(obstacle));
        }
        // Messages begin in the metadata store (docs/design/0042).
        let is_message = file.usage.expected.get() == Some(Synced::Message);
        if is_message || !self.kernel.new_file_sizes.expects_large(creation) {
            return Ok(Some(Obstacle::LikelySmall));
        }
        if !has_space_for(&tier, &ObjectStat::default()) || !self.may_grow_on(&tier) {
            return Ok(Some(Obstacle::Room));
        }
        let refused_ms = self.kernel.lending_refused_ms.load(Ordering::Relaxed);
        if refused_ms > 0 && self.volume.elapsed_ms() < refused_ms + LENDING_PAUSE_MS {
            return Ok(Some(Obstacle::Tier));
        }
        match self.ensure_home(inode, file, &request) {
            Ok(()) => {}
            Err(error) if error.is_out_of_room() => return Ok(Some(Obstacle::Room)),
            Err(error) => return Err(error),
        }
        self.make_entry_durable(file)?;
        self.record_extender(inode, file)?;
        Ok(None)
    }

    /// Makes the directory entry of a new object durable where the first sync of its bytes would not.
    fn make_entry_durable(&self, file: &FileState) -> Result<()> {
        let entry = file.layout.read().object(0);
        self.volume.tiers.by_id(entry.tier)?.run(|tier| match tier.capabilities().sync_covers_entry() {
            true => Ok(()),
            false => tier.sync(reference_of(&entry)),
        })
    }

    /// Whether a tier has so much free space that a file which grows there without the daemon finds the space of removed files before it is full.
    pub(super) fn may_grow_on(&self, tier: &TierHandle) -> bool {
        let needed =
            if self.volume.disowned.is_freeing_on(tier.id) { SPACE_BESIDE_FREES_MIN } else { SPACE_TO_GROW_MIN };
        tier.headroom() >= needed
    }
}
