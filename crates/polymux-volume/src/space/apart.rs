//! Changes by background threads of objects that programs may have open: pending frees and descriptions (docs/design/0050).
//!
//! A program can hold the lock of such an object for ever. So each of these changes is made by a thread of its own, and the thread that wants it
//! waits for a moment at most.
//!
//! Invariants:
//! * One change of an object is under way at a time, whether apart or not. While one is, others of the object are refused: the record of a free that
//!   comes late is still pending, so that its bytes are not in use again.
//! * While [`UNDER_WAY_MAX`] changes of a tier are under way, none begins apart.
//! * The name of an object goes only when no program has it open: the file system below locks the directory together with the object. One
//!   that was opened for a program is emptied before.
//! * An outcome that came too late counts for nothing: the same change is made again, which is soon done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Changes of one tier, and so threads, that may be under way apart.
const UNDER_WAY_MAX: usize = 64;

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
    /// Those that are under way.
    count: AtomicUsize,
    /// One has ended.
    ended: Condvar,
}

/// An attempt under way. It ends when this is dropped, after a panic too.
struct Running {
    attempts: Arc<Attempts>,
    object: ObjectId,
    /// Pause before another one, where that is to come.
    later: Option<Duration>,
}

impl Attempts {
    /// Begins one, and returns it with the pause after it. [`TierError::WouldBlock`] where one is still under way after so long, too many are, or it
    /// is too early.
    fn begin(self: &Arc<Self>, object: ObjectId, patience: Duration) -> Result<(Running, Duration), TierError> {
        let began = Instant::now();
        let mut by_object = self.by_object.lock();
        let pause = loop {
            match by_object.get(&object) {
                Some(Attempt::Later(at, _)) if *at > began => return Err(TierError::WouldBlock),
                None | Some(Attempt::Later(..)) if self.count.load(Ordering::Acquire) >= UNDER_WAY_MAX => {
                    return Err(TierError::WouldBlock);
                }
                None => break PAUSE_MIN,
                Some(Attempt::Later(_, pause)) => break (*pause * 2).min(PAUSE_MAX),
                Some(Attempt::UnderWay) if began.elapsed() >= patience => return Err(TierError::WouldBlock),
                Some(Attempt::UnderWay) => {
                    self.ended.wait_for(&mut by_object, patience.saturating_sub(began.elapsed()));
                }
            }
        };
        Ok((self.run(&mut by_object, object), pause))
    }

    /// Begins one that does not wait for programs, and so holds up no thread. [`TierError::WouldBlock`] where one is under way.
    fn begin_here(self: &Arc<Self>, object: ObjectId) -> Result<Running, TierError> {
        let mut by_object = self.by_object.lock();
        match by_object.get(&object) {
            Some(Attempt::UnderWay) => Err(TierError::WouldBlock),
            _ => Ok(self.run(&mut by_object, object)),
        }
    }

    fn run(self: &Arc<Self>, by_object: &mut BTreeMap<ObjectId, Attempt>, object: ObjectId) -> Running {
        by_object.insert(object, Attempt::UnderWay);
        self.count.fetch_add(1, Ordering::AcqRel);
        Running { attempts: Arc::clone(self), object, later: None }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut by_object = self.attempts.by_object.lock();
        match self.later {
            Some(pause) => by_object.insert(self.object, Attempt::Later(Instant::now() + pause, pause)),
            None => by_object.remove(&self.object),
        };
        self.attempts.count.fetch_sub(1, Ordering::AcqRel);
        drop(by_object);
        self.attempts.ended.notify_all();
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
        tier.empty_for_removal(object)?;
        if tier.may_be_open_elsewhere(object)? {
            return Err(TierError::WouldBlock);
        }
    }
    free_bytes(tier, record)
}

impl Apart {
    /// Whether a change of an object cannot begin now.
    pub(super) fn is_waiting(&self, object: ObjectId) -> bool {
        match self.attempts.by_object.lock().get(&object) {
            Some(Attempt::UnderWay) => true,
            Some(Attempt::Later(at, _)) => *at > Instant::now(),
            None => false,
        }
    }

    /// Makes a change on the calling thread, of an object that no program has.
    ///
    /// # Errors
    /// [`TierError::WouldBlock`] where one that was made apart has not ended.
    pub(super) fn change_here(
        &self,
        tier: &dyn Tier,
        object: ObjectId,
        change: impl FnOnce(&dyn Tier) -> Result<(), TierError>,
    ) -> Result<(), TierError> {
        let _running = self.attempts.begin_here(object)?;
        change(tier)
    }

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
        let outcome = self.change_within(tier, object, *patience, change);
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
        let (mut running, pause) = self.attempts.begin(object, patience)?;
        let (sender, receiver) = sync_channel(1);
        let tier = Arc::clone(tier);
        let begun = self.asker.begin(Box::new(move || {
            let outcome = change(tier.as_ref());
            // The thread waits for the next one, and keeps no tier meanwhile.
            drop(tier);
            running.later = matches!(outcome, Err(TierError::WouldBlock)).then_some(pause);
            drop(running);
            // The caller may have gone on.
            let _ = sender.send(outcome);
        }));
        if let Err(error) = begun {
            log::debug!("no thread to change an object: {error}");
            return Err(TierError::WouldBlock);
        }
        receiver.recv_timeout(patience).unwrap_or(Err(TierError::WouldBlock))
    }
}

