//! Whether a tier still works while one of its calls does not return (docs/design/0050).
//!
//! A call may hang because its object is held: a program that has the object for itself writes to it from memory that never answers, and the
//! file system below keeps the lock of that file meanwhile. So a tier is found silent only where an attempt of its own hangs too.
//!
//! Invariants:
//! * At most one attempt of a tier is under way, on a thread of its own; no caller waits for it.
//! * An attempt uses a file that no program has, and reaches the device: it returns only where writes, syncs and reads do.
//! * An attempt that cannot be started, or that the tier refuses for another reason than lack of space, shows nothing. Then the calls alone decide,
//!   until an attempt answers.

use std::sync::Arc;

use polymux_tier::{Tier, TierError};
use polymux_types::sync::Mutex;

use super::asker::Asker;

/// The outcome of the last attempt that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outcome {
    #[default]
    None,
    /// Not taken notice of yet.
    Answered,
    ShowedNothing,
}

/// Times are in milliseconds on the clock of the looks.
#[derive(Default)]
struct State {
    /// When the attempt began that is under way.
    under_way_since: Option<u64>,
    /// When the last one began.
    last_began: Option<u64>,
    outcome: Outcome,
}

/// The attempts on one tier.
#[derive(Default)]
pub(super) struct Prober {
    state: Arc<Mutex<State>>,
    asker: Asker,
}

impl Prober {
    /// Begins an attempt, unless one is under way or began less than `interval_ms` ago.
    pub(super) fn begin(&self, tier: &Arc<dyn Tier>, now_ms: u64, interval_ms: u64) {
        let mut state = self.state.lock();
        let is_early = state.last_began.is_some_and(|began| now_ms.saturating_sub(began) < interval_ms);
        if state.under_way_since.is_some() || is_early {
            return;
        }
        let (tier, shared) = (Arc::clone(tier), Arc::clone(&self.state));
        let begun = self.asker.begin(Box::new(move || {
            let outcome = match tier.probe() {
                // A full tier has answered.
                Ok(()) | Err(TierError::NoSpace | TierError::Quota) => Outcome::Answered,
                Err(error) => {
                    log::debug!("an attempt whether a tier still works failed: {error}");
                    Outcome::ShowedNothing
                }
            };
            // The thread waits for the next attempt, and keeps no tier meanwhile.
            drop(tier);
            let mut state = shared.lock();
            (state.under_way_since, state.outcome) = (None, outcome);
        }));
        state.last_began = Some(now_ms);
        match begun {
            Ok(()) => state.under_way_since = Some(now_ms),
            Err(error) => {
                log::debug!("no thread to try a tier: {error}");
                state.outcome = Outcome::ShowedNothing;
            }
        }
    }

    /// Whether an attempt has answered since the last call of this.
    pub(super) fn take_answer(&self) -> bool {
        let mut state = self.state.lock();
        let has_answered = state.outcome == Outcome::Answered;
        if has_answered {
            state.outcome = Outcome::None;
        }
        has_answered
    }

    /// Whether the silence of calls may be taken for that of the tier: an attempt hangs for at least `patience_ms`, or the last one showed nothing.
    pub(super) fn confirms_silence(&self, now_ms: u64, patience_ms: u64) -> bool {
        let state = self.state.lock();
        let hangs = state.under_way_since.is_some_and(|began| now_ms.saturating_sub(began) >= patience_ms);
        hangs || state.outcome == Outcome::ShowedNothing
    }

    /// Whether an attempt has not returned.
    #[cfg(test)]
    pub(super) fn is_under_way(&self) -> bool {
        self.state.lock().under_way_since.is_some()
    }
}
