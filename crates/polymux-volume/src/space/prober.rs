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

#[derive(Default)]
struct State {
    /// When the latest attempt began, in milliseconds on the clock of the looks.
    began_ms: Option<u64>,
    is_under_way: bool,
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
        let is_early = state.began_ms.is_some_and(|began| now_ms.saturating_sub(began) < interval_ms);
        if state.is_under_way || is_early {
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
            (state.is_under_way, state.outcome) = (false, outcome);
        }));
        (state.began_ms, state.is_under_way) = (Some(now_ms), begun.is_ok());
        if let Err(error) = begun {
            log::debug!("no thread to try a tier: {error}");
            state.outcome = Outcome::ShowedNothing;
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
        let is_old = state.began_ms.is_some_and(|began| now_ms.saturating_sub(began) >= patience_ms);
        state.is_under_way && is_old || state.outcome == Outcome::ShowedNothing
    }

    /// Whether an attempt has not returned.
    #[cfg(test)]
    pub(super) fn is_under_way(&self) -> bool {
        self.state.lock().is_under_way
    }
}
