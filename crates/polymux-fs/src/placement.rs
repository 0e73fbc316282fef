//! Placement: gathers the facts, asks the policy, checks its answer.
//!
//! Invariant: a policy never sees a lock, a clock or a device, and an answer that names a tier which was not offered is
//! dropped (DESIGN section 9).

use polymux_policy::{PlacementFacts, TierFacts};
use polymux_types::TierId;

use crate::core::Core;

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Bytes of the write.
    pub(crate) length: u64,
    /// End of the file after it.
    pub(crate) file_end: u64,
    /// The file has bytes elsewhere already, so that only a tier that can hold parts of files is eligible.
    pub(crate) partial: bool,
    /// A tier that has just refused.
    pub(crate) except: Option<TierId>,
}

impl Core {
    /// Tiers for new blocks, best first. Empty where none has room.
    pub(crate) fn place(&self, request: &Request) -> Vec<TierId> {
        let mut facts = PlacementFacts::new(request.length, request.file_end);
        for tier in self.tiers.iter() {
            let Some(present) = tier.present() else { continue };
            let capabilities = present.capabilities();
            let eligible = Some(tier.id) != request.except
                && !tier.is_failing()
                && request.file_end <= capabilities.file_size_max
                && (!request.partial || capabilities.holds_partial_files());
            if !eligible {
                continue;
            }
            let Some(space) = tier.space() else { continue };
            if space.objects_free == 0 {
                continue;
            }
            facts.offer(TierFacts {
                tier: tier.id.0,
                headroom: space.free.saturating_sub(tier.reserve_of(&space)),
                total: space.total,
            });
        }
        let offered: Vec<u16> = facts.offered().iter().map(|tier| tier.tier).collect();
        let decision = polymux_policy::fastest_with_headroom(&facts);
        decision.tiers().iter().filter(|tier| offered.contains(tier)).map(|tier| TierId(*tier)).collect()
    }
}
