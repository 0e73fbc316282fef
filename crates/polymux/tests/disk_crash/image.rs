//! The state of the recorded disks after a power failure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::disk::Disk;
use crate::mounted::Random;
use crate::promises::history::{Position, SECTOR};

/// An operation on a disk.
#[derive(Clone)]
pub enum Record {
    Write { disk: usize, offset: u64, bytes: Arc<[u8]> },
    Flush { disk: usize },
}

impl Record {
    pub fn disk(&self) -> usize {
        match self {
            Self::Write { disk, .. } | Self::Flush { disk } => *disk,
        }
    }

    pub fn is_flush(&self) -> bool {
        matches!(self, Self::Flush { .. })
    }
}

/// Disks as they were when the recording began, and the operations since.
pub struct Recording {
    pub base: Vec<Disk>,
    pub records: Vec<Record>,
}

/// Whether the disks keep their word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// Writes that a flush covered are durable.
    Kept,
    /// A flush does nothing, for a control: everything since the recording began may be lost.
    Ignored,
}

/// Which of the writes since its last flush a disk keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Nothing,
    Everything,
    /// The oldest ones, in order; the last of them is torn.
    Prefix,
    EverythingButOne,
    One,
    /// Each with a chance that is drawn for the image.
    Subset,
    /// Each sector with a chance that is drawn for the image.
    SubsetOfSectors,
}

const FATES: [Fate; 7] = [
    Fate::Nothing,
    Fate::Everything,
    Fate::Prefix,
    Fate::EverythingButOne,
    Fate::One,
    Fate::Subset,
    Fate::SubsetOfSectors,
];

/// Disks after a power failure, and how they came to be.
pub struct Image {
    pub disks: Vec<Disk>,
    pub position: Position,
    description: String,
    /// Writes that were neither covered by a flush nor kept whole.
    pub lost_count: usize,
}

impl fmt::Display for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "power failure at position {}: {}", self.position.0, self.description)
    }
}

impl Recording {
    /// An image of a power failure at a position; the seed decides which writes each disk keeps.
    pub fn image(&self, position: Position, flushes: Flushes, seed: u64) -> Image {
        let mut random = Random::new(seed);
        let mut image = Image { disks: Vec::new(), position, description: String::new(), lost_count: 0 };
        for (disk, base) in self.base.iter().enumerate() {
            let past = self.records[..position.0].iter().filter(|record| record.disk() == disk);
            let past: Vec<&Record> = past.collect();
            let durable = match flushes {
                Flushes::Kept => past.iter().rposition(|record| record.is_flush()).unwrap_or(0),
                Flushes::Ignored => 0,
            };
            let mut state = base.clone();
            past[..durable].iter().for_each(|record| apply(&mut state, record));
            let open: Vec<&Record> = past[durable..].iter().filter(|record| !record.is_flush()).copied().collect();
            let fate = random.pick(&FATES);
            let kept = keep(&mut state, &open, fate, &mut random);
            image.lost_count += open.len() - kept;
            image.description +=
                &format!("disk {disk} keeps {kept} of {} unflushed writes whole ({fate:?}); ", open.len());
            image.disks.push(state);
        }
        image
    }
}

impl Recording {
    /// Writes to other disks than the one that is flushed here, each since the last flush of its disk.
    fn unflushed_elsewhere(&self, flush: usize) -> usize {
        let mut is_flushed = vec![false; self.base.len()];
        is_flushed[self.records[flush].disk()] = true;
        let mut count = 0;
        for record in self.records[..flush].iter().rev() {
            match record {
                Record::Write { disk, .. } => count += usize::from(!is_flushed[*disk]),
                Record::Flush { disk } => is_flushed[*disk] = true,
            }
            if is_flushed.iter().all(|flushed| *flushed) {
                break;
            }
        }
        count
    }
}

fn apply(disk: &mut Disk, record: &Record) {
    if let Record::Write { offset, bytes, .. } = record {
        disk.write(*offset, bytes);
    }
}

