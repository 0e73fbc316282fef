//! How far the numbers of allocated blocks in a layout can be believed (docs/design/0029).
//!
//! Invariants:
//! * The numbers are in the objects of the layout. They change with its lock held, and only hints depend on them.
//! * A change of the space that an object takes is noted before and after. Numbers that were asked for earlier do not count then.
//! * Only numbers that no write, sync or freeing under way will change go into the record. With any others the record says that
//!   they are not known.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use polymux_records::store::ObjectEntry;
use polymux_types::sync::Mutex;

use super::Layout;

/// Objects must be asked.
const STALE: u8 = 0;
/// Objects are being asked.
const ASKING: u8 = 1;
/// The numbers answer `stat`, and may change without a write.
const PASSING: u8 = 2;
/// The numbers stay as they are until a change is noted.
const SETTLED: u8 = 3;

/// How long numbers hold that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// Until the written bytes are synced and all pending frees are done.
    Passing,
    /// Until the next change.
    Settled,
}

/// The answer of a tier about an object.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The object.
    pub entry: ObjectEntry,
    /// Units of 512 bytes that it takes.
    pub blocks: u64,
    /// Bytes that it durably has at the least.
    pub length: u64,
}

/// State of the numbers of one file.
#[derive(Debug)]
pub struct Allocation {
    state: AtomicU8,
    /// The space taken by an object changed since the inode was loaded.
    has_changed: AtomicBool,
    /// The last record has a number for every object.
    is_recorded: AtomicBool,
    /// An object was shorter than it certainly was, and that is not on record yet.
    looks_short: AtomicBool,
    /// Held to ask objects, so that no older answer comes after a newer one.
    pub asking: Mutex<()>,
}

/// The space taken by objects may change while this is held.
pub struct Changing<'a>(&'a Allocation);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.note_change();
    }
}

impl Allocation {
    /// Of a record; `is_certain` is not set where an unclean stop may have left numbers that are too old.
    pub(super) fn of_record(objects: &[ObjectEntry], trust: super::SizeTrust) -> Self {
        let is_recorded = has_all(objects);
        let is_believed = is_recorded && trust == super::SizeTrust::Settled;
        Self {
            state: AtomicU8::new(if is_believed { SETTLED } else { STALE }),
            has_changed: AtomicBool::new(false),
            is_recorded: AtomicBool::new(is_recorded),
            looks_short: AtomicBool::new(false),
            asking: Mutex::new(()),
        }
    }

    /// Notes that the space taken by an object may have changed just now.
    pub fn note_change(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
        self.state.store(STALE, Ordering::SeqCst);
    }

    /// The space taken by objects may change until the guard is dropped: answers from that time do not outlive it.
    pub fn changing(&self) -> Changing<'_> {
        self.note_change();
        Changing(self)
    }

    /// Whether `stat` is answered without asking.
    pub fn is_known(&self) -> bool {
        matches!(self.state.load(Ordering::SeqCst), PASSING | SETTLED)
    }

    pub fn is_settled(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SETTLED
    }

    /// Whether the numbers should be determined unasked: something changed, and the result is unknown or not final.
    pub fn is_to_be_learned(&self) -> bool {
        match self.state.load(Ordering::SeqCst) {
            PASSING => true,
            STALE => self.has_changed.load(Ordering::Relaxed),
            _ => false,
        }
    }

    /// An object was found to be shorter than it certainly was.
    pub fn note_short(&self) {
        self.looks_short.store(true, Ordering::Release);
    }

    pub fn looks_short(&self) -> bool {
        self.looks_short.load(Ordering::Acquire)
    }

    /// Notes that the loss of an object is recorded.
    pub fn clear_short(&self) {
        self.looks_short.store(false, Ordering::Release);
    }

    /// Whether the record has numbers that are not believed any more.
    pub fn contradicts_record(&self) -> bool {
        self.is_recorded.load(Ordering::Acquire) && self.has_changed.load(Ordering::Relaxed) && !self.is_settled()
    }

    /// Objects are asked from now on.
    pub fn begin_asking(&self) {
        self.state.store(ASKING, Ordering::SeqCst);
    }

    /// Not all of them answered.
    pub fn give_up_asking(&self) {
        self.state.store(STALE, Ordering::SeqCst);
    }

    /// Takes answers over, unless something changed meanwhile. Returns whether the record is to say something else now. Called
    /// with the lock of the layout held. The file has `size` bytes.
    pub fn end_asking(&self, layout: &mut Layout, answers: &[Answer], size: u64, quality: Quality) -> bool {
        let state = if quality == Quality::Settled { SETTLED } else { PASSING };
        if self.state.compare_exchange(ASKING, state, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        let mut differs = !self.is_recorded.load(Ordering::Acquire);
        let covers = |layout: &Layout| layout.objects_for_record().iter().map(|entry| entry.covers).collect::<Vec<_>>();
        let before = covers(layout);
        for Answer { entry, blocks, length } in answers {
            let is_same = |of: &ObjectEntry| (of.tier, of.object) == (entry.tier, entry.object);
            let Some(slot) = layout.objects.iter().position(is_same) else { continue };
            differs |= layout.objects[slot].allocated_blocks.replace(*blocks) != Some(*blocks);
            if quality == Quality::Settled {
                layout.note_length(u8::try_from(slot).expect("a file has one object a tier"), *length, size);
            }
        }
        quality == Quality::Settled && (differs || covers(layout) != before)
    }

    /// The one object that holds all of a file from now on, which has `size` bytes, is known to take so much. Called with the lock
    /// of the layout held, and with writers kept out.
    pub fn settle_single(&self, layout: &mut Layout, answer: &Answer, size: u64) {
        assert_eq!(layout.objects.len(), 1, "one object holds all of the file");
        layout.objects[0].allocated_blocks = Some(answer.blocks);
        layout.note_length(0, answer.length, size);
        self.state.store(SETTLED, Ordering::SeqCst);
    }

    /// The objects as they go into a record.
    pub(super) fn for_record(&self, mut objects: Vec<ObjectEntry>) -> Vec<ObjectEntry> {
        if !self.is_settled() {
            objects.iter_mut().for_each(|entry| entry.allocated_blocks = None);
        }
        objects
    }

    /// Notes the contents of a record that was just made.
    pub(crate) fn note_recorded(&self, objects: &[ObjectEntry]) {
        self.is_recorded.store(has_all(objects), Ordering::Release);
    }
}

