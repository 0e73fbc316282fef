//! The tiers of the volume in speed order, with their free space and their state.
//!
//! Invariants:
//! * Tiers come and go while the volume is in use. The holder of a handle keeps the tier (and its lock) for that long; a
//!   tier that left is in no later answer of [`TierSet`].
//! * The lock of the set is held for a short scan and never while a tier is asked: every read and write passes here.
//! * The durable state of a tier is in its record. `draining` here follows the record, and is set after it is durable
//!   and before anything may rely on it.

use std::sync::Arc;

use polymux_records::attributes::VolumeSpace;
use polymux_records::error::{Error, Result};
use polymux_tier::Space;
use polymux_types::TierId;
use polymux_types::sync::{Ordering, RwLock};

use super::tier_handle::TierHandle;

/// Tiers on one file system, whose combined space never exceeds that of the file system.
struct Group {
    device: u64,
    file_system_total: u64,
    file_system_free: u64,
    total: u64,
    free: u64,
    available: u64,
    objects_free: u64,
}

impl Group {
    fn new(device: u64, space: &Space, available: u64) -> Self {
        Self {
            device,
            file_system_total: space.file_system_total,
            file_system_free: space.file_system_free,
            total: space.total,
            free: space.total.saturating_sub(space.used),
            available,
            objects_free: space.objects_free,
        }
    }

    fn add(&mut self, space: &Space, available: u64) {
        let free = space.total.saturating_sub(space.used);
        // A tier without a limit counts the use by all programs, so its free space is that of the file system.
        let is_whole = |total: u64| total == self.file_system_total;
        self.free = match (is_whole(self.total), is_whole(space.total)) {
            (true, _) => self.free,
            (false, true) => free,
            (false, false) => self.free.saturating_add(free).min(self.file_system_total),
        };
        self.total = self.total.saturating_add(space.total).min(self.file_system_total);
        self.available = self.available.saturating_add(available).min(self.file_system_free);
    }
}

/// All tiers, fastest first.
pub struct TierSet {
    tiers: RwLock<Arc<[Arc<TierHandle>]>>,
}

impl TierSet {
    /// The tiers in their order of speed.
    pub fn new(tiers: Vec<TierHandle>) -> Self {
        Self { tiers: RwLock::new(tiers.into_iter().map(Arc::new).collect()) }
    }

    /// The tiers as they are now.
    pub fn all(&self) -> Arc<[Arc<TierHandle>]> {
        Arc::clone(&self.tiers.read())
    }

    /// A number that changes when there may be more free space on any tier than before.
    pub fn room_generation(&self) -> u64 {
        self.tiers.read().iter().map(|tier| 1 + tier.room_generation()).sum()
    }

    /// The tier of a number; one that the volume does not have is an error of the record that names it.
    pub fn by_id(&self, id: TierId) -> Result<Arc<TierHandle>> {
        let found = self.tiers.read().iter().find(|tier| tier.id == id).cloned();
        found.ok_or_else(|| Error::corrupted("the tier table", format!("tier {id} is named by a record but not in it")))
    }

    /// The tier of a name.
    pub fn by_name(&self, name: &str) -> Option<Arc<TierHandle>> {
        self.tiers.read().iter().find(|tier| tier.name == name).cloned()
    }

    /// The tier whose file system also holds the metadata store.
    pub fn metadata_tier(&self) -> Option<Arc<TierHandle>> {
        self.tiers.read().iter().find(|tier| tier.holds_metadata()).cloned()
    }

    /// Takes a tier into the set; `position` 0 is the fastest, and one beyond the end is the slowest.
    pub fn add(&self, handle: TierHandle, position: usize) {
        let mut tiers = self.tiers.write();
        assert!(tiers.iter().all(|tier| tier.id != handle.id), "the number of a tier is its own");
        let mut changed = tiers.to_vec();
        changed.insert(position.min(changed.len()), Arc::new(handle));
        *tiers = changed.into();
    }

    /// Puts the handle of a tier that came back in the place of the one of the tier that was missing.
    pub fn replace(&self, handle: TierHandle) {
        let mut tiers = self.tiers.write();
        let handle = Arc::new(handle);
        *tiers = tiers.iter().map(|tier| if tier.id == handle.id { handle.clone() } else { tier.clone() }).collect();
    }

    /// Takes a tier out of the set.
    pub fn remove(&self, id: TierId) {
        let mut tiers = self.tiers.write();
        *tiers = tiers.iter().filter(|tier| tier.id != id).cloned().collect();
    }

    /// Space of the volume. Tiers that share a file system never count for more than the file system has.
    pub fn volume_space(&self) -> VolumeSpace {
        self.space_of(|_| true)
    }

