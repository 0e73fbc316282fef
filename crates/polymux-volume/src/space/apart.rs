//! Changes by background threads of objects that programs may have open: pending frees and descriptions (docs/design/0050).
//!
//! A program can hold the lock of such an object for ever. So each of these changes is made by a thread of its own, and the thread that wants it
//! waits for a moment at most.
//!
//! Invariants:
//! * One change of an object is under way at a time. While one is, others of the object are refused: the record of a free that comes late is
//!   still pending, so that its bytes are not in use again.
//! * The name of an object goes only when no program has it open: the file system below locks the directory together with the object. It is
//!   emptied before.
//! * An outcome that came too late counts for nothing: the same change is made again, which is soon done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use polymux_records::store::{DisownedKind, DisownedRecord};
use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::ObjectId;
use polymux_types::sync::{Condvar, Mutex};

use super::asker::Asker;
use super::watch::WatchedTier;

/// Pause before the next attempt at an object that a program keeps open after its removal; each one after it is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// How long a round waits for all of its changes together,
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// and for each, however many there are.
const PATIENCE_MIN: Duration = Duration::from_millis(1);

enum Attempt {
    UnderWay,
    /// No other one before this moment. The pause before it.
    Later(Instant, Duration),
}

/// A change of an object; [`TierError::WouldBlock`] where it is not possible while a program has the object open.
type Change = Box<dyn FnOnce(&dyn Tier) -> Result<(), TierError> + Send>;

/// The latest attempts at objects that are not changed as wanted.
#[derive(Default)]
struct Attempts {
    by_object: Mutex<BTreeMap<ObjectId, Attempt>>,
    /// One has ended.
    ended: Condvar,
}

impl Attempts {
    /// Begins one; returns the pause after it. [`TierError::WouldBlock`] where one is still under way after so long, or it is too early.
    fn begin(&self, object: ObjectId, patience: Duration) -> Result<Duration, TierError> {
        let began = Instant::now();
        let mut by_object = self.by_object.lock();
        let pause = loop {
            match by_object.get(&object) {
                None => break PAUSE_MIN,
                Some(Attempt::Later(at, pause)) if *at <= began => break (*pause * 2).min(PAUSE_MAX),
                Some(Attempt::Later(..)) => return Err(TierError::WouldBlock),
                Some(Attempt::UnderWay) if began.elapsed() >= patience => return Err(TierError::WouldBlock),
                Some(Attempt::UnderWay) => {
                    self.ended.wait_for(&mut by_object, patience.saturating_sub(began.elapsed()));
                }
            }
        };
        by_object.insert(object, Attempt::UnderWay);
        Ok(pause)
    }

    fn end(&self, object: ObjectId, later: Option<Duration>) {
        let mut by_object = self.by_object.lock();
        match later {
            Some(pause) => by_object.insert(object, Attempt::Later(Instant::now() + pause, pause)),
            None => by_object.remove(&object),
        };
        drop(by_object);
        self.ended.notify_all();
    }
}

/// Changes of objects of one tier that are made apart.
#[derive(Default)]
pub(super) struct Apart {
    attempts: Arc<Attempts>,
    asker: Asker,
}

/// Frees the bytes of a record. What is gone already is freed.
pub(super) fn free_bytes(tier: &dyn Tier, record: &DisownedRecord) -> Result<(), TierError> {
    let object = ObjectRef::new(record.object, record.bucket);
    let outcome = match record.kind {
        DisownedKind::Object => tier.remove(object),
        DisownedKind::Tail => tier
            .stat(object)
            .and_then(|stat| if stat.size > record.start { tier.truncate(object, record.start) } else { Ok(()) }),
        // Written by mistake by a former version.
        DisownedKind::Range { end } if end <= record.start => Ok(()),
        DisownedKind::Range { end } => match tier.punch(object, record.start, end - record.start) {
            // Without holes the bytes stay; they have no owner, and a new owner of the range writes it whole.
            Err(TierError::Unsupported(_)) => Ok(()),
            other => other,
        },
    };
    match outcome {
        Err(TierError::NotFound(_)) => Ok(()),
        other => other,
    }
}

/// As [`free_bytes`], of an object that a program may have open; [`TierError::WouldBlock`] where it has and its name has to go.
pub(super) fn free_bytes_of_open(tier: &dyn Tier, record: &DisownedRecord) -> Result<(), TierError> {
    if record.kind == DisownedKind::Object {
        let object = ObjectRef::new(record.object, record.bucket);
        match tier.truncate(object, 0) {
            Err(TierError::NotFound(_)) => return Ok(()),
            emptied => emptied?,
        }
        if tier.may_be_open_elsewhere(object)? {
            return Err(TierError::WouldBlock);
        }
    }
    free_bytes(tier, record)
}

impl Apart {
    /// Makes a change of an object, and takes the time that it waited from that which is left.
    ///
    /// # Errors
    /// [`TierError::WouldBlock`] where that takes longer, or is not possible yet.
    pub(super) fn change(
        &self,
        tier: &Arc<WatchedTier>,
        object: ObjectId,
        patience: &mut Duration,
        change: Change,
    ) -> Result<(), TierError> {
        let began = Instant::now();
        let outcome = self.change_within(tier, object, (*patience).max(PATIENCE_MIN), change);
        *patience = patience.saturating_sub(began.elapsed());
        outcome
    }

    fn change_within(
        &self,
        tier: &Arc<WatchedTier>,
        object: ObjectId,
        patience: Duration,
        change: Change,
    ) -> Result<(), TierError> {
        let pause = self.attempts.begin(object, patience)?;
        let (sender, receiver) = sync_channel(1);
        let (tier, attempts) = (Arc::clone(tier), Arc::clone(&self.attempts));
        let begun = self.asker.begin(Box::new(move || {
            let outcome = change(tier.as_ref());
            // The thread waits for the next one, and keeps no tier meanwhile.
            drop(tier);
            attempts.end(object, matches!(outcome, Err(TierError::WouldBlock)).then_some(pause));
            // The caller may have gone on.
            let _ = sender.send(outcome);
        }));
        if let Err(error) = begun {
            log::debug!("no thread to change an object: {error}");
            self.attempts.end(object, None);
            return Err(TierError::WouldBlock);
        }
        receiver.recv_timeout(patience).unwrap_or(Err(TierError::WouldBlock))
    }
}
