//! Making a copy anew, beside a store that goes on.
//!
//! Invariants:
//! * The copy says that it is incomplete until the end, so the order of steps does not matter before that.
//! * Tables are taken until the rest is small enough to be taken before the store overwrites it: each turn ships only the tables that
//!   have changed since the turn before.
//! * The copy counts as current, so that others wait for it, before the position is chosen that it will be complete up to.
//!   A caller that did not wait saw the copy as not current, so its transactions precede that position and are in the copy.

use std::time::Instant;

use super::directory::CopyDirectory;
use super::ship::{CHUNK_LENGTH, Snapshot, Step, now_ns};
use super::slot_format::SlotState;
use super::{Mode, SecondCopy};
use crate::error::StoreError;
use crate::log::BLOCK;
use crate::log_store::Inner;

/// Turns after which the rebuild ends with a report that the store goes on too fast.
const TURNS_MAX: usize = 16;

impl Inner {
    pub(super) fn rebuild(
        &self,
        copy: &SecondCopy,
        directory: &mut CopyDirectory,
        trusted: &mut bool,
    ) -> Result<Step, StoreError> {
        if !*trusted {
            directory.wipe()?;
            self.mark_incomplete(directory)?;
            *trusted = true;
        }
        for _ in 0..TURNS_MAX {
            let Some(snapshot) = self.snapshot()? else { return Ok(Step::Busy) };
            match self.ship_new_tables(copy, directory, &snapshot)? {
                Step::Done => {}
                other => return Ok(other),
            }
            self.take_over(directory, &snapshot)?;
            for (index, partition) in snapshot.partitions.iter().enumerate() {
                directory.remove_obsolete(index, partition)?;
            }
            match self.catch_up(copy, directory, &snapshot)? {
                Step::Gap => {}
                other => return Ok(other),
            }
        }
        Ok(Step::Gap)
    }

    /// Ships the log from the checkpoint of the snapshot on, and makes the copy complete.
    fn catch_up(
        &self,
        copy: &SecondCopy,
        directory: &mut CopyDirectory,
        snapshot: &Snapshot,
    ) -> Result<Step, StoreError> {
        let checkpoint = snapshot.header.checkpoint;
        let limit = checkpoint - checkpoint % BLOCK + self.log.ring_length();
        let mut at = checkpoint;
        loop {
            let durable = self.log.durable();
            if durable > limit || self.copy_ring(copy, directory, at, durable)? == Step::Gap {
                return Ok(Step::Gap);
            }
            at = durable;
            if copy.is_out_of_time() {
                return Ok(Step::Busy);
            }
            if self.log.durable() - at <= CHUNK_LENGTH {
                break;
            }
        }
        let (time_ns, moment) = (now_ns(), Instant::now());
        let Some(to) = copy.become_current(at, || self.log.durable()) else { return Ok(Step::Busy) };
        let shipped = if to > limit { Ok(Step::Gap) } else { self.copy_ring(copy, directory, at, to) };
        if !matches!(shipped, Ok(Step::Done)) {
            // Its slot still says that it is incomplete.
            copy.fall_back();
            return shipped;
        }
        self.write_complete(directory, SlotState::Complete, to, time_ns)?;
        copy.arrive(to);
        copy.confirm(moment);
        log::info!("the second copy in {} is complete", copy.options.path.display());
        Ok(Step::Done)
    }
}

impl SecondCopy {
    /// From now on others wait for it. Returns the position that it will be complete up to, chosen after that.
    fn become_current(&self, arrived: u64, durable: impl Fn() -> u64) -> Option<u64> {
        let mut status = self.status.lock();
        if status.mode != Mode::Rebuilding {
            return None;
        }
        status.mode = Mode::Current;
        status.failing = false;
        status.reason.clear();
        status.arrived = arrived;
        let to = durable();
        status.shipping_to = to;
        Some(to)
    }

    fn fall_back(&self) {
        let mut status = self.status.lock();
        status.mode = Mode::Rebuilding;
        self.changed.notify_all();
    }
}
