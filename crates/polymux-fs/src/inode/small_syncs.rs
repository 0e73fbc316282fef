//! Small syncs of a file that follow one another, as those of a log do (docs/design/0034).
//!
//! What is true here: a row ends with a gap of [`GAP_MAX`] and with a sync of a large part of the file. It is a hint: threads that meet may
//! count one for two.

use std::time::Duration;

use polymux_types::sync::{AtomicU64, Ordering};

/// Small syncs in a row from which on programs count as waiting for the writes of the file.
const ENOUGH: u64 = 4;

/// Longest time between two syncs of a row. Checkpoints of a database are further apart.
const GAP_MAX: Duration = Duration::from_secs(10);

/// How long a file counts as one that is waited for after its row ended: segments of a log are used in turn.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The present row, and when one was long enough.
#[derive(Debug, Default)]
pub(crate) struct SmallSyncs {
    count: AtomicU64,
    last_ms: AtomicU64,
    /// Plus one; 0: never.
    enough_ms: AtomicU64,
}

fn milliseconds(moment: Duration) -> u64 {
    u64::try_from(moment.as_millis()).unwrap_or(u64::MAX)
}

impl SmallSyncs {
    /// A small sync is asked for.
    pub(crate) fn note_small(&self, now: Duration) {
        let now_ms = milliseconds(now);
        let gap_ms = now_ms.saturating_sub(self.last_ms.swap(now_ms, Ordering::Relaxed));
        let before = if gap_ms > milliseconds(GAP_MAX) { 0 } else { self.count.load(Ordering::Relaxed) };
        self.count.store(before.saturating_add(1), Ordering::Relaxed);
        if before + 1 >= ENOUGH {
            self.enough_ms.store(now_ms.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// A sync of a large part is asked for.
    pub(crate) fn note_large(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.enough_ms.store(0, Ordering::Relaxed);
    }

    /// Whether there was a row that was long enough lately.
    pub(crate) fn are_enough(&self, now: Duration) -> bool {
        let enough_ms = self.enough_ms.load(Ordering::Relaxed);
        enough_ms > 0 && milliseconds(now).saturating_sub(enough_ms - 1) < milliseconds(REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_row_of_small_syncs_is_remembered_and_checkpoints_are_none() {
        let syncs = SmallSyncs::default();
        (0..10_u32).for_each(|number| syncs.note_small(number * 300 * SECOND));
        let checkpointed = 3000 * SECOND;
        assert!(!syncs.are_enough(checkpointed));
        (0..3_u32).for_each(|number| syncs.note_small(checkpointed + number * SECOND));
        assert!(!syncs.are_enough(checkpointed + 3 * SECOND));
        syncs.note_small(checkpointed + 4 * SECOND);
        assert!(syncs.are_enough(checkpointed + 600 * SECOND));
        assert!(!syncs.are_enough(checkpointed + 4000 * SECOND));
    }

    #[test]
    fn a_large_sync_ends_it() {
        let syncs = SmallSyncs::default();
        (0..9_u32).for_each(|number| syncs.note_small(number * SECOND));
        assert!(syncs.are_enough(9 * SECOND));
        syncs.note_large();
        assert!(!syncs.are_enough(9 * SECOND));
    }
}
