//! Heat records (`h<ino><chunk>`), version 1, and the record of the logical clock (`L`), version 1.
//!
//! Both are hints: a volume without them works, a program that does not know them leaves them alone, and an `h` record
//! of an inode that is not there means nothing and is removed some time later. That spares every deletion of a file a
//! look for records that nearly no file has. Heat is as it was at the last access.

use polymux_types::TierId;

use super::frame::{Reader, Writer};
use crate::error::Error;

const VERSION: u8 = 1;

/// Range nodes in one heat record: 128 MiB of a file.
pub const NODES_PER_CHUNK: u32 = 64;

/// Heat of one range node. `reads` and `writes` count 1/256 accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatNode {
    /// Place in the chunk, below [`NODES_PER_CHUNK`].
    pub index: u8,
    /// Reads, decayed, in 1/256.
    pub reads: u32,
    /// Writes, decayed, in 1/256.
    pub writes: u32,
    /// Logical seconds; 0: never.
    pub accessed: u32,
    /// Logical time of the last move in seconds; 0: none is known.
    pub moved: u32,
    /// Visits in the low four bits, how long it has been warm in the high two.
    pub visits: u8,
    /// Share of sequential requests, in 1/255.
    pub sequential: u8,
    /// Share of the writes that a sync followed, in 1/255.
    pub synced: u8,
}

/// Value of an `h` record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatRecord {
    /// Ascending by index.
    pub nodes: Vec<HeatNode>,
}

/// Value of the `L` record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockRecord {
    /// Seconds that the volume was mounted so far.
    pub seconds: u64,
    /// Bytes promoted to each tier on the logical day of `seconds`, ascending by tier.
    pub promoted: Vec<(TierId, u64)>,
}

impl HeatRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        let count = u8::try_from(self.nodes.len()).expect("a chunk has few nodes");
        writer.u8(count);
        for node in &self.nodes {
            writer.u8(node.index).u32(node.reads).u32(node.writes).u32(node.accessed).u32(node.moved);
            writer.u8(node.visits).u8(node.sequential).u8(node.synced);
        }
        writer.finish()
    }

    /// Reads a record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("a heat record", record, VERSION)?;
        let count = reader.u8()?;
        let mut nodes: Vec<HeatNode> = Vec::with_capacity(usize::from(count).min(NODES_PER_CHUNK as usize));
        for _ in 0..count {
            let index = reader.u8()?;
            if u32::from(index) >= NODES_PER_CHUNK || nodes.last().is_some_and(|last| last.index >= index) {
                return Err(reader.invalid("its nodes are not in order"));
            }
            let (reads, writes) = (reader.u32()?, reader.u32()?);
            let (accessed, moved) = (reader.u32()?, reader.u32()?);
            let (visits, sequential, synced) = (reader.u8()?, reader.u8()?, reader.u8()?);
            nodes.push(HeatNode { index, reads, writes, accessed, moved, visits, sequential, synced });
        }
        reader.finish()?;
        Ok(Self { nodes })
    }
}

impl ClockRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        let count = u16::try_from(self.promoted.len()).expect("a volume has few tiers");
        writer.u64(self.seconds).u16(count);
        for (tier, bytes) in &self.promoted {
            writer.u16(tier.0).u64(*bytes);
        }
        writer.finish()
    }

    /// Reads a record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("the record of the logical clock", record, VERSION)?;
        let (seconds, count) = (reader.u64()?, reader.u16()?);
        let mut promoted: Vec<(TierId, u64)> = Vec::new();
        for _ in 0..count {
            let (tier, bytes) = (TierId(reader.u16()?), reader.u64()?);
            if promoted.last().is_some_and(|(last, _)| *last >= tier) {
                return Err(reader.invalid("its tiers are not in order"));
            }
            promoted.push((tier, bytes));
        }
        reader.finish()?;
        Ok(Self { seconds, promoted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> HeatRecord {
        let node =
            HeatNode { index: 3, reads: 700, writes: 256, accessed: 90, moved: 0, visits: 2, ..Default::default() };
        HeatRecord { nodes: vec![node, HeatNode { index: 63, sequential: 255, synced: 9, ..node }] }
    }

    #[test]
    fn heat_and_clock_read_back_as_they_were_written() {
        assert_eq!(HeatRecord::decode(&sample().encode()).unwrap(), sample());
        let clock = ClockRecord { seconds: 1 << 40, promoted: vec![(TierId(0), 7), (TierId(2), u64::MAX)] };
        assert_eq!(ClockRecord::decode(&clock.encode()).unwrap(), clock);
    }

    #[test]
    fn nodes_out_of_order_or_beyond_the_chunk_are_refused() {
        let mut record = sample();
        record.nodes.swap(0, 1);
        assert!(HeatRecord::decode(&record.encode()).is_err());
        record.nodes.truncate(1);
        record.nodes[0].index = 64;
        assert!(HeatRecord::decode(&record.encode()).is_err());
        let clock = ClockRecord { seconds: 1, promoted: vec![(TierId(2), 7), (TierId(2), 8)] };
        assert!(ClockRecord::decode(&clock.encode()).is_err());
    }
}
