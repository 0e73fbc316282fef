//! Something happens before the n-th operation of the mover.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use polymux_fs::Progress;
use polymux_tier::{ObjectRef, Tier};
use polymux_types::sync::Mutex;

use crate::common::{Hook, HookedTier, Verdict, Volume};

/// An operation of the mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Read,
    Write,
    /// Of an object, by any thread.
    Sync,
}

/// How long the mover is held up by an action that waits for the mover.
const PATIENCE: Duration = Duration::from_millis(8);

struct Armed {
    moment: Moment,
    /// Operations that still pass.
    countdown: usize,
    mover: ThreadId,
    patience: Duration,
    go: Sender<()>,
    done: Receiver<()>,
}

/// Stands in front of all tiers of a volume.
#[derive(Default)]
pub struct Gate {
    armed: Mutex<Option<Armed>>,
}

impl Gate {
    fn pass(&self, moment: Moment) {
        let due = {
            let mut armed = self.armed.lock();
            let Some(waiting) = armed.as_mut() else { return };
            let is_mover = moment == Moment::Sync || waiting.mover == std::thread::current().id();
            if waiting.moment != moment || !is_mover {
                return;
            }
            if waiting.countdown > 0 {
                waiting.countdown -= 1;
                return;
            }
            armed.take().expect("it is armed")
        };
        due.go.send(()).expect("the user waits");
        // A user who waits for the mover is let go by the mover, which must not wait for the user.
        let _ = due.done.recv_timeout(due.patience);
    }

    /// Runs `mover` on this thread and `user` on another one, before the `index`-th operation. Returns whether there was
    /// such an operation; otherwise `user` runs at the end.
    pub fn at(&self, moment: Moment, index: usize, mover: impl FnOnce(), user: impl FnOnce() + Send) -> bool {
        self.at_with_patience((moment, index), PATIENCE, mover, user)
    }

    /// As [`Self::at`], where `user` takes its time.
    pub fn at_with_patience(
        &self,
        (moment, index): (Moment, usize),
        patience: Duration,
        mover: impl FnOnce(),
        user: impl FnOnce() + Send,
    ) -> bool {
        let (go, started) = channel();
        let (finished, done) = channel();
        let mover_thread = std::thread::current().id();
        *self.armed.lock() =
            Some(Armed { moment, countdown: index, mover: mover_thread, patience, go: go.clone(), done });
        std::thread::scope(|scope| {
            let user = scope.spawn(move || {
                started.recv().expect("the mover comes along");
                user();
                // The mover may have lost patience.
                let _ = finished.send(());
            });
            mover();
            let never = self.armed.lock().take().is_some();
            if never {
                go.send(()).expect("the user waits");
            }
            user.join().expect("the user's operation succeeds");
            !never
        })
    }
}

impl Hook for Gate {
    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.pass(Moment::Read);
        Verdict::Pass
    }

    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.pass(Moment::Write);
        Verdict::Pass
    }

    fn before_sync(&self) -> Verdict {
        self.pass(Moment::Sync);
        Verdict::Pass
    }
}

/// A volume behind a gate.
pub fn gated(capacities: &[u64]) -> (Volume, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let volume = Volume::wrapping(capacities, |_, tier| -> Arc<dyn Tier> {
        Arc::new(HookedTier::new(tier, Arc::clone(&gate) as Arc<dyn Hook>))
    });
    (volume, gate)
}

/// Steps of the mover until it has nothing to do.
pub fn move_all(volume: &Volume) {
    for _ in 0..1000 {
        if volume.fs().move_step() == Progress::Idle {
            return;
        }
    }
    panic!("the mover did not come to an end: {:?}", volume.fs().moves());
}