/// Whether there is a number for each object.
pub(crate) fn has_all(objects: &[ObjectEntry]) -> bool {
    objects.iter().all(|entry| entry.allocated_blocks.is_some())
}

#[cfg(test)]
mod tests {
    use polymux_types::{Bucket, ObjectId, TierId};

    use super::super::SizeTrust;
    use super::*;

    fn entry(object: u64, allocated_blocks: Option<u64>) -> ObjectEntry {
        ObjectEntry { allocated_blocks, ..ObjectEntry::new(TierId(0), ObjectId(object), Bucket(0)) }
    }

    fn layout(numbers: &[Option<u64>]) -> Layout {
        let objects = (1..).zip(numbers).map(|(object, blocks)| entry(object, *blocks)).collect();
        Layout { objects, ..Layout::default() }
    }

    fn recorded(allocation: &Allocation, layout: &Layout) -> Vec<Option<u64>> {
        allocation.for_record(layout.objects.clone()).iter().map(|entry| entry.allocated_blocks).collect()
    }

    #[test]
    fn numbers_of_a_record_are_believed_unless_one_is_missing_or_the_last_stop_was_unclean() {
        let known =
            |numbers: &[Option<u64>], trust| Allocation::of_record(&layout(numbers).objects, trust).is_settled();
        assert!(known(&[Some(8), Some(0)], SizeTrust::Settled));
        assert!(!known(&[Some(8), None], SizeTrust::Settled));
        assert!(!known(&[Some(8)], SizeTrust::Doubtful));
    }

    #[test]
    fn an_answer_from_before_a_change_does_not_count() {
        let mut layout = layout(&[None]);
        let allocation = Allocation::of_record(&layout.objects, SizeTrust::Settled);
        let answers = [Answer { entry: layout.objects[0], blocks: 8, length: 0 }];
        allocation.begin_asking();
        allocation.note_change();
        assert!(!allocation.end_asking(&mut layout, &answers, 0, Quality::Settled) && !allocation.is_known());
        let changing = allocation.changing();
        allocation.begin_asking();
        assert!(allocation.end_asking(&mut layout, &answers, 0, Quality::Settled) && allocation.is_known());
        drop(changing);
        assert!(!allocation.is_known() && recorded(&allocation, &layout) == [None]);
    }

    #[test]
    fn only_settled_numbers_go_into_a_record_and_only_once() {
        let mut layout = layout(&[None]);
        let allocation = Allocation::of_record(&layout.objects, SizeTrust::Settled);
        let answers = [Answer { entry: layout.objects[0], blocks: 8, length: 0 }];
        for (quality, is_due, in_record) in [(Quality::Passing, false, None), (Quality::Settled, true, Some(8))] {
            allocation.begin_asking();
            assert_eq!(allocation.end_asking(&mut layout, &answers, 0, quality), is_due);
            assert_eq!((allocation.is_known(), recorded(&allocation, &layout)), (true, vec![in_record]));
        }
        allocation.note_recorded(&layout.objects);
        allocation.note_change();
        assert!(allocation.contradicts_record() && allocation.is_to_be_learned());
        allocation.begin_asking();
        assert!(!allocation.end_asking(&mut layout, &answers, 0, Quality::Settled), "the record says so already");
        assert!(!allocation.contradicts_record() && !allocation.is_to_be_learned());
    }
}