    /// Space of some of the tiers together. Free space on a tier that is being drained is not available.
    pub fn space_of(&self, which: impl Fn(&TierHandle) -> bool) -> VolumeSpace {
        let mut groups: Vec<Group> = Vec::new();
        for tier in self.all().iter().filter(|tier| which(tier)) {
            let (Some(space), Some(present)) = (tier.space_now(), tier.present()) else { continue };
            let available = match tier.is_draining() {
                true => 0,
                false => space.free.saturating_sub(tier.reserve_of(&space)),
            };
            let device = present.capabilities().device;
            match groups.iter_mut().find(|group| group.device == device) {
                Some(group) => group.add(&space, available),
                None => groups.push(Group::new(device, &space, available)),
            }
        }
        let mut volume = VolumeSpace { total: 0, free: 0, available: 0, files_total: 0, files_free: 0 };
        for group in groups {
            volume.total = volume.total.saturating_add(group.total);
            volume.free = volume.free.saturating_add(group.free);
            volume.available = volume.available.saturating_add(group.available);
            volume.files_free = volume.files_free.saturating_add(group.objects_free);
        }
        volume
    }

    /// Makes the file systems of the tiers give back space that they allocated ahead of writes and that is not needed. Does not wait for a
    /// silent tier.
    pub fn give_back_room_ahead(&self) {
        for tier in self.all().iter() {
            let takes_ahead = tier.present().is_some_and(|present| present.capabilities().allocates_ahead);
            if let Some(watched) = tier.tier.as_ref().filter(|_| takes_ahead) {
                let is_giving_back = Arc::clone(&tier.free_space.is_giving_back);
                // A failure only leaves preallocated space in place for some minutes.
                let _ = watched.ask(move |tier| {
                    is_giving_back.store(true, Ordering::Release);
                    let outcome = tier.give_back_room_ahead();
                    is_giving_back.store(false, Ordering::Release);
                    outcome
                });
            }
        }
    }

    /// Whether the file system of a tier that answers is still busy with [`Self::give_back_room_ahead`].
    pub fn are_giving_back_room_ahead(&self) -> bool {
        self.all().iter().any(|tier| tier.free_space.is_giving_back.load(Ordering::Acquire) && !tier.is_silent())
    }

    /// Whether a program that writes to a tier unheard leaves the reserve of the metadata alone: no metadata is on the file system of that
    /// tier, or the file system keeps as much for root, and such a program is not root to it.
    pub fn keep_metadata_reserve(&self, tier: &TierHandle) -> bool {
        let device = |tier: &TierHandle| tier.present().map(|tier| tier.capabilities().device);
        let own = device(tier);
        let has_metadata = |other: &Arc<TierHandle>| other.holds_metadata() && device(other) == own;
        let is_beside_metadata = tier.holds_metadata() || self.all().iter().any(has_metadata);
        !is_beside_metadata || tier.keeps_root_reserve()
    }

    /// Names of other tiers on the same file system.
    pub fn sharing_with(&self, tier: &TierHandle) -> Vec<String> {
        let device = |tier: &TierHandle| tier.present().map(|tier| tier.capabilities().device);
        let own = device(tier);
        if own.is_none() {
            return Vec::new();
        }
        self.all()
            .iter()
            .filter(|other| other.id != tier.id && device(other) == own)
            .map(|other| other.name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polymux_records::parts::{TierMember, TierPresence};
    use polymux_sim::MemoryTier;
    use polymux_types::{Clock, ManualClock};

    use super::super::tier_handle::Purpose;

    use super::*;

    /// A tier on a file system that keeps nothing for root.
    fn tier_on(device: u64, id: u16, purpose: Purpose) -> TierHandle {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Duration::from_secs(1_000)));
        let memory = MemoryTier::with_clock(format!("tier {id}"), 1 << 30, Arc::clone(&clock));
        let memory = memory.with_capabilities(|can| can.device = device);
        let presence = TierPresence::Present(Arc::new(memory));
        TierHandle::new(TierId(id), TierMember::new(format!("tier {id}"), presence), purpose, clock)
    }

    #[test]
    fn a_tier_beside_the_metadata_on_one_file_system_has_their_reserve_to_keep_too() {
        let tiers = TierSet::new(vec![
            tier_on(70, 0, Purpose::DataAndMetadata),
            tier_on(70, 1, Purpose::Data),
            tier_on(71, 2, Purpose::Data),
        ]);
        let keeps = |id| tiers.keep_metadata_reserve(&tiers.by_id(TierId(id)).unwrap());
        assert_eq!([keeps(0), keeps(1), keeps(2)], [false, false, true]);
    }
}
