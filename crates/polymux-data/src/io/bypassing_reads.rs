//! Bytes that devices served while the kernel read a file without the daemon, estimated from pages that appeared in the page cache (P13).
//!
//! Invariants:
//! * Looked at twice, when the file begins to be passed through and when that ends; between the two, pages that came are reads of the
//!   device, and pages that were there are not.
//! * Looks take a hundredth of the time at most (`LookBudget`). A file that could not be looked at counts as used once.
//! * Where most pages of a node came, or where the file was changed, that was a stream or a change: one use, and no demand.
//! * Pages that the kernel gives up meanwhile are not seen. Direct reads leave no page.

use std::time::Duration;

use polymux_types::Block;
use polymux_types::limits::{BLOCK_SIZE, RANGE_NODE_SIZE};
use polymux_volume::heat::{AccessKind, Pattern};
use polymux_volume::inode::{FileState, Inode, PagesSeen, reference_of};

use crate::data_path::DataPath;

/// Range nodes of a file that are looked at, and that count as used where nothing is known.
pub(super) const NODES_LOOKED_AT_MAX: u64 = 512;

/// Nodes of a file that has pages in memory when it begins to be passed through, at most; looking at more would take long.
const NODES_WITH_PAGES_MAX: u64 = 64;

/// Pages of a node of a file of some size from which on they were read one after the other: half of those that it has.
fn stream_pages(size: u64, node: u64) -> u64 {
    let bytes = size.saturating_sub(node * RANGE_NODE_SIZE).min(RANGE_NODE_SIZE);
    bytes.div_ceil(BLOCK_SIZE).div_ceil(2).max(1)
}

/// Uses of one node that are noted at once, at most.
const USES_MAX: u64 = 64;

impl DataPath {
    /// Pages of a file that the kernel has cached now; `None` if that is unknown, or looking would take too long.
    pub(super) fn look_at_pages(&self, file: &FileState) -> Option<PagesSeen> {
        let entry = file.layout.read().objects.first().copied()?;
        let handle = self.volume.tiers.by_id(entry.tier).ok()?;
        let tier = handle.present()?;
        let nodes = file.size().div_ceil(RANGE_NODE_SIZE).min(NODES_LOOKED_AT_MAX);
        let pages_of = |node: u64| {
            let bytes = tier.cached_bytes(reference_of(&entry), node * RANGE_NODE_SIZE, RANGE_NODE_SIZE)?;
            u32::try_from(Block::whole_in(bytes)).ok()
        };
        self.cache_looks.look(&*self.volume.clock, || {
            let at = self.volume.clock.elapsed();
            // A cheap query if there are none.
            if tier.cached_bytes(reference_of(&entry), 0, nodes * RANGE_NODE_SIZE)? == 0 {
                return Some(PagesSeen { at, pages: vec![0; usize::try_from(nodes).ok()?] });
            }
            let pages = (0..nodes.min(NODES_WITH_PAGES_MAX)).map(pages_of).collect::<Option<Vec<u32>>>()?;
            Some(PagesSeen { at, pages })
        })?
    }

    /// A file is not passed through any more: the bytes that devices served since `before` count as use.
    pub(super) fn note_bypassing_use(
        &self,
        inode: &Inode,
        file: &FileState,
        kind: AccessKind,
        before: Option<&PagesSeen>,
    ) {
        let seen = before.and_then(|before| Some((before, self.look_at_pages(file)?)));
        let Some((before, now)) = seen else {
            let length = file.size().min(NODES_LOOKED_AT_MAX * RANGE_NODE_SIZE);
            self.note_access(inode, kind, 0, usize::try_from(length).unwrap_or(usize::MAX));
            self.placement.heat.demand.end_hold(inode.ino, None, Duration::ZERO);
            return;
        };
        let milliseconds = u64::try_from(now.at.saturating_sub(before.at).as_millis()).unwrap_or(u64::MAX).max(1000);
        let mut rates = Vec::with_capacity(now.pages.len());
        let (logical_now, size) = (self.placement.logical_clock.now(), file.size());
        let (mut was_used_throughout, mut served) = (true, 0_u64);
        for (node, pages) in (0_u64..).zip(&now.pages) {
            let came = u64::from(pages.saturating_sub(before.pages_of(node)));
            let was_random = came < stream_pages(size, node) && kind == AccessKind::Read;
            let (uses, pattern) = if was_random { (came, Pattern::Random) } else { (came.min(1), Pattern::Sequential) };
            for _ in 0..uses.min(USES_MAX) {
                self.placement.heat.touch(inode.ino, node, kind, BLOCK_SIZE, pattern, logical_now);
            }
            was_used_throughout &= came > 0;
            served += if was_random { came } else { 0 };
            rates.push(if was_random { came.saturating_mul(1_000_000) / milliseconds } else { 0 });
        }
        self.placement.heat.demand.end_hold(inode.ino, Some(&rates), now.at.saturating_sub(before.at));
        let object = file.layout.read().objects.first().copied();
        if let Some(entry) = object {
            self.placement.heat.device_reads.note_bypassing(entry.tier, served, before.at, now.at);
        }
        // Of the nodes behind those that were looked at nothing is known; where those were used, they count as used, too.
        let looked_at = rates.len() as u64 * RANGE_NODE_SIZE;
        let rest = size.min(NODES_LOOKED_AT_MAX * RANGE_NODE_SIZE).saturating_sub(looked_at);
        if rest > 0 && was_used_throughout {
            self.note_access(inode, kind, looked_at, usize::try_from(rest).unwrap_or(usize::MAX));
        }
    }
}
