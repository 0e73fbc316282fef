//! State of a description by which small reads that memory answers cost little more than the call to the kernel (docs/design/0045).
//!
//! Invariants:
//! * Objects are held weakly: the descriptor of one that the file gave up is closed, and its space freed, as if it were not known here.
//! * Reads that go on where another one ended are none of these, nor is the first one of a description. Ends of several streams are remembered.
//! * After a read that memory did not answer the next ones are not tried: a try begins the work of a device, which nothing watches or times.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use polymux_tier::MemoryReads;
use polymux_types::ObjectId;
use polymux_types::sync::RwLock;

/// Objects of one file that are remembered; a file on more tiers forgets the others.
const OBJECTS_MAX: usize = 8;
/// Places for ends of reads. Another read takes the place of one in thirty-two, so that few reads of a stream are missed.
const ENDS: usize = 32;
/// Reads that go the ordinary way after one that memory did not answer.
const PAUSE: u32 = 16;

/// Reads of one description that memory answers.
pub struct MemoryReadState {
    objects: RwLock<Vec<(ObjectId, Weak<dyn MemoryReads>)>>,
    /// Where reads ended, each in the place of its number.
    ends: [AtomicU64; ENDS],
    /// Reads that still go the ordinary way; the first one of a description does.
    pause: AtomicU32,
}

impl Default for MemoryReadState {
    fn default() -> Self {
        Self {
            objects: RwLock::default(),
            ends: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            pause: AtomicU32::new(1),
        }
    }
}

impl std::fmt::Debug for MemoryReadState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MemoryReadState").field("pause", &self.pause).finish_non_exhaustive()
    }
}

impl MemoryReadState {
    fn end_of(&self, offset: u64) -> &AtomicU64 {
        // A multiplicative hash: ends of streams with equal blocks differ in few bits.
        let mixed = offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.ends[usize::try_from(mixed % ENDS as u64).expect("it is below the number of ends")]
    }

    /// Notes a read, whatever its length. Returns whether it may be tried from memory: it goes on where no other one ended, and no
    /// pause lasts. Called once for each read; of two at once one may be forgotten, because these are guesses.
    #[inline]
    pub fn begin(&self, offset: u64, length: u64) -> bool {
        let goes_on = self.end_of(offset).load(Ordering::Relaxed) == offset;
        let end = offset.saturating_add(length);
        self.end_of(end).store(end, Ordering::Relaxed);
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
        }
        !goes_on && pause == 0
    }

    /// An object that is known and open.
    #[inline]
    pub fn find(&self, object: ObjectId) -> Option<Arc<dyn MemoryReads>> {
        self.objects.read().iter().find(|(known, _)| *known == object)?.1.upgrade()
    }

    /// Remembers an open object.
    pub fn remember(&self, object: ObjectId, reads: Weak<dyn MemoryReads>) {
        let mut objects = self.objects.write();
        objects.retain(|(known, reads)| *known != object && reads.strong_count() > 0);
        objects.truncate(OBJECTS_MAX - 1);
        objects.push((object, reads));
    }

    /// Memory did not answer a read.
    pub fn note_miss(&self) {
        self.pause.store(PAUSE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sevens;

    impl MemoryReads for Sevens {
        fn read_from_memory(&self, _offset: u64, buffer: &mut [u8]) -> Option<usize> {
            buffer.fill(7);
            Some(buffer.len())
        }
    }

    #[test]
    fn the_first_read_and_those_of_streams_go_the_ordinary_way() {
        let state = MemoryReadState::default();
        assert!(!state.begin(100, 10), "the first one");
        assert!(state.begin(500, 10));
        // Two streams by turns, one of headers and long bodies.
        let (mut records, mut blocks, mut tried) = (1 << 20, 1 << 30, 0);
        for _ in 0..100 {
            let reads = [(records, 12), (blocks, 4096), (records + 12, 16_384)];
            tried += reads.into_iter().filter(|(offset, length)| state.begin(*offset, *length)).count();
            records += 12 + 16_384;
            blocks += 4096;
        }
        assert!(tried < 30, "{tried} of 300 reads were not recognised as parts of streams");
        assert!(state.begin(700, 10));
    }

    #[test]
    fn after_a_miss_the_next_reads_are_not_tried() {
        let state = MemoryReadState::default();
        state.begin(0, 1);
        state.note_miss();
        let tried = (1..40_u64).position(|number| state.begin(number * 1000, 10));
        assert_eq!(tried, Some(PAUSE as usize));
    }

    #[test]
    fn an_object_that_was_closed_is_not_kept_open() {
        let state = MemoryReadState::default();
        let (object, mut buffer) = (ObjectId(5), [0; 3]);
        let open: Arc<dyn MemoryReads> = Arc::new(Sevens);
        state.remember(object, Arc::downgrade(&open));
        let found = state.find(object).expect("it is open");
        assert_eq!((found.read_from_memory(0, &mut buffer), buffer), (Some(3), [7; 3]));
        assert!(state.find(ObjectId(6)).is_none());
        drop((open, found));
        assert!(state.find(object).is_none());
    }
}
