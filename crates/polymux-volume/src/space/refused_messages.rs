//! Messages that found no space on the tier where they belong (docs/design/0034).
//!
//! Invariants: a few in a window are no reason to evict other data.

use std::sync::atomic::{AtomicU64, Ordering};

/// Refused messages in a window from which on space is made for them.
const ENOUGH: u64 = 8;

/// Those of one tier, since they were taken last.
#[derive(Debug, Default)]
pub struct RefusedMessages {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl RefusedMessages {
    /// One of so many bytes goes to a slower tier.
    pub fn note(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a window. Returns their bytes, if there were enough of them.
    pub fn take(&self) -> Option<u64> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (count, bytes) = (self.count.swap(0, Ordering::Relaxed), self.bytes.swap(0, Ordering::Relaxed));
        (count >= ENOUGH).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_messages_ask_for_no_room_and_many_for_theirs_once() {
        let refused = RefusedMessages::default();
        (1..ENOUGH).for_each(|_| refused.note(4096));
        assert_eq!(refused.take(), None);
        (0..ENOUGH).for_each(|_| refused.note(4096));
        assert_eq!((refused.take(), refused.take()), (Some(ENOUGH * 4096), None));
    }
}
