//! A second copy of the metadata store that does not come along.
//!
//! Invariants (docs/design/0007-second-copy.md):
//! * Bytes are freed and numbers used only where the copy knows of it, or where nothing can be started from the copy.
//! * An unreachable copy cannot be marked as too old. The labels of the tiers can: they get a new epoch,
//!   and metadata without that epoch is refused. It is the same rule that protects against metadata from a backup.
//! * Afterwards the volume works on without the copy, which the store makes anew as soon as it can.

use polymux_meta::{CopySync, Sequence};
use polymux_records::error::{Error, Result};
use polymux_records::store::{EpochRecord, Shutdown, TierRecord};
use polymux_tier::{Label, Tier, TierError};
use polymux_types::Epoch;

use crate::space::TierHandle;
use crate::volume::Volume;

impl Volume {
    /// Makes everything up to a transaction durable, wherever the volume can be started from.
    pub fn flush_through_copy(&self, sequence: Sequence) -> Result<()> {
        self.flush_through(sequence)?;
        while self.metadata.sync_copy(sequence)? == CopySync::Late {
            let _one_at_a_time = self.epochs.raising.lock();
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
        let epoch = self.epochs.present();
        let raising = self.put_epoch(EpochRecord { epoch, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        self.raise_labels(epoch)?;
        Ok(raising)
    }

    /// Raises the epoch because the set of tiers is about to change (DESIGN section 4), so that metadata from before it is
    /// never taken for the present one. Called with `raising` held.
    pub fn raise_epoch_for_event(&self) -> Result<()> {
        let epoch = self.epochs.present();
        let raising = self.put_epoch(EpochRecord { epoch, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        // A second copy that does not know it is older than the labels from here on, and nothing is started from it.
        if self.metadata.sync_copy(raising)? == CopySync::Late {
            log::warn!("volume {}: the second copy of the metadata is slow", self.name);
        }
        self.raise_labels(epoch)
    }

    /// Writes the labels of the tiers that are present, and then the record of their epochs. The fact that labels are being raised from
    /// `epoch` is durable.
    fn raise_labels(&self, epoch: Epoch) -> Result<()> {
        self.raise_labels_and(epoch, None)
    }

    /// As [`Self::raise_labels`], including a tier that is about to join the set.
    pub fn raise_labels_and(&self, epoch: Epoch, newcomer: Option<&TierHandle>) -> Result<()> {
        let mut recorded = Vec::new();
        let (mut raised, mut doubtful) = (false, false);
        for (id, record) in self.metadata.tiers()? {
            // One that is joining or leaving is handled by its own event alone.
            let Ok(member) = self.tiers.by_id(id) else { continue };
            let handle = newcomer.filter(|newcomer| newcomer.id == id).unwrap_or(&member);
            let Some(tier) = handle.shared() else { continue };
            if handle.is_silent() {
                // Earlier requests to it may be carried out when it answers again.
                doubtful |= tier.is_asked();
                continue;
            }
            let least = Epoch(record.epoch.0 + 1);
            match tier.ask_often(move |tier| raise_label(tier, least)) {
                Ok((epoch, error)) => {
                    raised |= error.is_none();
                    if let Some(error) = error {
                        log::error!("volume {}: the epoch of tier {id} stays: {error}", self.name);
                        handle.note_error(error);
                    }
                    recorded.push((id, TierRecord { epoch, ..record }));
                }
                Err(error) => {
                    doubtful |= error == TierError::NotAnswering;
                    log::error!("volume {}: the epoch of tier {id} stays: {error}", self.name);
                    handle.note_error(error);
                }
            }
        }
        if !raised {
            return Err(Error::corrupted("the epoch of the volume", "it stays: no label can be written"));
        }
        let next = Epoch(epoch.0 + 1);
        // A label that may be written later is one that is being raised.
        let record = EpochRecord { epoch: next, raising: doubtful, shutdown: Shutdown::Unclean };
        self.put_epoch(record, &recorded)?;
        self.epochs.set_present(next);
        Ok(())
    }
}

/// Raises the epoch of a label, to `least` at least. Returns its current epoch, and why that may be the previous one: a
/// write that failed may have reached the label or not, and the next mount reads whichever epoch it now holds.
fn raise_label(tier: &dyn Tier, least: Epoch) -> std::result::Result<(Epoch, Option<TierError>), TierError> {
    let label = tier.read_label()?;
    let next = Label { epoch: least.max(label.epoch), ..label };
    match tier.write_label(&next) {
        Ok(()) => Ok((next.epoch, None)),
        Err(error) => Ok((tier.read_label()?.epoch, Some(error))),
    }
}
