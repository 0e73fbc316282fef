//! Proven lengths of the objects of a file, to distinguish one that lost its end from one that ends with a hole.
//!
//! Invariants:
//! * A length is the one that a tier reported for a synced object, limited to the file and to the blocks that the map gives to the
//!   object. It is a lower bound: it decreases before the object is cut, or before the map gives its end to another one, and
//!   increases only by another report.
//! * The record holds for each object whether its length reaches the end required by the map and the size floor (`covers`), as of
//!   the time of the record. A change that makes the object shorter is recorded first, so that this holds after any crash.
//! * So an object that is shorter than its length has lost bytes below the file system. An object of unknown length is not judged:
//!   blocks beyond its end are a hole.

use polymux_records::blockmap::Owner;
use polymux_records::store::ObjectEntry;
use polymux_types::Block;

use super::Layout;

/// The last byte before `end`, which is the end of a byte range, that a slot owns; as the end of a range, 0 for none.
fn owned_end(layout: &Layout, slot: u8, end: u64) -> u64 {
    layout.map.last_of(slot, Block::at_or_after(end)).first_byte().min(end)
}

fn with_slots(objects: &[ObjectEntry]) -> impl Iterator<Item = (u8, &ObjectEntry)> {
    (0_u8..).zip(objects)
}

impl Layout {
    /// Believes a record that was just read.
    pub(super) fn believe_lengths(&mut self) {
        let lengths: Vec<u64> = with_slots(&self.objects)
            .map(|(slot, entry)| if entry.covers { owned_end(self, slot, self.size_floor) } else { 0 })
            .collect();
        for (entry, length) in self.objects.iter_mut().zip(lengths) {
            entry.known_length = length;
        }
    }

    /// The objects with the lengths that a record may hold.
    pub(super) fn objects_for_record(&self) -> Vec<ObjectEntry> {
        let covers = |slot: u8, entry: &ObjectEntry| {
            let length = entry.known_length;
            length > 0 && (length >= self.size_floor || owned_end(self, slot, self.size_floor) <= length)
        };
        with_slots(&self.objects).map(|(slot, entry)| ObjectEntry { covers: covers(slot, entry), ..*entry }).collect()
    }

    /// A tier said how long a synced object is; the file has `size` bytes.
    pub(crate) fn note_length(&mut self, slot: u8, length: u64, size: u64) {
        let length = owned_end(self, slot, length.min(size));
        let known = &mut self.objects[usize::from(slot)].known_length;
        *known = (*known).max(length);
    }

    /// Cuts the known lengths to bytes that the file still has and that no other object has.
    pub fn cut_lengths(&mut self, size: u64) {
        let cut = |slot: u8, entry: &ObjectEntry| match entry.known_length.min(size) {
            0 => 0,
            length => owned_end(self, slot, length),
        };
        let lengths: Vec<u64> = with_slots(&self.objects).map(|(slot, entry)| cut(slot, entry)).collect();
        for (entry, length) in self.objects.iter_mut().zip(lengths) {
            entry.known_length = length;
        }
    }

    /// Removes the range that an object ending at `end` lost, and marks the object damaged. Returns the lost ranges.
    pub fn lose_end(&mut self, slot: u8, end: u64) -> Vec<(u64, u64)> {
        let length = self.object(slot).known_length;
        if end >= length {
            return Vec::new();
        }
        let runs = self.map.runs(Block::holding(end), Block::at_or_after(length));
        let owned = runs.iter().filter(|run| run.owner == Some(Owner::Slot(slot)));
        let lost: Vec<(u64, u64)> = owned
            .map(|run| (end.max(run.start.first_byte()), length.min(run.end.first_byte())))
            .filter(|(from, to)| from < to)
            .collect();
        lost.iter().for_each(|(from, to)| self.damage_from(*from, *to));
        self.objects[usize::from(slot)].known_length = owned_end(self, slot, end);
        lost
    }
}

#[cfg(test)]
mod tests {
    use polymux_types::{Bucket, ObjectId, TierId};

    use super::*;
    use polymux_records::blockmap::BlockMap;

    /// Home has blocks 0 and 1 and all blocks from 4 on; the other object has 2 and 3.
    fn layout(size_floor: u64) -> Layout {
        let objects: Vec<ObjectEntry> =
            (0..2).map(|tier| ObjectEntry::new(TierId(tier), ObjectId(u64::from(tier) + 1), Bucket(0))).collect();
        let mut map = BlockMap::from_extents(Some(0), &[]).expect("a map");
        map.assign(Block(2), Block(4), Owner::Slot(1));
        Layout { map, objects, size_floor, ..Layout::default() }
    }

    fn covered(layout: &Layout) -> [bool; 2] {
        let objects = layout.objects_for_record();
        [objects[0].covers, objects[1].covers]
    }

    fn lengths(layout: &Layout) -> [u64; 2] {
        [layout.object(0).known_length, layout.object(1).known_length]
    }

    #[test]
    fn a_record_says_that_an_object_covers_what_the_map_gives_to_it_only_where_its_length_is_known() {
        let mut layout = layout(20_000);
        assert_eq!(covered(&layout), [false, false]);
        layout.note_length(0, 20_000, 20_000);
        layout.note_length(1, 16_384, 20_000);
        assert_eq!((lengths(&layout), covered(&layout)), ([20_000, 16_384], [true, true]));
        // The second object has nothing behind block 4.
        layout.size_floor = 30_000;
        assert_eq!(covered(&layout), [false, true]);
    }

    #[test]
    fn an_object_that_ends_before_its_last_run_covers_nothing_and_loses_nothing() {
        let mut layout = layout(20_000);
        layout.note_length(0, 8192, 20_000);
        assert_eq!((lengths(&layout), covered(&layout)), ([8192, 0], [false, false]));
        assert_eq!(layout.lose_end(0, 8192), []);
        assert_eq!(layout.lose_end(1, 0), []);
        assert_eq!(layout.damaged, []);
    }

    #[test]
    fn a_record_is_believed_up_to_its_floor() {
        let mut layout = layout(13_000);
        layout.objects.iter_mut().for_each(|entry| entry.covers = true);
        layout.believe_lengths();
        assert_eq!(lengths(&layout), [8192, 13_000]);
    }

    #[test]
    fn what_other_objects_get_or_the_file_loses_is_not_asked_for_any_more() {
        let mut layout = layout(20_000);
        layout.note_length(0, 20_000, 20_000);
        layout.note_length(1, 16_384, 20_000);
        layout.map.assign(Block(3), Block(4), Owner::Slot(0));
        layout.cut_lengths(18_000);
        assert_eq!(lengths(&layout), [18_000, 12_288]);
        layout.cut_lengths(0);
        assert_eq!(lengths(&layout), [0, 0]);
    }

    #[test]
    fn only_bytes_that_the_object_owned_are_lost_with_its_end() {
        let mut layout = layout(20_000);
        layout.note_length(0, 20_000, 20_000);
        assert_eq!(layout.lose_end(0, 100), [(100, 8192), (16_384, 20_000)]);
        assert_eq!(layout.damaged, [(100, 8192), (16_384, 20_480)]);
        assert_eq!((lengths(&layout), covered(&layout)), ([100, 0], [false, false]));
        assert_eq!(layout.lose_end(0, 100), []);
    }
}
