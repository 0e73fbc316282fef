//! The label of a tier: which volume it belongs to, and as of when.
//!
//! Invariant: a tier joins a volume only through `create` or `tier add`; nothing else ever writes a first label.

use polymux_types::{Epoch, TierId, VolumeId};

/// Contents of `TIER/.polymux/label`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The volume.
    pub volume: VolumeId,
    /// Name of the volume when the label was written, for messages only.
    pub volume_name: String,
    /// Which tier of the volume this is.
    pub tier: TierId,
    /// Name of the tier, for messages only.
    pub tier_name: String,
    /// Random number drawn when the tier joined; tells a tier from another one that had the same id.
    pub instance: u64,
    /// Epoch of the last read-write mount (DESIGN section 4).
    pub epoch: Epoch,
    /// Whether that mount ended cleanly.
    pub clean: CleanStamp,
}

/// How the last read-write mount of a tier ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanStamp {
    /// It has not ended, or it crashed.
    InUse,
    /// It ended cleanly, with this many bytes allocated to objects of the volume.
    Clean {
        /// Bytes that objects of the volume took.
        bytes_used: u64,
    },
}
