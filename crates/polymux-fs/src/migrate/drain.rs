//! Emptying a tier: every file that has an object there gets a job that takes it away (M3).
//!
//! What is true here:
//! * That a tier is being emptied is in its record; how far it is, is not: after a restart the files that are left are
//!   looked for anew.
//! * The inode records are walked a page at a time, and a page is taken only while few jobs are open, so that the queue
//!   stays short whatever the size of the volume.
//! * The tier is empty when a whole walk that began with no job open found no file, and nothing disowned is left there.
//!   Nothing comes to it meanwhile: placement does not name it.

use std::collections::BTreeMap;

use polymux_types::sync::Mutex;
use polymux_types::{Ino, TierId};

use crate::core::Core;
use crate::error::Result;
use crate::report::{Destination, DrainReport, MoveReason};
use crate::space::TierHandle;
use crate::store::{FileRecord, InodeBody};

/// Inode records looked at in a step.
const PAGE: usize = 512;

/// Open jobs of one tier above which no page is taken.
const OPEN_JOBS_MAX: usize = 256;

/// How far the emptying of one tier is.
#[derive(Clone, Debug, Default)]
struct Drain {
    /// The last inode of the walk.
    after: u64,
    /// Files found in this walk.
    found: u64,
    /// Files and bytes of the first walk.
    files_total: u64,
    bytes_total: u64,
    is_counted: bool,
    is_empty: bool,
}

/// All tiers that are being emptied.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    by_tier: Mutex<BTreeMap<TierId, Drain>>,
}

fn is_drain_of(tier: TierId) -> impl Fn(&super::queue::Job) -> bool {
    move |job| job.reason == MoveReason::Drain && job.destination == Destination::AwayFrom(tier)
}

impl Core {
    /// Part of each background step. Returns whether something was done.
    pub(crate) fn drain_step(&self) -> Result<bool> {
        let mut worked = false;
        for handle in self.tiers.all().iter() {
            if handle.is_draining() && handle.present().is_some() {
                worked |= self.drain_tier_step(handle)?;
            } else if !handle.is_draining() && self.drains.by_tier.lock().remove(&handle.id).is_some() {
                let now = self.clock.elapsed();
                self.moves.cancel(
                    |job| job.reason == MoveReason::Drain && job.destination == Destination::AwayFrom(handle.id),
                    now,
                );
            }
        }
        Ok(worked)
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
        let page = self.metadata.inodes_after(Ino(drain.after), PAGE)?;
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
            submitted |= self.submit_move(*ino, None, destination, MoveReason::Drain, bytes.max(1)).is_some();
        }
        if is_last {
            let nothing_left = drain.found == 0 && open == 0 && !self.disowned.names(tier);
            if nothing_left {
                log::info!("volume {}: tier `{}` is empty and may be removed", self.name, handle.name);
            }
            // Whoever waits for the jobs of this walk begins the next one when they are done.
            if nothing_left || open == 0 {
                drain = Drain { after: 0, found: 0, is_counted: true, is_empty: nothing_left, ..drain };
            }
        }
        let worked = submitted || !is_last;
        self.drains.by_tier.lock().insert(tier, drain);
        Ok(worked)
    }

    /// Bytes that a file has on a tier, about; `None` where it has no object there.
    fn bytes_on(&self, handle: &TierHandle, file: &FileRecord) -> Option<u64> {
        let entry = file.objects.iter().find(|entry| entry.tier == handle.id)?;
        if file.objects.len() == 1 && file.extenders == 0 {
            return Some(file.size_floor);
        }
        let stat = handle.run(|tier| tier.stat(crate::inode::reference_of(entry)));
        Some(stat.map_or(file.size_floor, |stat| stat.allocated))
    }

    /// Bytes that all files together have on a tier, about: what must go elsewhere before it is empty.
    pub(crate) fn bytes_to_drain(&self, handle: &TierHandle) -> Result<u64> {
        let mut bytes = 0_u64;
        self.metadata.for_each_inode(|_, record| {
            if let InodeBody::Regular(file) = &record.body {
                bytes = bytes.saturating_add(self.bytes_on(handle, file).unwrap_or(0));
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// How far the emptying of each tier is.
    pub(crate) fn drain_reports(&self) -> Vec<DrainReport> {
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
        self.tiers.all().iter().filter(|handle| handle.is_draining()).map(report).collect()
    }
}
