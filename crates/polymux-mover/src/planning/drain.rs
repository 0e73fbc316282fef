//! Emptying a tier: every file that has an object there gets a job that takes it away (M3).
//!
//! Invariants:
//! * That a tier is being emptied is in its record; how far it is, is not: after a restart the files that are left are
//!   looked for anew.
//! * The inode records are walked a page at a time, and a page is taken only while few jobs are open, so that the queue
//!   stays short whatever the size of the volume.
//! * The tier is empty when a whole walk that began with no job open found no file, no pending free is left there, no
//!   batch writes to it, and a final check finds no object on it. Nothing comes to it meanwhile:
//!   placement does not name it, and a batch that began before has made its object when it ends.
//! * A tier that is only being looked at for its removal takes nothing new, and nothing is taken off it.

use std::cmp::Reverse;

use polymux_data::placement::Request;
use polymux_records::error::Result;
use polymux_records::report::{Destination, DrainReport, MoveReason};
use polymux_records::store::{FileRecord, InodeBody, ObjectEntry};
use polymux_tier::ObjectStat;
use polymux_types::{Ino, TierId};
use polymux_volume::inode::{Inode, reference_of};
use polymux_volume::sched::MoverPace;
use polymux_volume::space::TierHandle;

use crate::Mover;
use crate::mover::drains::{Drain, Work};

/// Inode records looked at in a step.
const PAGE: usize = 512;

/// Open jobs of one tier above which no page is taken.
const OPEN_JOBS_MAX: usize = 256;

/// Milliseconds between two looks at the directories of a tier for objects that no file names.
const OBJECTS_LOOK_MS: u64 = 5000;

fn is_drain_of(tier: TierId) -> impl Fn(&crate::queue::Job) -> bool {
    move |job| job.reason == MoveReason::Drain && job.destination == Destination::AwayFrom(tier)
}

impl Mover {
    /// Part of each background step. Returns whether something was done.
    pub(crate) fn drain_step(&self) -> Result<bool> {
        let mut worked = false;
        for handle in self.volume.tiers.all().iter() {
            match self.drains.work_on(handle) {
                Work::Emptied if handle.present().is_some() => worked |= self.drain_tier_step(handle)?,
                Work::InService if self.drains.by_tier.lock().remove(&handle.id).is_some() => {
                    let now = self.volume.clock.elapsed();
                    let away = Destination::AwayFrom(handle.id);
                    self.moves.cancel(|job| job.reason == MoveReason::Drain && job.destination == away, now);
                    // Data that pins and rules place there was moved off it.
                    self.want_walk();
                }
                Work::Emptied | Work::Leaving | Work::InService => {}
            }
        }
        Ok(worked)
    }

    /// Whether files are still to leave a tier.
    pub(crate) fn is_emptying_a_tier(&self) -> bool {
        let is_empty = |tier| self.drains.by_tier.lock().get(&tier).is_some_and(|drain| drain.is_empty);
        self.volume.tiers.all().iter().any(|handle| self.drains.is_emptied(handle) && !is_empty(handle.id))
    }

    fn drain_tier_step(&self, handle: &TierHandle) -> Result<bool> {
        let tier = handle.id;
        let mut drain = self.drains.by_tier.lock().entry(tier).or_default().clone();
        if drain.is_empty {
            return Ok(false);
        }
        let (open, ..) = self.moves.open_jobs(is_drain_of(tier));
        if open >= OPEN_JOBS_MAX {
            return Ok(false);
        }
        let page = self.volume.metadata.inodes_after(Ino(drain.after), PAGE)?;
        let is_last = page.len() < PAGE;
        let mut submitted = false;
        for (ino, record) in &page {
            drain.after = ino.0;
            let InodeBody::Regular(file) = &record.body else { continue };
            let Some(bytes) = self.bytes_on(handle, file) else { continue };
            drain.found += 1;
            if !drain.is_counted {
                drain.files_total += 1;
                drain.bytes_total += bytes;
            }
            let destination = Destination::AwayFrom(tier);
            submitted |=
                self.submit_move(*ino, None, destination, MoveReason::Drain, MoverPace::Polite, bytes.max(1)).is_some();
        }
        if is_last {
            let looks_empty = drain.found == 0 && open == 0 && !self.volume.disowned.names(tier);
            let nothing_left = looks_empty && self.holds_no_object(handle, &mut drain)?;
            if nothing_left {
                log::info!("volume {}: tier `{}` is empty and may be removed", self.volume.name, handle.name);
            }
            // While jobs of this walk are open, the next walk is not begun.
            if nothing_left || open == 0 {
                drain = Drain { after: 0, found: 0, is_counted: true, is_empty: nothing_left, ..drain };
            }
        }
        let worked = submitted || !is_last;
        self.drains.by_tier.lock().insert(tier, drain);
        Ok(worked)
    }

    /// Whether no move brings anything to a tier and, looked up only then, no object is left on it.
    fn holds_no_object(&self, handle: &TierHandle, drain: &mut Drain) -> Result<bool> {
        let now_ms = self.volume.elapsed_ms();
        if self.moves.is_busy(handle.id) || now_ms < drain.look_due_ms {
            return Ok(false);
        }
        let objects = handle.object_count()?;
        if objects > 0 {
            drain.look_due_ms = now_ms.saturating_add(OBJECTS_LOOK_MS);
            log::debug!("tier `{}` still holds {objects} objects that no file names", handle.name);
        }
        Ok(objects == 0)
    }

