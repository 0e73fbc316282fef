//! The growth of a log that lies on a slower tier: from its next range node on it lies where a new log would begin (docs/design/0034).
//!
//! Invariants:
//! * Only blocks that the file has not reached change their owner, in a tail switch as of a spill (`spill`): nothing is copied or freed.
//! * The switch is at the beginning of a range node, so that moves and heat find each node on one tier.
//! * Space that was reserved for the file since it was loaded is used where it is.
//! * The tier is faster than that of the end, in the order of tiers that holds for the file, and has the space that a new log would need to begin there.
//! * No file that is being moved is switched: claims of the mover on the target may reach beyond the end of the file.
//! * A log that finds no better place stays where it is, and asks again at its next range node.

use std::sync::atomic::Ordering;

use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::parts::Promotion;
use polymux_tier::Wait;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Block, TierId};
use polymux_volume::inode::{FileState, Inode};

use crate::data_path::DataPath;
use crate::placement::Request;

/// The beginning of the first range node that a write reaches and the file did not.
fn first_new_node(file: &FileState, position: u64, length: usize) -> Option<u64> {
    let reached = Block::at_or_after(file.size()).first_byte();
    let node = position.max(reached).checked_next_multiple_of(RANGE_NODE_SIZE)?;
    (node > 0 && node < position.saturating_add(length as u64)).then_some(node)
}

/// Whether a switch failed because a tier could not take it, rather than the metadata.
fn is_of_tiers(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Store(_))
        && (error.is_out_of_room() || matches!(error.kind(), ErrorKind::Tier { .. }))
}

impl DataPath {
    fn may_continue_log(&self, file: &FileState) -> bool {
        self.volume.options.promotion == Promotion::Prompt
            && !self.placement.tier_reads.is_pointless()
            && file.is_waited_for(self.volume.clock.elapsed())
            && !file.is_inline()
            && !file.is_passed_through()
            && !file.grows_unsettled()
    }

    /// Gives the range node that a log reaches with this write, and all behind it, to the tier where it belongs. Returns the data that can be
    /// written at once: up to that node, where the write begins before it. Called with the blocks held, and with the append lock held where the
    /// file grows.
    pub(super) fn continue_log<'a>(
        &self,
        inode: &Inode,
        file: &FileState,
        position: u64,
        data: &'a [u8],
        wait: Wait,
    ) -> Result<&'a [u8]> {
        let Some(node) = first_new_node(file, position, data.len()) else { return Ok(data) };
        let is_reserved = node < file.spreading.reserved_end.load(Ordering::Acquire);
        if is_reserved || file.is_moving() || !self.may_continue_log(file) {
            return Ok(data);
        }
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        if position < node {
            return Ok(&data[..usize::try_from(node - position).expect("less than the data")]);
        }
        let Some(tier) = self.better_tier_for_log(inode, file, node) else { return Ok(data) };
        match self.give_tail_to(inode, file, tier, Block::holding(node)) {
            Ok(_) => Counters::count(&self.volume.counters.tail_switches_of_logs),
            // The metadata failed. A tier that cannot take the log leaves it where it is.
            Err(error) if !is_of_tiers(&error) => return Err(error),
            Err(error) => log::debug!("inode {}: the log goes on where it is: {error}", inode.ino),
        }
        Ok(data)
    }

    /// The tier where a log would begin, if that is faster than the tier of its end.
    fn better_tier_for_log(&self, inode: &Inode, file: &FileState, node: u64) -> Option<TierId> {
        let tail = file.layout.read().tail_tier()?;
        let file_end = node.saturating_add(RANGE_NODE_SIZE);
        let request = Request { length: RANGE_NODE_SIZE, file_end, partial: true, except: None };
        let better = self.placement.better_tier_for_log(inode, &request, tail)?;
        // The space of files that are passed through is not counted before.
        let has_room = self.volume.tiers.by_id(better).is_ok_and(|handle| handle.headroom() >= RANGE_NODE_SIZE);
        (has_room && self.placement.syncs_sooner(better, tail)).then_some(better)
    }
}
