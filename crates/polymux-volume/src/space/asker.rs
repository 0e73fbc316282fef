//! A thread that may block on a tier, in place of one that must not.
//!
//! Invariants:
//! * A job is taken by a thread that waits for one, or begins on a new thread: it never waits behind a job that hangs.
//! * The thread waits for the next job for a while and ends then, or with the tier.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use polymux_types::sync::Mutex;

/// How long the thread waits for the next job: starting one takes ten times as long as waking it. Longer than the time between two looks at the free
/// space of a volume that rests.
const IDLE: Duration = Duration::from_secs(15);

type Job = Box<dyn FnOnce() + Send>;

/// The thread of one tier.
#[derive(Default)]
pub(super) struct Asker {
    /// Hands a job over to a thread that waits for one, and to none that does not.
    thread: Mutex<Option<SyncSender<Job>>>,
}

impl Asker {
    /// Has a job carried out. Does not wait for it.
    ///
    /// # Errors
    /// Where no thread waits and none can be started; then the job is dropped.
    pub(super) fn begin(&self, job: Job) -> io::Result<()> {
        let mut thread = self.thread.lock();
        let job = match &*thread {
            None => job,
            Some(waiting) => match waiting.try_send(job) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job,
            },
        };
        let (sender, jobs) = sync_channel::<Job>(0);
        let serve = move || {
            job();
            while let Ok(next) = jobs.recv_timeout(IDLE) {
                next();
            }
        };
        std::thread::Builder::new().name("polymux-ask".to_owned()).spawn(serve)?;
        *thread = Some(sender);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::ThreadId;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// The thread that carries a job out.
    fn thread_of_next_job(asker: &Asker) -> ThreadId {
        let (sender, receiver) = channel();
        asker.begin(Box::new(move || sender.send(std::thread::current().id()).unwrap())).unwrap();
        receiver.recv_timeout(LONG).unwrap()
    }

    #[test]
    fn one_job_after_the_other_is_carried_out_by_a_thread_that_waits() {
        let asker = Asker::default();
        let threads: Vec<_> = (0..50)
            .map(|_| {
                // The thread may not wait again at once.
                std::thread::sleep(Duration::from_millis(2));
                thread_of_next_job(&asker)
            })
            .collect();
        assert!(threads.windows(2).any(|pair| pair[0] == pair[1]), "{threads:?}");
    }

    #[test]
    fn a_job_that_hangs_holds_up_no_other() {
        let asker = Asker::default();
        let (release, hanging) = channel::<()>();
        asker.begin(Box::new(move || assert!(hanging.recv().is_err()))).unwrap();
        let (first, second) = (thread_of_next_job(&asker), thread_of_next_job(&asker));
        assert!(first != std::thread::current().id() && second != std::thread::current().id());
        drop(release);
    }

    #[test]
    fn a_job_that_panics_holds_up_no_other() {
        let asker = Asker::default();
        asker.begin(Box::new(|| panic!("as planned"))).unwrap();
        thread_of_next_job(&asker);
    }
}
