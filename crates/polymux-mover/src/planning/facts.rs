//! Facts about ranges of files, for policies.

use std::ops::Range;

use polymux_data::placement::{Context, ContextSource, seconds_between};
use polymux_policy::{Granularity, NEVER, PolicyKind, RangeFacts, TierTable};
use polymux_records::blockmap::Owner;
use polymux_types::{Block, TierId};
use polymux_volume::inode::{FileState, Inode};

use crate::Mover;

/// The part of a range node that lies on one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) tier: TierId,
    pub(crate) bytes: u64,
}

/// The blocks of a node.
pub(crate) fn blocks_of_node(node: u64) -> Range<Block> {
    Block::first_of_node(node)..Block::first_of_node(node + 1)
}

/// Which tiers hold how much of a node, up to the end of the file.
pub(crate) fn pieces_of_node(file: &FileState, node: u64) -> Vec<Piece> {
    let blocks = blocks_of_node(node);
    let end = blocks.end.min(Block::at_or_after(file.size()));
    let layout = file.layout.read();
    let mut pieces: Vec<Piece> = Vec::new();
    if blocks.start >= end || layout.objects.is_empty() {
        return pieces;
    }
    for run in layout.map.runs(blocks.start, end) {
        let Some(Owner::Slot(slot)) = run.owner else { continue };
        let (tier, bytes) = (layout.object(slot).tier, Block::bytes_of(run.end - run.start));
        match pieces.iter_mut().find(|piece| piece.tier == tier) {
            Some(piece) => piece.bytes += bytes,
            None => pieces.push(Piece { tier, bytes }),
        }
    }
    pieces
}

/// Bytes of a file that a tier owns.
pub(crate) fn bytes_mapped_on(file: &FileState, tier: TierId) -> u64 {
    let end = Block::at_or_after(file.size());
    let layout = file.layout.read();
    let Some(slot) = layout.slot_of(tier) else { return 0 };
    let runs = layout.map.runs(Block(0), end);
    runs.into_iter()
        .filter(|run| run.owner == Some(Owner::Slot(slot)))
        .map(|run| Block::bytes_of(run.end - run.start))
        .sum()
}

impl Mover {
    /// The context of a file if this policy, where one is named, replaces that of the volume.
    pub(crate) fn context_for(&self, inode: &Inode, policy: Option<PolicyKind>) -> Context {
        let context = self.placement.context_of(inode);
        match policy.filter(|_| context.source == ContextSource::Volume) {
            Some(policy) => Context { policy, ..context },
            None => context,
        }
    }

    /// Facts about the part of a node that lies on one tier.
    pub(crate) fn range_facts(
        &self,
        inode: &Inode,
        file: &FileState,
        node: u64,
        piece: Piece,
        context: &Context,
        tiers: &TierTable,
    ) -> RangeFacts {
        let now = self.placement.logical_clock.now();
        let (heat, of_file) =
            (self.placement.heat.node(inode.ino, node, now), self.placement.heat.file(inode.ino, now));
        let nodes = Block::at_or_after(file.size()).node_at_or_after().max(1);
        let per_node = u64::from(of_file.heat) / nodes;
        let modified = inode.common.read().modified;
        let mut facts = RangeFacts::new(piece.tier.0, piece.bytes);
        facts.heat = heat.heat;
        facts.reads = heat.reads;
        facts.writes = heat.writes;
        facts.file_heat = u32::try_from(per_node).unwrap_or(u32::MAX);
        facts.idle_seconds = heat.idle_seconds;
        facts.modified_seconds_ago = u32::try_from(seconds_between(modified, self.volume.now())).unwrap_or(NEVER - 1);
        facts.moved_seconds_ago = heat.moved_seconds_ago.unwrap_or(NEVER);
        let warm = if context.policy.granularity() == Granularity::File {
            of_file.warm_half_lives
        } else {
            heat.warm_half_lives
        };
        facts.warm_seconds = u32::from(warm).saturating_mul(self.volume.options.heat_half_life_seconds.max(1));
        facts.half_life_seconds = self.volume.options.heat_half_life_seconds.max(1);
        facts.sequential = heat.sequential_percent;
        facts.synchronous = heat.sync_percent;
        facts.file_size = file.size();
        facts.allowed = context.allowed;
        facts.tiers = *tiers;
        facts.tiers.prefer(&context.preferred);
        facts
    }
}
