//! The map itself: home and exceptions.
//!
//! Invariant: while changes are recorded, each change of the home or of an exception is noted before the next one, so that all can be
//! taken back.

use std::ops::Range;

use polymux_types::Block;

use super::Owner;
use super::exceptions::Exceptions;
use super::undo::UndoLog;

/// An exception: blocks `start..end` belong to `owner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub start: Block,
    /// The block behind the last one.
    pub end: Block,
    /// The slot that owns the blocks, or a hole.
    pub owner: Owner,
}

/// Blocks `start..end` that share an owner; `None` where there is no home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: Block,
    /// The block behind the last one.
    pub end: Block,
    /// The owner; `None` in a file without objects.
    pub owner: Option<Owner>,
}

/// The changed extent records that a transaction must delete and put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapChange {
    /// End blocks of extents that are gone.
    pub removed: Vec<Block>,
    /// Extents that are new or changed.
    pub added: Vec<Extent>,
}

impl MapChange {
    /// Adds a change that was made after this one, so that both are one.
    pub fn then(&mut self, later: Self) {
        for end in later.removed {
            self.added.retain(|extent| extent.end != end);
            self.removed.push(end);
        }
        for extent in later.added {
            self.added.retain(|earlier| earlier.end != extent.end);
            self.added.push(extent);
        }
        self.removed.sort_unstable();
        self.removed.dedup();
        self.removed.retain(|end| !self.added.iter().any(|extent| extent.end == *end));
    }
}

/// Home slot and exceptions.
#[derive(Clone, Debug, Default)]
pub struct BlockMap {
    home: Option<u8>,
    exceptions: Exceptions,
    /// The changes made since [`BlockMap::record`].
    recorded: Option<UndoLog>,
}

/// Equal maps have equal owners; whether changes are recorded does not count.
impl PartialEq for BlockMap {
    fn eq(&self, other: &Self) -> bool {
        (self.home, &self.exceptions) == (other.home, &other.exceptions)
    }
}

impl Eq for BlockMap {}

