//! The threads that do a file system's background work.
//!
//! Invariants:
//! * [`FileSystem::volume_step`], [`FileSystem::upkeep_step`] and, for each tier, [`FileSystem::tier_step`] and
//!   [`FileSystem::sync_rewritten_step`] have a thread each, so that a tier that does not answer keeps nothing from being done for the others. [`FileSystem::watch_step`] has
//!   one that never waits for anything. The movers call [`FileSystem::move_step`].
//! * A mover that is stuck, in a tier which does not answer or behind a program that holds an object (docs/design/0050), is replaced by another
//!   one, as long as it is stuck. There are at most [`STUCK_MOVERS_MAX`] more than there should be.
//! * A thread that found nothing to do sleeps until it is woken, at most [`IDLE_PAUSE`], or for long where the volume rests ([`super::rest`]); work
//!   that only waits for a moment returns at once, and its thread pauses too. So nothing spins.
//! * The thread of `volume_step` wakes the movers after each round that leaves moves to be made, because it plans moves and
//!   wakes parked ones. Any other submitter of a move calls [`BackgroundThreads::wake`].
//! * After [`BackgroundThreads::stop`] none of the threads is left, but those that are stuck, and the one
//!   that watches: the unmount that follows needs it. That one ends with the file system.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use polymux_records::parts::Progress;
use polymux_types::sync::Mutex;
use polymux_types::{TierId, thread_token};

use super::FileSystem;
use super::rest::Rest;

/// Longest sleep of a thread that found nothing to do.
const IDLE_PAUSE: Duration = Duration::from_millis(200);

/// Pause after work that returned at once.
const WAITING_PAUSE: Duration = Duration::from_millis(5);

/// A round that took less than this only waited for a moment.
const WAITING_ROUND_MAX: Duration = Duration::from_millis(1);

/// Time between two looks at the tiers.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// How long a stop waits for a thread before it asks whether that is stuck,
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// how long where a program holds up a thread,
const HELD_STOP_PATIENCE: Duration = Duration::from_secs(5);
/// and how often it looks.
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Default number of mover threads: moves between two pairs of devices at the same time.
pub const MOVERS_DEFAULT: u16 = 2;

/// Movers that may be stuck and are replaced all the same.
const STUCK_MOVERS_MAX: usize = 32;

/// One thread.
struct Worker {
    thread: JoinHandle<()>,
    /// As [`thread_token`] names it; 0 until it runs.
    token: Arc<AtomicUsize>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mover,
    OfTier(TierId),
    /// Syncs rewritten files of a tier.
    SyncsOf(TierId),
    OfVolume,
}

/// State shared by all threads.
struct Shared {
    must_stop: AtomicBool,
    workers: Mutex<Vec<Worker>>,
    movers: u16,
    rest: Arc<Rest>,
}

/// Background work of one file system, on threads of its own. Dropping it stops them.
pub struct BackgroundThreads {
    shared: Arc<Shared>,
    watched: Weak<FileSystem>,
}

impl std::fmt::Debug for BackgroundThreads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("BackgroundThreads").field("movers", &self.shared.movers).finish_non_exhaustive()
    }
}

impl BackgroundThreads {
    /// Starts the threads, `movers` of them for [`FileSystem::move_step`]. Without movers nothing is moved.
    ///
    /// # Errors
    /// A thread cannot be started; then none is left.
    pub fn start(file_system: &Arc<FileSystem>, movers: u16) -> io::Result<Self> {
        let rest = Arc::clone(&file_system.rest);
        let shared = Arc::new(Shared { must_stop: AtomicBool::new(false), workers: Mutex::default(), movers, rest });
        let started = Self { shared: Arc::clone(&shared), watched: Arc::downgrade(file_system) };
        for _ in 0..movers {
            shared.start_mover(file_system)?;
        }
        let (of_volume, wakes) = (Arc::clone(file_system), Arc::downgrade(&shared));
        shared.spawn("background".to_owned(), Kind::OfVolume, move || {
            let progress = of_volume.volume_step();
            // A search that finds nothing is no reason to keep a volume from resting.
            if progress == Progress::Worked
                && of_volume.mounted.mover.has_moves_to_make()
                && let Some(shared) = wakes.upgrade()
            {
                shared.wake(|kind| kind == Kind::Mover);
            }
            progress
        })?;
        let upkeep = Arc::clone(file_system);
        shared.spawn("upkeep".to_owned(), Kind::OfVolume, move || upkeep.note_progress(upkeep.upkeep_step()))?;
        shared.attend_tiers(file_system)?;
        file_system.mounted.data.write_behind.allow_threads();
        watch(&shared, file_system)?;
        Ok(started)
    }

    /// Number of movers.
    #[must_use]
    pub fn movers(&self) -> u16 {
        self.shared.movers
    }

    /// Lets all threads look for work now.
    pub fn wake(&self) {
        self.shared.wake(|_| true);
    }

    /// Ends all threads and waits for them; a mover first finishes its current batch. One that is stuck is
    /// left behind, and ends when the tier lets it go. A second call does nothing.
    ///
    /// # Errors
    /// A thread had panicked.
    pub fn stop(&self) -> io::Result<()> {
        self.shared.must_stop.store(true, Ordering::Release);
        self.shared.rest.forbid();
        self.wake();
        let workers = std::mem::take(&mut *self.shared.workers.lock());
        let began = Instant::now();
        let mut panicked = 0;
        for worker in workers {
            while !worker.thread.is_finished() {
                thread::sleep(STOP_LOOK_INTERVAL);
                if self.may_be_stuck(began.elapsed()) {
                    break;
                }
            }
            if worker.thread.is_finished() {
                panicked += usize::from(worker.thread.join().is_err());
            } else {
                log::warn!("a background thread that is stuck in a tier is left behind");
            }
        }
        if panicked == 0 { Ok(()) } else { Err(io::Error::other("a background thread had panicked")) }
    }

