//! Ranges served by the page cache are not promoted (P13): the cache lookup and its time limit.
//!
//! Invariants:
//! * Only a range that would be promoted is looked up, because only there the answer changes anything.
//! * Lookups take at most 1 % of the time: after a lookup of `t` the next one may run when 100 `t` have passed, and the unused part of the
//!   last second may be used at once. A range that comes too early is not looked up and counts as not cached.
//! * A tier that cannot tell (an old kernel, a file system in memory of ours) leaves it unknown, which counts as not cached.

use polymux_data::placement::Context;
use polymux_policy::{Action, Decision, RangeFacts, Why, decide};
use polymux_records::blockmap::Owner;
use polymux_records::counters::Counters;
use polymux_types::{Block, TierId};
use polymux_volume::inode::{FileState, reference_of};

use super::facts::{Piece, blocks_of_node};
use crate::Mover;

impl Mover {
    /// The decision of the policy for a range. If the range would be promoted for its use, the page cache is looked up first.
    pub(crate) fn decide_after_look(
        &self,
        file: &FileState,
        node: u64,
        piece: Piece,
        context: &Context,
        facts: &RangeFacts,
    ) -> Decision {
        let decision = decide(context.policy, facts);
        let target = TierId(decision.target);
        // For its use, and not because a rule or pin says so.
        let is_for_use = decision.action == Action::Move && context.allows(piece.tier) && context.preferred.is_empty();
        if is_for_use && self.placement.tier_reads.is_limit(target, Some(piece.tier)) {
            return Decision::stay(piece.tier.0, Why::AnswersNoSooner);
        }
        if is_for_use && self.gains_nothing_by_heat(piece, target, context, facts) {
            return Decision::stay(piece.tier.0, Why::ReadsAlike);
        }
        let mut cached = *facts;
        cached.is_cached = 1;
        if decision.action == Action::Stay || decide(context.policy, &cached) == decision {
            return decision;
        }
        let look = || self.cached_share(file, node, piece.tier);
        let Some(share) = self.cache_looks.look(&*self.volume.clock, look) else { return decision };
        Counters::count(&self.volume.counters.page_cache_looks);
        match share {
            Some((held, of)) if held > of / 2 => {
                Counters::count(&self.volume.counters.promotions_spared_by_cache);
                decide(context.policy, &cached)
            }
            _ => decision,
        }
    }

    /// Whether a range that is mostly read would go to a faster tier that is known to be read alike. Between such tiers reads are divided by load
    /// (`load_balance`), and each move for heat alone would be undone by it. What would else leave its full tier for a slower one may go up.
    fn gains_nothing_by_heat(&self, piece: Piece, target: TierId, context: &Context, facts: &RangeFacts) -> bool {
        let place = |tier: TierId| facts.tiers.position(tier.0);
        let is_known = |tier| self.placement.tier_reads.small_read_ns(tier).is_some();
        let is_slowest = || place(piece.tier).is_some_and(|place| place + 1 == facts.tiers.offered().len());
        let is_full = || facts.tiers.fill_of(piece.tier.0).is_some_and(|fill| fill.used > fill.low_mark);
        self.placement.promotes_promptly(context.policy)
            && facts.reads >= facts.writes
            && place(target) < place(piece.tier)
            && is_known(piece.tier)
            && is_known(target)
            && self.placement.reads_alike(target, piece.tier)
            && (is_slowest() || !is_full())
    }

    /// Bytes of a node's data on a tier that the page cache holds, and the total number; `None` if the tier cannot tell.
    fn cached_share(&self, file: &FileState, node: u64, tier: TierId) -> Option<(u64, u64)> {
        let blocks = blocks_of_node(node);
        let end = blocks.end.min(Block::at_or_after(file.size()));
        let (runs, entry) = {
            let layout = file.layout.read();
            let slot = layout.slot_of(tier)?;
            let runs = layout.map.runs(blocks.start, end);
            let owned: Vec<_> = runs.into_iter().filter(|run| run.owner == Some(Owner::Slot(slot))).collect();
            (owned, layout.object(slot))
        };
        let handle = self.volume.tiers.by_id(tier).ok()?;
        let tier = handle.present()?;
        let (mut held, mut of) = (0_u64, 0_u64);
        for run in runs {
            let length = Block::bytes_of(run.end - run.start);
            held += tier.cached_bytes(reference_of(&entry), run.start.first_byte(), length)?.min(length);
            of += length;
        }
        Some((held, of))
    }
}
