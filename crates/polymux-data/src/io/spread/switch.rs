//! Conditions for removing the size authority of a file from its record.
//!
//! Invariants:
//! * Until the record without the size authority is durable, a crash leaves one that takes the size from that tier's object. So
//!   that object gets no byte behind the switch before that: the file would seem to reach there, with zeros for the ranges on
//!   other tiers.
//! * An object on a tier that is away may be longer than its file. Once the file grows elsewhere, the old bytes of that object
//!   look like new ones, so they are given up first.

use std::sync::atomic::Ordering;

use polymux_records::counters::Counters;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::store::{DisownedRecord, ObjectEntry};
use polymux_tier::Wait;
use polymux_types::TierId;
use polymux_volume::inode::FileState;

use crate::data_path::DataPath;

impl DataPath {
    /// Waits until a tier may have bytes of a file up to `end`: if it was the size authority, until no log that the volume can be
    /// started from names it any more.
    pub(in crate::io) fn wait_for_switch(&self, file: &FileState, tier: TierId, end: u64, wait: Wait) -> Result<()> {
        // On other files a settled size authority goes on, or gets the end of the file back (`await_earlier_switch`).
        if !file.spreading.may_grow_unsettled.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait_until_given_up(file, tier, end, wait)
    }

    /// Waits until no log that the volume can be started from names a tier as the size authority of a file which it was and which other tiers went on.
    /// Called before it gets the end of the file back.
    pub(in crate::io) fn await_earlier_switch(&self, file: &FileState, tier: TierId) -> Result<()> {
        if file.layout.read().tail_tier() == Some(tier) {
            return Ok(());
        }
        self.wait_until_given_up(file, tier, u64::MAX, Wait::Allowed)
    }

    /// Waits until no such log names a tier that gave up to be the size authority before `end`.
    fn wait_until_given_up(&self, file: &FileState, tier: TierId, end: u64, wait: Wait) -> Result<()> {
        let is_awaited = file.spreading.awaits_switch.load(Ordering::Acquire);
        if !is_awaited || is_planted(PlantedFault::SpreadSwitchNotAwaited) {
            return Ok(());
        }
        let found =
            file.spreading.switches.lock().iter().find(|switch| switch.tier == tier && switch.from < end).copied();
        let Some(switch) = found else { return Ok(()) };
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.volume.flush_through_copy(switch.sequence)?;
        Counters::count(&self.volume.counters.spread_switches_awaited);
        let mut switches = file.spreading.switches.lock();
        switches.retain(|awaited| awaited.sequence > switch.sequence);
        file.spreading.awaits_switch.store(!switches.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Ranges that objects on absent tiers may have behind the end of a file, to be freed when the tiers are back. Called with the
    /// append lock held.
    pub(super) fn tails_to_cut_off(&self, file: &FileState) -> Vec<DisownedRecord> {
        let size = file.size();
        let layout = file.layout.read();
        let is_away = |tier: TierId| self.volume.tiers.by_id(tier).is_ok_and(|handle| handle.present().is_none());
        let done = file.spreading.cut_off.lock();
        let is_due = |entry: &&ObjectEntry| is_away(entry.tier) && !done.contains(&(entry.tier, entry.object));
        if is_planted(PlantedFault::GhostsNotCut) {
            return Vec::new();
        }
        layout.objects.iter().filter(is_due).map(|entry| DisownedRecord::of_tail(entry, size)).collect()
    }
}
