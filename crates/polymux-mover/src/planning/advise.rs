//! The effect of the sizes of the tiers on reads of programs: the share of device reads that the fastest tier serves, and the best share
//! possible with more space or with less.
//!
//! Invariants: a range counts with the reads that devices served of it, wherever it lay; no range is copied, and nothing is planned.
//! Reads of ranges that were read too rarely to distinguish, and those of files that are gone, count as served by no size of the tier, so
//! that the reported share is never more than could be.

use polymux_policy::{Coverage, RangeReads};
use polymux_records::error::Result;
use polymux_records::report::{Advice, AdviceStep};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Errno, Ino, TierId};
use polymux_volume::heat::{MINUTES, Minutes};
use polymux_volume::space::TierHandle;

use crate::Mover;

/// Ranges that are looked at: those that were read most. Their files have to be loaded, to know how long they are.
const RANGES_MAX: usize = 1 << 16;

/// Minutes over which the share of the fastest tier is reported, for as long as nodes remember their reads.
const MINUTES_TOLD: usize = 10;

impl Mover {
    /// Records the counters of the lanes.
    pub fn note_device_reads(&self) {
        let now = self.volume.clock.elapsed();
        for handle in self.volume.tiers.all().iter() {
            self.placement.heat.device_reads.note_total(handle.id, || handle.speed.read_lane.work().small, now);
        }
    }

    /// Small reads that the device of a tier served in each minute of the last hour.
    pub fn device_reads_of(&self, tier: TierId) -> Minutes {
        self.placement.heat.device_reads.last_hour(tier, self.volume.clock.elapsed())
    }

    /// The device reads that a fastest tier of half, twice and four times the size would serve.
    pub fn advise(&self) -> Result<Advice> {
        let tiers = self.volume.tiers.all();
        let fastest = tiers.iter().find(|tier| tier.present().is_some() && !tier.is_draining()).ok_or(Errno::ENODEV)?;
        let marked = fastest.space_now().map_or(0, |space| fastest.high_mark_bytes(&space));
        let metadata = if fastest.holds_metadata() { self.volume.metadata.bytes_used() } else { 0 };
        let room_bytes = marked.saturating_sub(metadata);
        let coverage = Coverage::of(self.ranges_read());
        let step = |room_bytes| AdviceStep { room_bytes, reads: coverage.reads_within(room_bytes) };
        let rooms = [room_bytes / 2, room_bytes, room_bytes.saturating_mul(2), room_bytes.saturating_mul(4)];
        self.note_device_reads();
        let lately = |tier: &TierHandle| self.device_reads_of(tier.id)[MINUTES - MINUTES_TOLD..].iter().sum::<u64>();
        let all: u64 = tiers.iter().map(|tier| lately(tier)).sum();
        Ok(Advice {
            tier: fastest.name.clone(),
            room_bytes,
            reads: self.placement.heat.demand.reads_of_all().max(coverage.reads()),
            served_percent: (lately(fastest) * 100).checked_div(all),
            ranges: coverage.ranges() as u64,
            range_bytes: coverage.bytes(),
            steps: rooms.map(step).to_vec(),
        })
    }

    /// Ranges that devices were read for, as long as they are now.
    fn ranges_read(&self) -> Vec<RangeReads> {
        let mut nodes = self.placement.heat.demand.reads_by_node();
        nodes.sort_unstable_by_key(|(key, reads)| (std::cmp::Reverse(*reads), *key));
        nodes.truncate(RANGES_MAX);
        // By inode, so that each is looked up once.
        nodes.sort_unstable();
        let mut ranges = Vec::with_capacity(nodes.len());
        let mut known: Option<(Ino, u64)> = None;
        for ((ino, node), reads) in nodes {
            let size = match known {
                Some((of, size)) if of == ino => size,
                _ => self.size_to_advise(ino).unwrap_or_else(|error| {
                    self.pass_over(ino, &error);
                    0
                }),
            };
            known = Some((ino, size));
            let bytes = size.saturating_sub(node * RANGE_NODE_SIZE).min(RANGE_NODE_SIZE);
            ranges.push(RangeReads { bytes, reads });
        }
        ranges
    }

    /// Bytes of a file; 0 of anything else.
    fn size_to_advise(&self, ino: Ino) -> Result<u64> {
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(0) };
        self.data.ensure_size_or_guess(&inode, file)?;
        Ok(file.size())
    }
}