#[cfg(test)]
mod tests {
    use polymux_sim::{FaultyTier, MemoryTier, OperationKind};
    use polymux_types::{Bucket, TierId};

    use super::*;

    const BYTES: usize = 8192;
    const LENGTH: u64 = BYTES as u64;

    struct Tested {
        faulty: Arc<FaultyTier>,
        tier: Arc<WatchedTier>,
        apart: Apart,
    }

    fn object(id: u64) -> ObjectRef {
        ObjectRef::new(ObjectId(id), Bucket(0))
    }

    fn record(id: u64, kind: DisownedKind) -> DisownedRecord {
        DisownedRecord { tier: TierId(1), object: ObjectId(id), bucket: Bucket(0), start: 0, kind }
    }

    /// A tier with objects that programs have open.
    fn tested(objects: u64) -> Tested {
        let faulty = Arc::new(FaultyTier::new(Arc::new(MemoryTier::new("t", 16 << 20))));
        faulty.give_objects_to_programs(true);
        for id in 0..objects {
            faulty.create(object(id)).expect("made");
            faulty.write(object(id), 0, &[1; BYTES], polymux_tier::Wait::Allowed).expect("written");
        }
        Tested { tier: Arc::new(WatchedTier::new(faulty.clone(), Duration::ZERO)), faulty, apart: Apart::default() }
    }

    impl Tested {
        fn free(&self, record: DisownedRecord, mut patience: Duration) -> Result<(), TierError> {
            let change = Box::new(move |tier: &dyn Tier| free_bytes_of_open(tier, &record));
            self.apart.change(&self.tier, record.object, &mut patience, change)
        }

        fn free_here(&self, record: DisownedRecord) -> Result<(), TierError> {
            self.apart.change_here(self.tier.as_ref(), record.object, |tier| free_bytes(tier, &record))
        }

        fn stat(&self, id: u64) -> Result<u64, TierError> {
            self.faulty.stat(object(id)).map(|stat| stat.size)
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn no_other_change_of_an_object_is_made_before_the_one_that_hangs_has_ended() {
        let tested = tested(2);
        tested.faulty.hold(&[OperationKind::Punch]);
        let range = |id| record(id, DisownedKind::Range { end: LENGTH });
        assert_eq!(tested.free(range(0), Duration::ZERO), Err(TierError::WouldBlock), "a program holds it");
        // It may be closed by now, and the change is still to come.
        assert_eq!(tested.free_here(range(0)), Err(TierError::WouldBlock));
        assert_eq!(tested.free(range(0), Duration::from_millis(10)), Err(TierError::WouldBlock));
        assert_eq!(tested.free(record(1, DisownedKind::Tail), LONG), Ok(()), "another object is free");
        tested.faulty.release();
        assert_eq!(tested.free(range(0), LONG), Ok(()));
        assert_eq!(tested.free_here(range(0)), Ok(()));
        assert!(tested.apart.attempts.by_object.lock().is_empty(), "all of them are over");
    }

    #[test]
    fn a_removed_object_keeps_its_name_until_no_program_has_it() {
        let tested = tested(1);
        let removal = record(0, DisownedKind::Object);
        assert_eq!(tested.free(removal, LONG), Err(TierError::WouldBlock));
        assert_eq!(tested.stat(0), Ok(LENGTH), "it was not opened for a program");
        assert_eq!(tested.free(removal, LONG), Err(TierError::WouldBlock), "not before a second is over");
        tested.faulty.give_objects_to_programs(false);
        assert_eq!(tested.free_here(removal), Ok(()));
        assert!(matches!(tested.stat(0), Err(TierError::NotFound(_))));
        assert!(tested.apart.attempts.by_object.lock().is_empty());
    }

    #[test]
    fn so_many_threads_may_hang_and_no_more() {
        let objects = UNDER_WAY_MAX as u64 + 8;
        let tested = tested(objects);
        tested.faulty.hold(&[OperationKind::Punch]);
        for id in 0..objects {
            let range = record(id, DisownedKind::Range { end: LENGTH });
            assert_eq!(tested.free(range, Duration::ZERO), Err(TierError::WouldBlock));
        }
        while tested.faulty.hanging_calls() < UNDER_WAY_MAX {
            std::thread::yield_now();
        }
        assert_eq!(tested.apart.attempts.by_object.lock().len(), UNDER_WAY_MAX);
        tested.faulty.release();
        let last = record(objects - 1, DisownedKind::Range { end: LENGTH });
        let began = Instant::now();
        while tested.free(last, LONG) != Ok(()) {
            assert!(began.elapsed() < LONG, "others have ended");
        }
    }
}
