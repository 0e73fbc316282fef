//! Small syncs of a file that follow one another, as those of a log do (docs/design/0034).
//!
//! Invariants: a row ends with a gap of [`GAP_MAX`] and with a sync of a large part of the file. The lock is a leaf.

use std::time::Duration;

use polymux_types::sync::Mutex;

/// Small syncs in a row from which on programs count as waiting for the writes of the file.
const ENOUGH: u64 = 4;

/// Longest time between two syncs of a row. Checkpoints of a database are further apart.
const GAP_MAX: Duration = Duration::from_secs(10);

/// How long a file counts as one that is waited for after its row ended: segments of a log are used in turn.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// History of the small syncs of a file.
#[derive(Debug, Default)]
pub struct SmallSyncs {
    row: Mutex<Row>,
}

/// The present row.
#[derive(Debug, Default)]
struct Row {
    count: u64,
    last: Duration,
    /// When a row was last long enough.
    was_enough: Option<Duration>,
}

impl SmallSyncs {
    /// A small sync is asked for.
    pub fn note_small(&self, now: Duration) {
        let mut row = self.row.lock();
        if now.saturating_sub(row.last) > GAP_MAX {
            row.count = 0;
        }
        (row.count, row.last) = (row.count.saturating_add(1), now);
        if row.count >= ENOUGH {
            row.was_enough = Some(now);
        }
    }

    /// A sync of a large part is asked for.
    pub fn note_large(&self) {
        *self.row.lock() = Row::default();
    }

    /// Whether there was a row that was long enough lately.
    pub(crate) fn are_enough(&self, now: Duration) -> bool {
        self.row.lock().was_enough.is_some_and(|moment| now.saturating_sub(moment) < REMEMBERED)
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
