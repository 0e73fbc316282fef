//! Locks and atomics, so that the same code runs on real threads and under the model checker `shuttle`.
//!
//! Built with `--cfg shuttle` (see `make test-schedules`) every lock and atomic is a scheduling point of the checker;
//! otherwise they are the ordinary ones and this module costs nothing.

#[cfg(not(shuttle))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(shuttle))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(not(shuttle))]
pub use std::thread;

#[cfg(shuttle)]
pub use model::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub use shuttle::thread;

/// The checker's locks with the signatures of `parking_lot`. A poisoned lock means that a checked thread panicked, and
/// then the test has failed already.
#[cfg(shuttle)]
#[allow(missing_docs, reason = "the signatures are those of `parking_lot`")]
mod model {
    use std::time::Duration;

    use shuttle::sync;
    pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

    #[derive(Debug, Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    /// Holds the guard in an option so that [`Condvar::wait`] can take it by reference.
    pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("no checked thread panicked")))
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> std::ops::Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("the guard is held")
        }
    }

    impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("the guard is held")
        }
    }

    /// The outcome of a timed wait.
    pub struct TimedOut;

    impl TimedOut {
        pub fn timed_out(&self) -> bool {
            true
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(sync::Condvar);

    impl Condvar {
        pub fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("the guard is held");
            guard.0 = Some(self.0.wait(held).expect("no checked thread panicked"));
        }

        /// The checker has no time, so checked code never waits for a time.
        pub fn wait_for<T>(&self, _guard: &mut MutexGuard<'_, T>, _limit: Duration) -> TimedOut {
            panic!("a timed wait cannot be checked");
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Debug, Default)]
    pub struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("no checked thread panicked")
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("no checked thread panicked")
        }

        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}
