//! The epoch of the volume and of its tiers: raised at each mount and each change of the set of tiers, so that metadata or tiers from before
//! are never taken for the present ones (DESIGN section 4).

use std::sync::atomic::{AtomicU64, Ordering};

use polymux_meta::{Batch, CopySync, Sequence};
use polymux_records::error::Result;
use polymux_records::store::{EpochRecord, Shutdown, TierRecord, keys};
use polymux_tier::{CleanStamp, Label};
use polymux_types::sync::Mutex;
use polymux_types::{Epoch, TierId};

use super::Volume;

/// The present epoch, and who may raise it.
#[derive(Debug, Default)]
pub struct Epochs {
    present: AtomicU64,
    /// Held to raise the epoch, or to change the record of a tier.
    pub raising: Mutex<()>,
    /// Held while a tier joins or leaves, or its draining begins or ends. Taken before `raising`.
    pub tier_event: Mutex<()>,
}

impl Epochs {
    /// The epoch of the volume.
    pub fn present(&self) -> Epoch {
        Epoch(self.present.load(Ordering::Acquire))
    }

    /// The epoch was read from its record, or raised.
    pub fn set_present(&self, epoch: Epoch) {
        self.present.store(epoch.0, Ordering::Release);
    }
}

impl Volume {
    /// Raises the epoch of the volume and of every tier that is there.
    pub fn raise_epoch(&self, from: Epoch, labels: &[(TierId, TierRecord, Option<Label>)]) -> Result<()> {
        let to = Epoch(from.0 + 1);
        let raising = self.put_epoch(EpochRecord { epoch: from, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        // A second copy that does not know it is older than the labels from here on, and nothing is started from it.
        let copy = self.metadata.sync_copy(raising)?;
        let mut raised = Vec::new();
        for (id, record, label) in labels {
            let Some(label) = label else {
                // The configured decision about a missing tier applies from now on.
                raised.push((*id, record.clone()));
                continue;
            };
            let next = Label {
                volume_name: self.name.clone(),
                tier_name: record.name.clone(),
                epoch: Epoch(record.epoch.0 + 1).max(label.epoch),
                clean: CleanStamp::InUse,
                ..label.clone()
            };
            self.tiers.by_id(*id)?.run(|tier| tier.write_label(&next))?;
            raised.push((*id, TierRecord { epoch: next.epoch, ..record.clone() }));
        }
        self.put_epoch(EpochRecord { epoch: to, raising: false, shutdown: Shutdown::Unclean }, &raised)?;
        self.epochs.set_present(to);
        if copy == CopySync::Late && self.metadata.abandon_copy(raising) == CopySync::Late {
            log::warn!("volume {}: the second copy of the metadata is slow", self.name);
        }
        Ok(())
    }

    /// Logs the epoch, durably; returns the transaction.
    pub fn put_epoch(&self, epoch: EpochRecord, tiers: &[(TierId, TierRecord)]) -> Result<Sequence> {
        let mut batch = Batch::new();
        batch.put(keys::epoch(), epoch.encode());
        for (id, record) in tiers {
            batch.put(keys::tier(*id), record.encode());
        }
        let sequence = self.metadata.commit(batch)?;
        self.metadata.sync(sequence)?;
        Ok(sequence)
    }

    /// The end of a clean stop: everything is synced and settled; the store says so first, then the labels.
    pub fn stamp_clean(&self) -> Result<()> {
        let epoch = self.epochs.present();
        self.put_epoch(EpochRecord { epoch, raising: false, shutdown: Shutdown::Clean }, &[])?;
        for handle in self.tiers.all().iter().filter(|handle| handle.present().is_some()) {
            let bytes_used = handle.run(|tier| tier.space()).map_or(0, |space| space.used);
            handle.run(|tier| {
                let label = Label { clean: CleanStamp::Clean { bytes_used }, ..tier.read_label()? };
                tier.write_label(&label)
            })?;
        }
        Ok(())
    }
}
