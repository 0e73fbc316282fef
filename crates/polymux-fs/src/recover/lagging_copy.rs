//! A second copy of the metadata store that does not come along.
//!
//! What is true here (docs/design/0007-second-copy.md):
//! * Bytes are freed and numbers used only where the copy knows of it, or where nothing can be started from the copy.
//! * A copy that cannot be reached cannot be told that it is too old. The labels of the tiers can: they get a new epoch,
//!   and metadata without that epoch is refused. It is the same rule that protects against metadata from a backup.
//! * Afterwards the volume works on without the copy, which the store makes anew as soon as it can.

use std::sync::atomic::Ordering;

use polymux_meta::{CopySync, Sequence};
use polymux_tier::Label;
use polymux_types::Epoch;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::store::{EpochRecord, Shutdown, TierRecord};

impl Core {
    /// Makes everything up to a transaction durable, wherever the volume can be started from.
    pub(crate) fn flush_through_copy(&self, sequence: Sequence) -> Result<()> {
        self.flush_through(sequence)?;
        while self.metadata.sync_copy(sequence)? == CopySync::Late {
            let _one_at_a_time = self.raising.lock();
            // Another thread may have done it.
            if self.metadata.sync_copy(sequence)? == CopySync::Safe {
                break;
            }
            let raised = self.raise_epoch_without_copy()?;
            if self.metadata.abandon_copy(raised) == CopySync::Safe {
                self.note_recovery("the second copy of the metadata did not answer and was given up".to_owned());
            }
        }
        Ok(())
    }

    /// Raises the epoch of the tiers that are there. Returns the transaction without which nothing is started any more.
    fn raise_epoch_without_copy(&self) -> Result<Sequence> {
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        let raising = self.put_epoch(EpochRecord { epoch, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        self.raise_labels(epoch)?;
        Ok(raising)
    }

    /// Raises the epoch because the set of tiers is about to change (DESIGN section 4), so that metadata from before it is
    /// never taken for the present one. Called with `raising` held.
    pub(super) fn raise_epoch_for_event(&self) -> Result<()> {
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        let raising = self.put_epoch(EpochRecord { epoch, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        // A second copy that does not know it is older than the labels from here on, and nothing is started from it.
        if self.metadata.sync_copy(raising)? == CopySync::Late {
            log::warn!("volume {}: the second copy of the metadata is slow", self.name);
        }
        self.raise_labels(epoch)
    }

    /// Writes the labels of the tiers that are there, and then what they say now. That labels are being raised from
    /// `epoch` is durable.
    fn raise_labels(&self, epoch: Epoch) -> Result<()> {
        let mut recorded = Vec::new();
        let mut raised = false;
        for (id, record) in self.metadata.tiers()? {
            // One that is joining or leaving is in nobody's hands but its own event's.
            let Ok(handle) = self.tiers.by_id(id) else { continue };
            if handle.present().is_none() {
                continue;
            }
            let written = handle.run(|tier| {
                let label = tier.read_label()?;
                let next = Label { epoch: Epoch(record.epoch.0 + 1).max(label.epoch), ..label };
                tier.write_label(&next).map(|()| next.epoch)
            });
            raised |= written.is_ok();
            // A write that failed may have reached the label or not; what it says now is what the next mount finds.
            let found = written.or_else(|error| {
                log::error!("volume {}: the epoch of tier {id} stays: {error}", self.name);
                handle.run(|tier| tier.read_label()).map(|label| label.epoch)
            });
            if let Ok(epoch) = found {
                recorded.push((id, TierRecord { epoch, ..record }));
            }
        }
        if !raised {
            return Err(Error::corrupted("the epoch of the volume", "it stays: no label can be written"));
        }
        let next = Epoch(epoch.0 + 1);
        self.put_epoch(EpochRecord { epoch: next, raising: false, shutdown: Shutdown::Unclean }, &recorded)?;
        self.epoch.store(next.0, Ordering::Release);
        Ok(())
    }
}