    /// A thread may be in a call that hangs, or wait for one that is.
    fn may_be_stuck(&self, waited: Duration) -> bool {
        let is_stuck = |file_system: &FileSystem| {
            waited > STOP_PATIENCE && !file_system.tiers_not_answering().is_empty()
                || waited > HELD_STOP_PATIENCE && !file_system.held_up_threads().is_empty()
        };
        self.watched.upgrade().is_some_and(|file_system| is_stuck(&file_system))
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            log::error!("{error}");
        }
    }
}

impl Shared {
    fn spawn(
        self: &Arc<Self>,
        name: String,
        kind: Kind,
        mut round: impl FnMut() -> Progress + Send + 'static,
    ) -> io::Result<()> {
        let token = Arc::new(AtomicUsize::new(0));
        let (shared, own_token) = (Arc::downgrade(self), Arc::clone(&token));
        let rest = Arc::clone(&self.rest);
        let must_stop = move || shared.upgrade().is_none_or(|shared| shared.must_stop.load(Ordering::Acquire));
        let thread = thread::Builder::new().name(name).spawn(move || {
            own_token.store(thread_token(), Ordering::Release);
            while !must_stop() {
                let start = Instant::now();
                let pause = match round() {
                    Progress::Idle if rest.sleep() => continue,
                    Progress::Idle => IDLE_PAUSE,
                    Progress::Worked if start.elapsed() < WAITING_ROUND_MAX => WAITING_PAUSE,
                    Progress::Worked => continue,
                };
                thread::park_timeout(pause);
            }
        })?;
        self.workers.lock().push(Worker { thread, token, kind });
        Ok(())
    }

    fn start_mover(self: &Arc<Self>, file_system: &Arc<FileSystem>) -> io::Result<()> {
        let file_system = Arc::clone(file_system);
        self.spawn("mover".to_owned(), Kind::Mover, move || file_system.note_progress(file_system.move_step()))
    }

    fn wake(&self, which: impl Fn(Kind) -> bool) {
        self.rest.note_use();
        let workers = self.workers.lock();
        workers
            .iter()
            .filter(|worker| which(worker.kind))
            .map(|worker| worker.thread.thread())
            .for_each(Thread::unpark);
    }

    /// Gives each tier its threads where it has none yet.
    fn attend_tiers(self: &Arc<Self>, file_system: &Arc<FileSystem>) -> io::Result<()> {
        for (tier, _) in file_system.tier_names() {
            self.attend(file_system, tier, Kind::OfTier(tier), "tier", FileSystem::tier_step)?;
            self.attend(file_system, tier, Kind::SyncsOf(tier), "sync", FileSystem::sync_rewritten_step)?;
        }
        Ok(())
    }

    fn attend(
        self: &Arc<Self>,
        file_system: &Arc<FileSystem>,
        tier: TierId,
        kind: Kind,
        name: &str,
        step: fn(&FileSystem, TierId) -> Progress,
    ) -> io::Result<()> {
        if self.workers.lock().iter().any(|worker| worker.kind == kind) {
            return Ok(());
        }
        let file_system = Arc::clone(file_system);
        self.spawn(format!("{name}-{tier}"), kind, move || file_system.note_progress(step(&file_system, tier)))
    }

    /// Starts a mover for each one that is stuck and was not replaced yet.
    fn replace_stuck_movers(self: &Arc<Self>, file_system: &Arc<FileSystem>) -> io::Result<()> {
        let mut stuck = file_system.stuck_threads();
        stuck.extend(file_system.held_up_threads());
        if stuck.is_empty() {
            return Ok(());
        }
        let (free, all) = {
            let workers = self.workers.lock();
            let movers = || workers.iter().filter(|worker| worker.kind == Kind::Mover);
            let is_free = |worker: &&Worker| !stuck.contains(&worker.token.load(Ordering::Acquire));
            (movers().filter(is_free).count(), movers().count())
        };
        file_system.replace_movers(&stuck);
        let movers = usize::from(self.movers);
        for _ in free..movers.min(free + (movers + STUCK_MOVERS_MAX).saturating_sub(all)) {
            log::warn!("a mover is stuck in a tier; another one takes its place");
            self.start_mover(file_system)?;
        }
        Ok(())
    }
}

/// Watches for as long as there is the file system.
fn watch(shared: &Arc<Shared>, file_system: &Arc<FileSystem>) -> io::Result<()> {
    let (rest, movers) = (Arc::clone(&file_system.rest), shared.movers);
    let (shared, file_system) = (Arc::downgrade(shared), Arc::downgrade(file_system));
    thread::Builder::new().name("watch".to_owned()).spawn(move || {
        while let Some(file_system) = file_system.upgrade() {
            file_system.watch_step();
            file_system.look_for_use(movers);
            if let Some(shared) = shared.upgrade().filter(|shared| !shared.must_stop.load(Ordering::Acquire)) {
                let attended = shared.attend_tiers(&file_system);
                if let Err(error) = attended.and_then(|()| shared.replace_stuck_movers(&file_system)) {
                    log::warn!("a background thread cannot be started: {error}");
                }
            }
            drop(file_system);
            rest.pause(WATCH_INTERVAL);
        }
    })?;
    Ok(())
}
