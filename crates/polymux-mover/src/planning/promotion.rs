//! Promotion of ranges that were used much lately. One set of decisions serves the planner, which submits them as jobs, and `plan`, which
//! prints them.
//!
//! Invariants:
//! * A file that the kernel passes through is decided about when it is closed, which counts as a use of it.
//! * Of a file no more is promoted in one step than its policy wants to observe before it goes on.
//! * Bytes that were decided on count as being on their new tier for the decisions that follow.

use std::collections::BTreeMap;

use polymux_policy::{Action, Granularity, PolicyKind, TierTable};
use polymux_records::error::Result;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Ino, TierId};
use polymux_volume::inode::Inode;
use polymux_volume::sched::MoverPace;

use super::bundle::Bundle;
use super::facts::pieces_of_node;
use super::tables::note_coming;
use crate::Mover;

/// Hot nodes looked at in a step.
const HOT_PER_STEP: usize = 128;

/// Promotions decided on in one step, by file and the tier that they go to.
pub(crate) type Promotions = BTreeMap<(Ino, TierId), Bundle>;

/// A decision on the part of a range that lies on one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is promoted. Where its file moves as a whole, these are the bytes of the file.
    Promoted { from: TierId, to: TierId, bytes: u64 },
    /// It stays on this tier for now.
    Stays(TierId),
    /// As much of its file is promoted in this step as its policy wants to be.
    Later,
}

impl Mover {
    /// Decides on the parts of a hot range, in front of what was decided on before. `policy` takes the place of the volume's.
    ///
    /// # Errors
    /// The size of the file is not known, because a tier is missing.
    pub(crate) fn decide_promotion(
        &self,
        inode: &Inode,
        node: u64,
        policy: Option<PolicyKind>,
        table: &mut TierTable,
        promotions: &mut Promotions,
    ) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        let Some(file) = inode.file() else { return Ok(verdicts) };
        self.data.ensure_size(inode, file)?;
        if file.is_passed_through() {
            return Ok(verdicts);
        }
        let context = self.context_for(inode, policy);
        for piece in pieces_of_node(file, node) {
            let facts = self.range_facts(inode, file, node, piece, &context, table);
            let decision = self.decide_after_look(file, node, piece, &context, &facts);
            if decision.action == Action::Stay {
                verdicts.push(Verdict::Stays(piece.tier));
                continue;
            }
            let to = TierId(decision.target);
            let is_whole = context.policy.granularity() == Granularity::File;
            let bytes = if is_whole { file.size() } else { piece.bytes };
            if self.moves.is_handing_over(inode.ino, piece.tier, to) {
                verdicts.push(Verdict::Later);
                continue;
            }
            let bundle = promotions.entry((inode.ino, to)).or_default();
            if bundle.is_whole {
                continue;
            }
            if bundle.bytes >= context.policy.promotion_step_bytes_max() {
                verdicts.push(Verdict::Later);
                continue;
            }
            note_coming(table, to.0, bytes);
            bundle.is_whole = is_whole;
            bundle.add(node, bytes);
            verdicts.push(Verdict::Promoted { from: piece.tier, to, bytes });
        }
        Ok(verdicts)
    }

    /// Plans promotions of recently hot ranges. Returns whether there may be more.
    pub(crate) fn promote_step(&self) -> Result<bool> {
        let hot = self.placement.heat.take_hot(HOT_PER_STEP);
        if hot.is_empty() {
            return Ok(false);
        }
        let mut table = self.planning_table();
        let mut promotions = Promotions::new();
        for (ino, node) in &hot {
            let decided = self
                .volume
                .inode(*ino)
                .and_then(|inode| self.decide_promotion(&inode, *node, None, &mut table, &mut promotions));
            match decided {
                Ok(verdicts) => verdicts.iter().for_each(|verdict| self.follow_up(*ino, *node, verdict, &table)),
                Err(error) => {
                    // The others are planned all the same; this one is looked at again when it is used again.
                    self.pass_over(*ino, &error);
                    self.placement.heat.tell_again(*ino, *node);
                }
            }
        }
        let mut has_submitted = false;
        for ((ino, tier), bundle) in promotions {
            let nodes = bundle.nodes();
            if self.submit_promotion(ino, tier, bundle, MoverPace::Polite) {
                has_submitted = true;
            } else {
                // Other ranges of the file are on their way there, and one job of a kind is enough at a time.
                nodes.iter().for_each(|node| self.placement.heat.tell_again(ino, *node));
            }
        }
        // The movers hear of new jobs at once.
        Ok(has_submitted || hot.len() == HOT_PER_STEP)
    }

    /// What is not promoted in this step is considered again at its next use.
    fn follow_up(&self, ino: Ino, node: u64, verdict: &Verdict, table: &TierTable) {
        match verdict {
            Verdict::Promoted { .. } => return,
            Verdict::Stays(tier) => self.wish_for_victims(*tier, table),
            Verdict::Later => {}
        }
        self.placement.heat.tell_again(ino, node);
    }

    /// A hot range stays on a slow tier: perhaps because the candidates on the faster ones are unknown.
    fn wish_for_victims(&self, tier: TierId, table: &TierTable) {
        let faster = table.offered().iter().take_while(|fill| fill.tier != tier.0);
        let full = faster.filter(|fill| fill.used.saturating_add(RANGE_NODE_SIZE) > fill.low_mark);
        let mut state = self.planner.state.lock();
        for fill in full {
            state.wants_victims.insert(TierId(fill.tier));
        }
    }
}
