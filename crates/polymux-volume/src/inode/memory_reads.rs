//! What a description knows of its objects so that small reads which memory answers cost little more than the call to the kernel
//! (docs/design/0045).
//!
//! Invariants:
//! * Objects are held weakly: the descriptor of one that the file gave up is closed, and its space freed, as if it were not known here.
//! * Reads that follow one another are none of these, so that streams are seen whole.

use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use polymux_tier::MemoryReads;
use polymux_types::ObjectId;
use polymux_types::sync::RwLock;

/// Objects of one file that are remembered; a file on more tiers forgets the others.
const OBJECTS_MAX: usize = 8;
/// Of so many reads one goes the ordinary way, which looks at the age of the access time.
const ORDINARY_EVERY: u32 = 1024;

/// Reads of one description that memory answered.
#[derive(Default)]
pub struct MemoryReadState {
    objects: RwLock<Vec<(ObjectId, Weak<dyn MemoryReads>)>>,
    /// Where the last read ended.
    last_end: AtomicU64,
    /// Reads that began.
    begun: AtomicU32,
}

impl std::fmt::Debug for MemoryReadState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MemoryReadState").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl MemoryReadState {
    /// Whether a read may be answered by memory alone: it does not go on where the last one ended, and it is not the one of many that goes the
    /// ordinary way. Called once for each read.
    #[inline]
    pub fn may_begin(&self, offset: u64, length: u64) -> bool {
        // Of two readers at once one may be forgotten: these are guesses.
        let last_end = self.last_end.load(Ordering::Relaxed);
        self.last_end.store(offset.saturating_add(length), Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed).wrapping_add(1);
        self.begun.store(begun, Ordering::Relaxed);
        last_end != offset && !begun.is_multiple_of(ORDINARY_EVERY)
    }

    /// Reads bytes of an object that are in memory, if the object is known.
    #[inline]
    pub fn read(&self, object: ObjectId, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let found = {
            let objects = self.objects.read();
            objects.iter().find(|(known, _)| *known == object)?.1.upgrade()?
        };
        found.read_from_memory(offset, buffer)
    }

    /// Whether an object is known and open.
    pub fn knows(&self, object: ObjectId) -> bool {
        self.objects.read().iter().any(|(known, reads)| *known == object && reads.strong_count() > 0)
    }

    /// Remembers an open object.
    pub fn remember(&self, object: ObjectId, reads: Weak<dyn MemoryReads>) {
        let mut objects = self.objects.write();
        objects.retain(|(known, reads)| *known != object && reads.strong_count() > 0);
        objects.truncate(OBJECTS_MAX - 1);
        objects.push((object, reads));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Sevens;

    impl MemoryReads for Sevens {
        fn read_from_memory(&self, _offset: u64, buffer: &mut [u8]) -> Option<usize> {
            buffer.fill(7);
            Some(buffer.len())
        }
    }

    #[test]
    fn reads_in_a_row_and_every_thousandth_go_the_ordinary_way() {
        let state = MemoryReadState::default();
        assert!(state.may_begin(100, 10));
        assert!(!state.may_begin(110, 10), "it goes on where the last one ended");
        assert!(!state.may_begin(120, 10));
        let ordinary =
            (0..u64::from(ORDINARY_EVERY) * 3).filter(|number| !state.may_begin(number % 2 * 500, 10)).count();
        assert_eq!(ordinary, 3);
    }

    #[test]
    fn an_object_that_was_closed_is_not_kept_open_and_not_read() {
        let state = MemoryReadState::default();
        let (object, mut buffer) = (ObjectId(5), [0; 3]);
        let open: Arc<dyn MemoryReads> = Arc::new(Sevens);
        state.remember(object, Arc::downgrade(&open));
        assert_eq!((state.read(object, 0, &mut buffer), buffer), (Some(3), [7; 3]));
        assert_eq!(state.read(ObjectId(6), 0, &mut buffer), None);
        assert!(state.knows(object));
        drop(open);
        assert_eq!(state.read(object, 0, &mut buffer), None);
        assert!(!state.knows(object));
    }
}