impl BlockMap {
    /// A map from its records. Fails with the reason where they break an invariant.
    pub fn from_extents(home: Option<u8>, extents: &[Extent]) -> Result<Self, &'static str> {
        let mut map = Self { home, ..Self::default() };
        let mut reached = Block(0);
        for extent in extents {
            if extent.start >= extent.end {
                return Err("an extent is empty");
            }
            if extent.start < reached {
                return Err("two extents overlap");
            }
            if home.is_none() || Some(extent.owner) == home.map(Owner::Slot) {
                return Err("an extent is not an exception");
            }
            reached = extent.end;
            map.exceptions.insert(extent.end, (extent.start, extent.owner));
        }
        Ok(map)
    }

    /// The slot that owns every block without an exception; `None` in a file without objects.
    #[inline]
    pub fn home(&self) -> Option<u8> {
        self.home
    }

    /// Gives a file without objects its home.
    pub fn set_home(&mut self, slot: u8) {
        assert!(self.home.is_none() && self.exceptions.is_empty(), "a home is given once");
        self.change_home(Some(slot));
    }

    /// Records changes from now on.
    pub fn record(&mut self) {
        self.recorded = Some(UndoLog::default());
    }

    /// Ends the recording, and returns the changes.
    pub fn end_recording(&mut self) -> UndoLog {
        self.recorded.take().unwrap_or_default()
    }

    /// Takes recorded changes back. There were none since the recording ended.
    pub fn take_back(&mut self, changes: UndoLog) {
        changes.take_back(&mut self.home, &mut self.exceptions);
    }

    fn change_home(&mut self, home: Option<u8>) {
        let before = std::mem::replace(&mut self.home, home);
        if let Some(recorded) = &mut self.recorded {
            recorded.note_home(before);
        }
    }

    fn remove(&mut self, end: Block) {
        let before = self.exceptions.remove(end);
        if let Some(recorded) = &mut self.recorded {
            recorded.note_exception(end, before);
        }
    }

    /// Back to a file without objects.
    pub fn clear(&mut self) -> MapChange {
        self.change_home(None);
        let exceptions = std::mem::take(&mut self.exceptions);
        let removed = exceptions.iter().map(|(end, _)| end).collect();
        if let Some(recorded) = &mut self.recorded {
            recorded.note_cleared(exceptions);
        }
        MapChange { removed, added: Vec::new() }
    }

    /// Whether any range has another owner than the home.
    #[inline]
    pub fn has_exceptions(&self) -> bool {
        !self.exceptions.is_empty()
    }

    /// Ranges with another owner than the home, in order.
    pub fn exceptions(&self) -> impl Iterator<Item = Extent> + '_ {
        self.exceptions.iter().map(|(end, (start, owner))| Extent { start, end, owner })
    }

    /// The owner of a block and how far its run reaches.
    #[inline]
    pub fn run_at(&self, block: Block) -> Run {
        let home = self.home.map(Owner::Slot);
        match self.exceptions.range(block + 1..).next() {
            Some((end, (start, owner))) if start <= block => Run { start: block, end, owner: Some(owner) },
            Some((_, (start, _))) => Run { start: block, end: start, owner: home },
            None => Run { start: block, end: Block::END, owner: home },
        }
    }

    /// Where the last run of a slot ends that begins before a block, at that block at the latest; block 0 where there is none.
    pub fn last_of(&self, slot: u8, before: Block) -> Block {
        let is_home = self.home == Some(slot);
        let mut at = before;
        while at > Block(0) {
            let covering = self.exceptions.range(at..).next().filter(|(_, (start, _))| *start < at);
            at = match covering {
                Some((_, (_, owner))) if owner == Owner::Slot(slot) => return at,
                Some((_, (start, _))) => start,
                None if is_home => return at,
                None => self.exceptions.range(..at).next_back().map_or(Block(0), |(end, _)| end),
            };
        }
        Block(0)
    }

    /// The owner of the tail of the file.
    #[inline]
    pub fn tail(&self) -> Option<Owner> {
        self.run_at(Block::END - 1).owner
    }

    /// Slots that own a block, blocks that the file has not reached included.
    pub fn owners(&self) -> Vec<u8> {
        let home = self.home.filter(|_| self.exceptions.blocks() < Block::END - Block(0));
        let mut slots: Vec<u8> = self.exceptions.slots().chain(home).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Gives the owners other slot numbers and the file another home; which blocks they own does not change. `numbers` gives each owner
    /// its new number.
    pub fn renumber(&mut self, home: u8, numbers: impl Fn(u8) -> u8) -> MapChange {
        let runs = self.runs(Block(0), Block::END);
        let mut change = self.clear();
        self.change_home(Some(numbers(home)));
        for run in runs {
            let owner = match run.owner.expect("a file with a home has an owner for each block") {
                Owner::Slot(slot) => Owner::Slot(numbers(slot)),
                Owner::Hole => Owner::Hole,
            };
            if Some(owner) != self.home.map(Owner::Slot) {
                self.insert(Extent { start: run.start, end: run.end, owner }, &mut change);
            }
        }
        change.removed.retain(|end| !change.added.iter().any(|extent| extent.end == *end));
        change
    }

    /// Runs that are intentionally unowned.
    pub fn holes(&self) -> Vec<Range<Block>> {
        self.exceptions().filter(|extent| extent.owner == Owner::Hole).map(|hole| hole.start..hole.end).collect()
    }

    /// The runs that cover blocks `start..end`, in order.
    pub fn runs(&self, start: Block, end: Block) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut block = start;
        while block < end {
            let mut run = self.run_at(block);
            run.end = run.end.min(end);
            block = run.end;
            runs.push(run);
        }
        runs
    }

    /// Gives blocks `start..end` to an owner.
    pub fn assign(&mut self, start: Block, end: Block, owner: Owner) -> MapChange {
        assert!(start < end, "an assignment covers a block");
        assert!(self.home.is_some(), "a file has a home before it has exceptions");
        let mut change = MapChange::default();
        let is_home = self.home.map(Owner::Slot) == Some(owner);
        let (mut merged_start, mut merged_end) = (start, end);
        // Everything that overlaps or touches: touched neighbours of the same owner become one extent.
        let touched: Vec<Extent> = self
            .exceptions
            .range(start..)
            .map(|(end, (start, owner))| Extent { start, end, owner })
            .take_while(|extent| extent.start <= end)
            .collect();
        for extent in touched {
            let overlaps = extent.start < end && extent.end > start;
            if extent.owner == owner && !is_home {
                merged_start = merged_start.min(extent.start);
                merged_end = merged_end.max(extent.end);
            } else if !overlaps {
                continue;
            }
            self.remove(extent.end);
            change.removed.push(extent.end);
            if extent.owner != owner {
                if extent.start < start {
                    self.insert(Extent { end: start, ..extent }, &mut change);
                }
                if extent.end > end {
                    self.insert(Extent { start: end, ..extent }, &mut change);
                }
            }
        }
        if !is_home {
            self.insert(Extent { start: merged_start, end: merged_end, owner }, &mut change);
        }
        change.removed.retain(|end| !change.added.iter().any(|extent| extent.end == *end));
        change
    }

    fn insert(&mut self, extent: Extent, change: &mut MapChange) {
        let before = self.exceptions.insert(extent.end, (extent.start, extent.owner));
        if let Some(recorded) = &mut self.recorded {
            recorded.note_exception(extent.end, before);
        }
        change.added.push(extent);
    }

    /// Cuts the map at a block: the owner of the last one before it owns it and all following blocks. With no block left, or where the last
    /// one is a hole, home does: blocks that the file may still grow to always have an owner.
    pub fn cut(&mut self, end: Block) -> MapChange {
        let last = if end == Block(0) { None } else { self.run_at(end - 1).owner };
        let tail = last.filter(|owner| *owner != Owner::Hole).or(self.home.map(Owner::Slot));
        match tail {
            Some(owner) if self.has_exceptions() => self.assign(end, Block::END, owner),
            _ => MapChange::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    const BLOCKS: usize = 24;

    fn oracle_owner(map: &BlockMap, block: usize) -> Option<Owner> {
        map.run_at(Block(block as u64)).owner
    }

    fn check_invariants(map: &BlockMap) {
        let extents: Vec<Extent> = map.exceptions().collect();
        assert_eq!(BlockMap::from_extents(map.home(), &extents).as_ref(), Ok(map));
        let owned_by = |slot| map.runs(Block(0), Block::END).iter().any(|run| run.owner == Some(Owner::Slot(slot)));
        assert_eq!(map.owners(), (0..=u8::MAX).filter(|slot| owned_by(*slot)).collect::<Vec<_>>());
        for pair in extents.windows(2) {
            assert!(
                pair[0].end < pair[1].start || pair[0].owner != pair[1].owner,
                "neighbours are coalesced: {pair:?}"
            );
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Assign(Block, Block, Owner),
        Cut(Block),
    }

    fn step() -> impl Strategy<Value = Step> {
        let owner = prop_oneof![(0_u8..4).prop_map(Owner::Slot), Just(Owner::Hole)];
        let last = BLOCKS as u64;
        prop_oneof![
            6 => (0..last, 1..=last, any::<bool>(), owner).prop_map(move |(start, length, open, owner)| {
                let end = if open { Block::END } else { Block((start + length).min(last + 4)) };
                Step::Assign(Block(start), end, owner)
            }),
            1 => (0..last).prop_map(|end| Step::Cut(Block(end))),
        ]
    }

    proptest! {
        #[test]
        fn the_map_agrees_with_one_owner_per_block_and_its_changes_rebuild_it(steps in prop::collection::vec(step(), 1..40)) {
            let mut map = BlockMap::default();
            map.set_home(0);
            let mut oracle = [Owner::Slot(0); BLOCKS + 8];
            let mut records: BTreeMap<Block, Extent> = BTreeMap::new();
            for step in steps {
                let (change, start, end, owner) = match step {
                    Step::Assign(start, end, owner) => (map.assign(start, end, owner), start, end, owner),
                    Step::Cut(end) => {
                        let last = if end == Block(0) { Owner::Hole } else { oracle[usize::try_from(end.0 - 1).unwrap()] };
                        let tail = if last == Owner::Hole { Owner::Slot(0) } else { last };
                        (map.cut(end), end, Block::END, tail)
                    }
                };
                for (block, slot) in oracle.iter_mut().enumerate() {
                    if (start..end).contains(&Block(block as u64)) {
                        *slot = owner;
                    }
                }
                for end in &change.removed {
                    prop_assert!(records.remove(end).is_some(), "only a record that exists is deleted");
                }
                for extent in &change.added {
                    records.insert(extent.end, *extent);
                }
                for (block, owner) in oracle.iter().enumerate() {
                    prop_assert_eq!(oracle_owner(&map, block), Some(*owner), "block {}", block);
                }
                check_invariants(&map);
                let rebuilt: Vec<Extent> = records.values().copied().collect();
                let rebuilt = BlockMap::from_extents(Some(0), &rebuilt);
                prop_assert_eq!(rebuilt.as_ref(), Ok(&map));
            }
        }
    }

    proptest! {
        #[test]
        fn recorded_changes_can_be_taken_back(
            before in prop::collection::vec(step(), 0..20),
            steps in prop::collection::vec(step(), 0..10),
            renumbers in any::<bool>(),
            clears in any::<bool>(),
        ) {
            let mut map = BlockMap::default();
            map.set_home(0);
            let apply = |map: &mut BlockMap, step: &Step| match *step {
                Step::Assign(start, end, owner) => map.assign(start, end, owner),
                Step::Cut(end) => map.cut(end),
            };
            for step in &before {
                apply(&mut map, step);
            }
            let original = map.clone();
            map.record();
            for step in &steps {
                apply(&mut map, step);
            }
            if renumbers {
                map.renumber(1, |slot| slot + 1);
            }
            if clears {
                map.clear();
                map.set_home(3);
            }
            let changes = map.end_recording();
            map.take_back(changes);
            prop_assert_eq!(&map, &original);
        }
    }

    #[test]
    fn what_is_recorded_of_a_change_does_not_grow_with_the_map() {
        let mut map = BlockMap::default();
        map.set_home(0);
        (0..100_000).for_each(|range| {
            map.assign(Block(range * 512), Block::END, Owner::Slot(u8::try_from(range % 3).expect("a slot")));
        });
        map.record();
        map.assign(Block(100_000 * 512), Block::END, Owner::Slot(1));
        map.assign(Block(512 * 7), Block(512 * 8), Owner::Slot(2));
        assert!(map.end_recording().len() < 10);
    }

    #[test]
    fn a_file_on_one_tier_has_no_extent() {
        let mut map = BlockMap::default();
        map.set_home(2);
        map.assign(Block(5), Block(9), Owner::Slot(1));
        map.assign(Block(0), Block::END, Owner::Slot(2));
        assert!(!map.has_exceptions());
        assert_eq!(map.tail(), Some(Owner::Slot(2)));
    }

    #[test]
    fn renumbering_keeps_every_owner_and_says_what_changed() {
        let mut map = BlockMap::default();
        map.set_home(0);
        let mut change = map.assign(Block(0), Block(4), Owner::Slot(1));
        change.then(map.assign(Block(4), Block::END, Owner::Slot(2)));
        change.then(map.assign(Block(7), Block(8), Owner::Hole));
        assert_eq!(map.owners(), [1, 2]);
        change.then(map.renumber(2, |slot| slot - 1));
        assert_eq!((map.home(), map.owners()), (Some(1), vec![0, 1]));
        assert_eq!(map.run_at(Block(3)).owner, Some(Owner::Slot(0)));
        assert_eq!(map.run_at(Block(7)).owner, Some(Owner::Hole));
        assert_eq!(map.run_at(Block(9)).owner, Some(Owner::Slot(1)));
        let rebuilt = BlockMap::from_extents(Some(1), &{
            let mut added = change.added;
            added.sort_unstable_by_key(|extent| extent.end);
            added
        });
        assert_eq!(rebuilt, Ok(map));
    }

    #[test]
    fn runs_cover_a_range_without_gap() {
        let mut map = BlockMap::default();
        map.set_home(0);
        map.assign(Block(2), Block(4), Owner::Slot(1));
        map.assign(Block(6), Block::END, Owner::Slot(2));
        let runs: Vec<(u64, u64)> = map.runs(Block(1), Block(8)).iter().map(|run| (run.start.0, run.end.0)).collect();
        assert_eq!(runs, [(1, 2), (2, 4), (4, 6), (6, 8)]);
    }

    #[test]
    fn records_that_overlap_are_refused() {
        let extent = |start, end| Extent { start: Block(start), end: Block(end), owner: Owner::Slot(1) };
        assert!(BlockMap::from_extents(Some(0), &[extent(0, 5), extent(4, 9)]).is_err());
        assert!(BlockMap::from_extents(Some(1), &[extent(0, 5)]).is_err());
        assert!(BlockMap::from_extents(None, &[extent(0, 5)]).is_err());
    }
}