/// Applies the writes that are kept; returns how many are kept whole.
fn keep(disk: &mut Disk, open: &[&Record], fate: Fate, random: &mut Random) -> usize {
    let count = open.len();
    let chosen = if count == 0 { 0 } else { index(random, count) };
    let chance = 1 + random.below(99);
    let mut whole = 0;
    for (number, record) in open.iter().enumerate() {
        let is_kept = match fate {
            Fate::Nothing => false,
            Fate::Everything => true,
            Fate::Prefix => number < chosen,
            Fate::EverythingButOne => number != chosen,
            Fate::One => number == chosen,
            Fate::Subset => random.below(100) < chance,
            Fate::SubsetOfSectors => false,
        };
        if is_kept {
            apply(disk, record);
            whole += 1;
        } else if fate == Fate::SubsetOfSectors {
            whole += usize::from(tear(disk, record, |random| random.below(100) < chance, random));
        } else if fate == Fate::Prefix && number == chosen {
            let mut left = random.below(64);
            let first_ones = |_: &mut Random| {
                let is_kept = left > 0;
                left = left.saturating_sub(1);
                is_kept
            };
            whole += usize::from(tear(disk, record, first_ones, random));
        }
    }
    whole
}

/// Writes the sectors that are chosen; whether those were all.
fn tear(disk: &mut Disk, record: &Record, mut choose: impl FnMut(&mut Random) -> bool, random: &mut Random) -> bool {
    let Record::Write { offset, bytes, .. } = record else { return true };
    let mut is_whole = true;
    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
        if choose(random) {
            disk.write(offset + (number * SECTOR) as u64, sector);
        } else {
            is_whole = false;
        }
    }
    is_whole
}

fn index(random: &mut Random, count: usize) -> usize {
    usize::try_from(random.below(count as u64)).expect("an index fits")
}

/// Candidates of which the one is taken at which another disk has most to lose.
const CANDIDATES: usize = 6;

/// Where power failures are most telling: right after a promise; right before a flush that has something to flush; right
/// after a flush of one disk while another one has much to lose, because that is where the order between tiers is broken;
/// anywhere.
pub fn choose_position(recording: &Recording, promised: &[Position], random: &mut Random) -> Position {
    let records = &recording.records;
    let pairs = records.windows(2).enumerate();
    let flushes = pairs.filter(|(_, pair)| pair[1].is_flush() && !pair[0].is_flush()).map(|(at, _)| at + 1);
    let flushes: Vec<usize> = flushes.collect();
    let anywhere = Position(index(random, records.len() + 1));
    match random.below(10) {
        0..2 if !promised.is_empty() => promised[index(random, promised.len())],
        2..4 if !flushes.is_empty() => Position(flushes[index(random, flushes.len())]),
        4..8 if !flushes.is_empty() => {
            let candidates = (0..CANDIDATES).map(|_| flushes[index(random, flushes.len())]);
            let flush = candidates.max_by_key(|flush| recording.unflushed_elsewhere(*flush));
            Position(flush.expect("there are candidates") + 1)
        }
        _ => anywhere,
    }
}

#[test]
fn an_image_has_what_was_flushed_and_only_sectors_that_were_written() {
    let write = |disk, sector: u64, value| Record::Write {
        disk,
        offset: sector * SECTOR as u64,
        bytes: vec![value; 3 * SECTOR].into(),
    };
    let records =
        vec![write(0, 0, 1), write(1, 0, 2), Record::Flush { disk: 0 }, write(0, 1, 3), write(0, 2, 4), write(1, 1, 5)];
    let recording = Recording { base: vec![Disk::new(1 << 16), Disk::new(1 << 16)], records };
    let mut seen: BTreeMap<(usize, usize), Vec<u8>> = BTreeMap::new();
    for seed in 0..400 {
        let image = recording.image(Position(6), Flushes::Kept, seed);
        for (disk, state) in image.disks.iter().enumerate() {
            for sector in 0..6 {
                let bytes = state.read((sector * SECTOR) as u64, SECTOR);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is never torn");
                seen.entry((disk, sector)).or_default().push(bytes[0]);
            }
        }
    }
    for values in seen.values_mut() {
        values.sort_unstable();
        values.dedup();
    }
    let seen: Vec<Vec<u8>> = seen.into_values().collect();
    let flushed: [&[u8]; 6] = [&[1], &[1, 3], &[1, 3, 4], &[0, 3, 4], &[0, 4], &[0]];
    assert_eq!(seen[..6], flushed);
    let unflushed: [&[u8]; 6] = [&[0, 2], &[0, 2, 5], &[0, 2, 5], &[0, 5], &[0], &[0]];
    assert_eq!(seen[6..], unflushed);
    let ignored = (0..400).map(|seed| recording.image(Position(6), Flushes::Ignored, seed).disks[0].read(0, 1)[0]);
    assert!(ignored.into_iter().any(|byte| byte == 0), "a flush that is ignored keeps nothing");
}
