//! Set-id bits that were taken away while the kernel still believes in them.
//!
//! Most ways to write ask for the removal by a request whose answer carries the new mode, before anything is written (`set_id`).
//! Two do not: an open that empties the file, and a write of a description with direct I/O. Their answers carry no attributes,
//! and a notification only marks what the kernel has as outdated: `execve` asks for attributes when it checks permissions, opens
//! the file after that, and reads the mode that it remembers at the end, without asking again.
//!
//! What is true here:
//! * A file is executed by the mode that it had when nobody could write to it. Bits are taken away unheard only while no
//!   description is open to execute the file, else the change fails with `ETXTBSY`, as it does in the kernel a moment later.
//! * Each thread that opens a file to execute it after such a removal is refused once with `ESTALE`. The kernel then begins the
//!   open anew, checks of permissions included, and learns the mode.
//! * While bits are being taken away unheard, opens to execute the file fail with `ETXTBSY`: somebody writes to it.
//! * The lock is held for no call of the file system, which may wait for a tier.
//! * A removal is remembered for [`REMEMBERED`] at least: longer than any `execve` needs from its check of permissions to its open.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polymux_types::{Errno, Ino};

/// How long a removal is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// From so many on, old ones are forgotten; and again whenever there are twice as many as were left, so that looking through them
/// costs little for each removal, however many files a user takes bits away from.
const REMOVALS_KEPT: usize = 1024;

/// Bits of a file were taken away unheard.
#[derive(Debug)]
struct Removal {
    at: Instant,
    /// Threads that have been sent to look again.
    told: HashSet<u32>,
}

#[derive(Debug, Default)]
struct State {
    /// Descriptions that are open to execute a file.
    executing: HashMap<u64, Ino>,
    /// Files whose bits are being taken away unheard, and by how many threads.
    removing: HashMap<Ino, usize>,
    /// Files whose bits were taken away unheard.
    unheard: HashMap<Ino, Removal>,
    /// Entries of `unheard` that the last look for old ones left.
    left_by_look: usize,
}

/// Which files are being executed, and of which the kernel may not know the mode.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    state: Mutex<State>,
    /// Entries of `executing`, so that releases of other files take no lock.
    executing: AtomicUsize,
}

impl Programs {
    /// A panic below the lock leaves the maps whole: each is changed by one call.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, state: &State) {
        self.executing.store(state.executing.len(), Ordering::Release);
    }

    /// A description was opened to execute a file, and is about to be answered.
    ///
    /// # Errors
    /// `ESTALE`: the kernel may not know the mode, and has to begin anew. `ETXTBSY`: somebody is about to write to the file.
    pub(crate) fn begin(&self, ino: Ino, handle: u64, thread: u32) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.removing.contains_key(&ino) {
            return Err(Errno::ETXTBSY);
        }
        if state.unheard.get_mut(&ino).is_some_and(|removal| removal.told.insert(thread)) {
            return Err(Errno::ESTALE);
        }
        state.executing.insert(handle, ino);
        self.count(&state);
        Ok(())
    }

    /// A description was released.
    pub(crate) fn end(&self, handle: u64) {
        if self.executing.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.lock();
        state.executing.remove(&handle);
        self.count(&state);
    }

    /// Takes set-id bits of a file away where the kernel does not hear of it; `remove` does so.
    ///
    /// # Errors
    /// `ETXTBSY`: somebody executes the file. What `remove` fails with.
    pub(crate) fn remove_unheard<E: From<Errno>>(
        &self,
        ino: Ino,
        remove: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.lock();
        if state.executing.values().any(|executed| *executed == ino) {
            return Err(Errno::ETXTBSY.into());
        }
        *state.removing.entry(ino).or_default() += 1;
        drop(state);
        let _ends = Removing { programs: self, ino };
        remove()
    }
}

/// Bits of a file are being taken away. However that ends, those who execute the file look again afterwards.
struct Removing<'a> {
    programs: &'a Programs,
    ino: Ino,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        let mut state = self.programs.lock();
        if let Some(threads) = state.removing.get_mut(&self.ino) {
            *threads -= 1;
            if *threads == 0 {
                state.removing.remove(&self.ino);
            }
        }
        let now = Instant::now();
        if state.unheard.len() >= REMOVALS_KEPT.max(2 * state.left_by_look) {
            state.unheard.retain(|_, removal| now.duration_since(removal.at) < REMEMBERED);
            state.left_by_look = state.unheard.len();
        }
        // Threads that were told before have to look again.
        state.unheard.insert(self.ino, Removal { at: now, told: HashSet::new() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);
    const OTHER: Ino = Ino(8);

    fn remove(programs: &Programs) -> Result<(), Errno> {
        programs.remove_unheard(FILE, || Ok(()))
    }

    #[test]
    fn who_executes_a_file_after_an_unheard_removal_looks_again_once() {
        let programs = Programs::default();
        remove(&programs).unwrap();
        assert_eq!(programs.begin(FILE, 1, 100), Err(Errno::ESTALE));
        assert_eq!(programs.begin(FILE, 2, 200), Err(Errno::ESTALE), "each thread for itself");
        assert_eq!(programs.begin(FILE, 3, 100), Ok(()));
        assert_eq!(programs.begin(OTHER, 4, 300), Ok(()), "other files are not concerned");
        programs.end(3);
        let meanwhile = || {
            assert_eq!(programs.begin(FILE, 9, 500), Err(Errno::ETXTBSY), "somebody is about to write");
            Ok::<(), Errno>(())
        };
        programs.remove_unheard(FILE, meanwhile).unwrap();
        assert_eq!(programs.begin(FILE, 5, 100), Err(Errno::ESTALE), "after each removal");
    }

    #[test]
    fn bits_of_a_file_that_is_executed_are_not_taken_away_unheard() {
        let programs = Programs::default();
        programs.begin(FILE, 1, 100).unwrap();
        programs.begin(FILE, 2, 200).unwrap();
        let untouched = || -> Result<(), Errno> { panic!("nothing is removed") };
        programs.end(1);
        assert_eq!(programs.remove_unheard(FILE, untouched), Err(Errno::ETXTBSY));
        programs.end(2);
        assert_eq!(remove(&programs), Ok(()));
        assert_eq!(programs.remove_unheard(OTHER, || Err(Errno::EIO)), Err(Errno::EIO));
    }
}
