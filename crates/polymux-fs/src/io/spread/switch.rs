//! What has to be true when the extender of a file leaves its record.
//!
//! What is true here:
//! * Until the record without the extender is durable, a crash leaves one that asks the extender's object for the size. So that
//!   object gets no byte behind the place where others took over before that: the file would seem to reach there, with zeros for
//!   what others had.
//! * An object on a tier that is away may be longer than its file. From when the file grows elsewhere nobody could tell its old
//!   bytes from new ones, so they are given up first.

use std::sync::atomic::Ordering;

use polymux_tier::Wait;
use polymux_types::TierId;
use smallvec::SmallVec;

use crate::core::Core;
use crate::counters::Counters;
use crate::error::{ErrorKind, Result};
use crate::inode::{AwaitedSwitch, FileState};
use crate::planted_faults::{PlantedFault, is_planted};
use crate::store::{DisownedKind, DisownedRecord, ObjectEntry};

impl FileState {
    /// Notes that a tier is not on record as the extender of the file any more, as soon as a transaction is durable, and from which
    /// byte on others may have the file.
    pub(in crate::io) fn await_switch(&self, switch: AwaitedSwitch) {
        let mut switches = self.switches.lock();
        match switches.iter_mut().find(|earlier| earlier.tier == switch.tier) {
            Some(earlier) => {
                earlier.from = earlier.from.min(switch.from);
                earlier.sequence = earlier.sequence.max(switch.sequence);
            }
            None => switches.push(switch),
        }
        self.awaits_switch.store(true, Ordering::Release);
    }

    /// Tiers that a durable record may name as the extender: the present one, and before the file is spread for the first time since
    /// it was loaded any that it has an object on. What was before nobody remembers.
    pub(super) fn possible_extenders(&self) -> SmallVec<[TierId; 4]> {
        let layout = self.layout.read();
        if self.may_grow_unsettled.load(Ordering::Acquire) {
            return layout.extender().map(|(_, entry)| entry.tier).into_iter().collect();
        }
        layout.objects.iter().map(|entry| entry.tier).collect()
    }
}

impl Core {
    /// Waits until a tier may have bytes of a file up to `end`: where it was the extender, until its record does not say so any
    /// more, wherever the volume can be started from.
    pub(in crate::io) fn wait_for_switch(&self, file: &FileState, tier: TierId, end: u64, wait: Wait) -> Result<()> {
        // On other files an extender that was settled goes on, or the next one takes its place for good.
        let is_concerned =
            file.awaits_switch.load(Ordering::Acquire) && file.may_grow_unsettled.load(Ordering::Acquire);
        if !is_concerned || is_planted(PlantedFault::SpreadSwitchNotAwaited) {
            return Ok(());
        }
        let found = file.switches.lock().iter().find(|switch| switch.tier == tier && switch.from < end).copied();
        let Some(switch) = found else { return Ok(()) };
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.flush_through_copy(switch.sequence)?;
        Counters::count(&self.counters.spread_switches_awaited);
        let mut switches = file.switches.lock();
        switches.retain(|awaited| awaited.sequence > switch.sequence);
        file.awaits_switch.store(!switches.is_empty(), Ordering::Release);
        Ok(())
    }

    /// What objects on tiers that are away may have behind the end of a file, to be freed when they are back. Called with the
    /// append lock held.
    pub(super) fn tails_to_cut_off(&self, file: &FileState) -> Vec<DisownedRecord> {
        let size = file.size();
        let layout = file.layout.read();
        let is_away = |tier: TierId| self.tiers.by_id(tier).is_ok_and(|handle| handle.present().is_none());
        let done = file.cut_off.lock();
        let is_due = |entry: &&ObjectEntry| is_away(entry.tier) && !done.contains(&(entry.tier, entry.object));
        let tail_of = |entry: &ObjectEntry| DisownedRecord {
            tier: entry.tier,
            object: entry.object,
            bucket: entry.bucket,
            start: size,
            kind: DisownedKind::Tail,
        };
        if is_planted(PlantedFault::GhostsNotCut) {
            return Vec::new();
        }
        layout.objects.iter().filter(is_due).map(tail_of).collect()
    }
}