    /// The target for data that leaves a tier: a tier that rules and pins allow, else any other tier; among these first the
    /// next slower tier, then slower ones, and only then faster ones, the nearest first. `None`: no tier has space.
    ///
    /// Data on a slow tier is cold. If its file is used, it is promoted from its new place.
    pub(crate) fn tier_to_drain_to(&self, inode: &Inode, request: &Request, drained: TierId) -> Option<TierId> {
        let context = self.placement.context_of(inode);
        let tiers = self.volume.tiers.all();
        let speed_order: Vec<TierId> = tiers.iter().map(|tier| tier.id).collect();
        let preferred: Vec<TierId> = context.preferred.iter().map(|tier| TierId(*tier)).collect();
        let rank = |tier: TierId| {
            let order = if preferred.contains(&tier) { &preferred } else { &speed_order };
            let place = |of: TierId| order.iter().position(|tier| *tier == of);
            match (place(tier), place(drained)) {
                (Some(to), Some(from)) if to > from => to - from,
                (Some(to), Some(from)) => order.len() + from - to,
                (Some(to), None) => to,
                (None, _) => usize::MAX,
            }
        };
        let fits = |tier: TierId| self.volume.tiers.by_id(tier).is_ok_and(|tier| tier.headroom() >= request.length);
        // Placement names those that can take it.
        let candidates = self.placement.place(inode, request).into_iter();
        candidates.min_by_key(|tier| (Reverse(context.allows(*tier)), Reverse(fits(*tier)), rank(*tier)))
    }

    /// Bytes that a file has on a tier, about, holes of a file with one object included; `None` where it has no object
    /// there.
    fn bytes_on(&self, handle: &TierHandle, file: &FileRecord) -> Option<u64> {
        let entry = file.objects.iter().find(|entry| entry.tier == handle.id)?;
        if file.objects.len() == 1 && file.extenders == 0 {
            return Some(file.size_floor);
        }
        Some(stat_of(handle, entry).map_or(file.size_floor, |stat| stat.allocated))
    }

    /// Bytes that a file takes up on a tier, about: holes take up none.
    fn bytes_allocated_on(&self, handle: &TierHandle, file: &FileRecord) -> u64 {
        let Some(entry) = file.objects.iter().find(|entry| entry.tier == handle.id) else { return 0 };
        // Preallocation beyond the end, and the rest of the last block, need not go anywhere.
        stat_of(handle, entry).map_or(file.size_floor, |stat| stat.allocated.min(stat.size))
    }

    /// Bytes that all files together take up on a tier, approximately: the bytes to move before it is empty. If their
    /// sizes alone are not more than `enough`, the tier is not asked about each of them, and the sizes are the answer.
    pub fn bytes_to_drain(&self, handle: &TierHandle, enough: u64) -> Result<u64> {
        let sum = |bytes_of: &dyn Fn(&FileRecord) -> u64| -> Result<u64> {
            let mut bytes = 0_u64;
            self.volume.metadata.for_each_inode(|_, record| {
                if let InodeBody::Regular(file) = &record.body {
                    bytes = bytes.saturating_add(bytes_of(file));
                }
                Ok(())
            })?;
            Ok(bytes)
        };
        let sizes = sum(&|file| self.bytes_on(handle, file).unwrap_or(0))?;
        if sizes <= enough { Ok(sizes) } else { sum(&|file| self.bytes_allocated_on(handle, file)) }
    }

    /// How far the emptying of each tier is.
    pub fn drain_reports(&self) -> Vec<DrainReport> {
        let report = |handle: &std::sync::Arc<TierHandle>| {
            let drain = self.drains.by_tier.lock().get(&handle.id).cloned().unwrap_or_default();
            let (open, parked, waits_for) = self.moves.open_jobs(is_drain_of(handle.id));
            let left = if drain.is_empty { 0 } else { (open as u64).max(drain.found) };
            let bytes_left = self.moves.bytes_leaving(handle.id);
            DrainReport {
                tier: handle.id,
                name: handle.name.clone(),
                files_total: drain.is_counted.then_some(drain.files_total),
                files_done: drain.files_total.saturating_sub(left),
                bytes_total: drain.is_counted.then_some(drain.bytes_total),
                bytes_done: drain.bytes_total.saturating_sub(if drain.is_empty { 0 } else { bytes_left }),
                parked: parked as u64,
                waits_for,
                is_empty: drain.is_empty,
            }
        };
        let is_drained = |handle: &&std::sync::Arc<TierHandle>| match self.drains.work_on(handle) {
            Work::Emptied => true,
            Work::Leaving => self.drains.by_tier.lock().contains_key(&handle.id),
            Work::InService => false,
        };
        self.volume.tiers.all().iter().filter(is_drained).map(report).collect()
    }
}

/// The attributes of an object, if its tier answers.
fn stat_of(handle: &TierHandle, entry: &ObjectEntry) -> Option<ObjectStat> {
    let object = reference_of(entry);
    handle.shared()?.ask_often(move |tier| tier.stat(object)).ok()
}
