//! A table of the operations that are under way, which a watcher reads while they come and go.
//!
//! Invariants:
//! * A slot is free while its word is 0. It belongs to the thread whose exchange of that 0 succeeded, until its [`InFlight`] is dropped.
//! * Where all slots are taken an operation runs without one: the table never makes an operation wait or fail.
//! * The word is all that a watcher may rely on: thread and item are stored after it. Until then the thread is 0, and the item
//!   that of the slot's operation before.
//! * Taking and freeing a slot are a few stores to memory that no other thread uses at the moment.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

thread_local! {
    /// Its address tells threads that live at the same time apart.
    static MARK: u8 = const { 0 };
}

/// Names the calling thread among those that live now. Never zero.
#[must_use]
pub fn thread_token() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// An operation under way. Adjacent cache lines are fetched in pairs, so slots are two lines apart.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct InFlightSlot<T> {
    word: AtomicU64,
    token: AtomicUsize,
    /// Further state of the operation.
    pub item: T,
}

impl<T> InFlightSlot<T> {
    /// The word of the operation; `None` where the slot is free.
    #[must_use]
    pub fn word(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.word.load(Ordering::Acquire))
    }

    /// The thread of the operation, as [`thread_token`] names it; 0 while it is not stored yet.
    #[must_use]
    pub fn token(&self) -> usize {
        self.token.load(Ordering::Relaxed)
    }

    /// Changes the word, unless the operation has ended or its word was changed meanwhile. Returns whether it did.
    pub fn update(&self, before: NonZeroU64, after: NonZeroU64) -> bool {
        self.word.compare_exchange(before.get(), after.get(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The slot of an operation under way, which is free again when this is dropped.
#[derive(Debug)]
pub struct InFlight<'a, T>(&'a InFlightSlot<T>);

impl<T> std::ops::Deref for InFlight<'_, T> {
    type Target = InFlightSlot<T>;

    fn deref(&self) -> &InFlightSlot<T> {
        self.0
    }
}

impl<T> Drop for InFlight<'_, T> {
    fn drop(&mut self) {
        // So that the next operation never shows this thread before its own.
        self.0.token.store(0, Ordering::Relaxed);
        self.0.word.store(0, Ordering::Release);
    }
}

/// A table of fixed size.
#[derive(Debug)]
pub struct InFlightTable<T> {
    slots: Box<[InFlightSlot<T>]>,
}

impl<T: Default> InFlightTable<T> {
    /// A table for so many operations at a time.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| InFlightSlot::default()).collect() }
    }
}

impl<T> InFlightTable<T> {
    /// Takes a free slot for an operation of the calling thread; `None` where all are taken.
    pub fn take(&self, word: NonZeroU64) -> Option<InFlight<'_, T>> {
        let token = thread_token();
        // Threads are far apart in memory, and mostly by a power of two.
        let first = token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let count = self.slots.len();
        let slot = (0..count).map(|attempt| &self.slots[(first + attempt) % count]).find(|slot| {
            slot.word.load(Ordering::Relaxed) == 0
                && slot.word.compare_exchange(0, word.get(), Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        slot.token.store(token, Ordering::Relaxed);
        Some(InFlight(slot))
    }

    /// The slots that are taken at the moment, with their words.
    pub fn taken(&self) -> impl Iterator<Item = (&InFlightSlot<T>, NonZeroU64)> {
        self.slots.iter().filter_map(|slot| Some((slot, slot.word()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).expect("not zero")
    }

    #[test]
    fn a_full_table_takes_no_more_and_a_freed_slot_is_taken_again() {
        let table = InFlightTable::<()>::new(2);
        let (first, second) = (table.take(word(1)).expect("free"), table.take(word(2)).expect("free"));
        assert!(table.take(word(3)).is_none());
        drop(first);
        assert_eq!(table.taken().map(|(_, word)| word.get()).collect::<Vec<_>>(), [2]);
        let third = table.take(word(3)).expect("free again");
        assert_eq!((third.word(), second.token()), (Some(word(3)), thread_token()));
    }

    #[test]
    fn a_word_is_changed_only_while_it_is_that_of_the_operation() {
        let table = InFlightTable::<()>::new(1);
        let slot = table.take(word(1)).expect("free");
        assert!(slot.update(word(1), word(5)));
        assert!(!slot.update(word(1), word(6)));
        assert_eq!(slot.word(), Some(word(5)));
        drop(slot);
        assert!(!table.slots[0].update(word(5), word(7)));
        assert_eq!(table.taken().count(), 0, "it stays free");
    }

    #[test]
    fn threads_that_live_at_the_same_time_have_different_names() {
        let own = thread_token();
        let other = std::thread::spawn(thread_token).join().expect("it ends");
        assert!(own != 0 && other != 0 && own != other);
    }
}
