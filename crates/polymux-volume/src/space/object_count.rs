//! How many objects a tier holds.

use polymux_records::error::Result;
use polymux_tier::{Tier, TierError};
use polymux_types::Bucket;
use polymux_types::limits::BUCKETS;

use super::TierHandle;

impl TierHandle {
    /// Objects on the tier, referenced or not; none where it is missing.
    pub fn object_count(&self) -> Result<usize> {
        self.present().map_or(Ok(0), |tier| objects_on(tier).map_err(|error| self.note_error(error)))
    }
}

/// Objects on a tier, referenced or not.
pub fn objects_on(tier: &dyn Tier) -> std::result::Result<usize, TierError> {
    let mut found = 0;
    for bucket in (0..BUCKETS).map(Bucket) {
        found += tier.list(bucket)?.len();
    }
    Ok(found)
}
