//! Whether a tier still works while one of its calls does not return (docs/design/0050).
//!
//! A call may hang because its object is held: a program that has the object for itself writes to it from memory that never answers, and the
//! file system below keeps the lock of that file meanwhile. So a tier is found silent only where an attempt of its own hangs too.
//!
//! Invariants:
//! * At most one attempt of a tier is under way, on a thread of its own; no caller waits for it.
//! * An attempt uses a file that no program has, and reaches the device: it returns only where writes and syncs do.
//! * An attempt that cannot be started, or that the tier refuses for another reason than lack of space, shows nothing. Then the calls alone decide.

use std::sync::Arc;

use polymux_tier::{Tier, TierError};
use polymux_types::sync::Mutex;

use super::asker::Asker;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Attempt {
    #[default]
    None,
    /// The moment of its beginning in milliseconds on the clock of the looks.
    UnderWay {
        began_ms: u64,
    },
    Answered,
    ShowedNothing,
}

/// The attempts on one tier.
#[derive(Default)]
pub(super) struct Prober {
    attempt: Arc<Mutex<Attempt>>,
    asker: Asker,
}

impl Prober {
    /// Begins an attempt, unless one is under way.
    pub(super) fn begin(&self, tier: &Arc<dyn Tier>, now_ms: u64) {
        let mut attempt = self.attempt.lock();
        if matches!(*attempt, Attempt::UnderWay { .. }) {
            return;
        }
        let (tier, outcome) = (Arc::clone(tier), Arc::clone(&self.attempt));
        let begun = self.asker.begin(Box::new(move || {
            let found = match tier.probe() {
                // A full tier has answered.
                Ok(()) | Err(TierError::NoSpace | TierError::Quota) => Attempt::Answered,
                Err(error) => {
                    log::debug!("an attempt whether a tier still works failed: {error}");
                    Attempt::ShowedNothing
                }
            };
            // The thread waits for the next attempt, and keeps no tier meanwhile.
            drop(tier);
            *outcome.lock() = found;
        }));
        *attempt = match begun {
            Ok(()) => Attempt::UnderWay { began_ms: now_ms },
            Err(error) => {
                log::debug!("no thread to try a tier: {error}");
                Attempt::ShowedNothing
            }
        };
    }

    /// Whether an attempt has answered since the last call of this.
    pub(super) fn take_answer(&self) -> bool {
        let mut attempt = self.attempt.lock();
        let has_answered = *attempt == Attempt::Answered;
        if has_answered {
            *attempt = Attempt::None;
        }
        has_answered
    }

    /// Whether the silence of calls may be taken for that of the tier: an attempt hangs for at least `patience_ms`, or showed nothing.
    pub(super) fn confirms_silence(&self, now_ms: u64, patience_ms: u64) -> bool {
        match *self.attempt.lock() {
            Attempt::UnderWay { began_ms } => now_ms.saturating_sub(began_ms) >= patience_ms,
            Attempt::ShowedNothing => true,
            Attempt::None | Attempt::Answered => false,
        }
    }

    /// Whether an attempt has not returned.
    #[cfg(test)]
    pub(super) fn is_under_way(&self) -> bool {
        matches!(*self.attempt.lock(), Attempt::UnderWay { .. })
    }
}
