//! The threads that do a file system's background work.
//!
//! What is true here:
//! * One thread calls [`FileSystem::step`] and the movers call [`FileSystem::move_step`], again and again until they are
//!   stopped.
//! * A thread that found nothing to do sleeps until it is woken, at most [`IDLE_PAUSE`]; work that only waits for a moment
//!   returns at once, and its thread pauses too. So nothing spins.
//! * The thread of `step` wakes the movers after each round that did something, because it is `step` that plans moves and
//!   wakes parked ones. Whoever else submits a move calls [`BackgroundThreads::wake`].
//! * After [`BackgroundThreads::stop`] none of the threads is left. It comes before [`FileSystem::unmount`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use polymux_types::sync::Mutex;

use super::{FileSystem, Progress};

/// Longest sleep of a thread that found nothing to do.
const IDLE_PAUSE: Duration = Duration::from_millis(200);

/// Pause after work that returned at once.
const WAITING_PAUSE: Duration = Duration::from_millis(5);

/// A round that took less than this only waited for a moment.
const WAITING_ROUND_MAX: Duration = Duration::from_millis(1);

/// Mover threads where nobody says how many: moves between two pairs of devices at the same time.
pub const MOVERS_DEFAULT: u16 = 2;

/// Background work of one file system, on threads of its own. Dropping it stops them.
#[derive(Debug)]
pub struct BackgroundThreads {
    must_stop: Arc<AtomicBool>,
    movers: u16,
    handles: Vec<Thread>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl BackgroundThreads {
    /// Starts one thread for [`FileSystem::step`] and `movers` for [`FileSystem::move_step`]. Without movers nothing is
    /// moved.
    ///
    /// # Errors
    /// A thread cannot be started; then none is left.
    pub fn start(file_system: &Arc<FileSystem>, movers: u16) -> io::Result<Self> {
        let mut started = Self {
            must_stop: Arc::new(AtomicBool::new(false)),
            movers,
            handles: Vec::new(),
            threads: Mutex::new(Vec::new()),
        };
        for index in 0..movers {
            let file_system = Arc::clone(file_system);
            started.spawn(format!("mover-{index}"), move || file_system.move_step())?;
        }
        let movers = started.handles.clone();
        let file_system = Arc::clone(file_system);
        started.spawn("background".to_owned(), move || {
            let progress = file_system.step();
            if progress == Progress::Worked {
                movers.iter().for_each(Thread::unpark);
            }
            progress
        })?;
        Ok(started)
    }

    fn spawn(&mut self, name: String, mut round: impl FnMut() -> Progress + Send + 'static) -> io::Result<()> {
        let must_stop = Arc::clone(&self.must_stop);
        let thread = thread::Builder::new().name(name).spawn(move || {
            while !must_stop.load(Ordering::Acquire) {
                let start = Instant::now();
                let pause = match round() {
                    Progress::Idle => IDLE_PAUSE,
                    Progress::Worked if start.elapsed() < WAITING_ROUND_MAX => WAITING_PAUSE,
                    Progress::Worked => continue,
                };
                thread::park_timeout(pause);
            }
        })?;
        self.handles.push(thread.thread().clone());
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Number of movers.
    #[must_use]
    pub fn movers(&self) -> u16 {
        self.movers
    }

    /// Lets all threads look for work now.
    pub fn wake(&self) {
        self.handles.iter().for_each(Thread::unpark);
    }

    /// Ends all threads and waits for them; what a mover has begun comes to the end of its batch. A second call does
    /// nothing.
    ///
    /// # Errors
    /// A thread had panicked.
    pub fn stop(&self) -> io::Result<()> {
        self.must_stop.store(true, Ordering::Release);
        self.wake();
        let threads = std::mem::take(&mut *self.threads.lock());
        let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).count();
        if panicked == 0 { Ok(()) } else { Err(io::Error::other("a background thread had panicked")) }
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            log::error!("{error}");
        }
    }
}
