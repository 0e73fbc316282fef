//! Set-id bits that were taken away while the kernel still believes in them.
//!
//! Most ways to write ask for the removal by a request whose answer carries the new mode, before anything is written (`set_id`).
//! Two do not: an open that empties the file, and a write of a description with direct I/O. Their answers carry no attributes,
//! and a notification only marks the kernel's attributes as outdated: `execve` asks for attributes when it checks permissions, opens
//! the file after that, and reads the mode that it remembers at the end, without asking again.
//!
//! Invariants:
//! * A file is executed by the mode that it had while nothing could write to it. Bits are taken away without notice to the kernel only while
//!   no description is open to execute the file, else the change fails with `ETXTBSY`, as it does in the kernel a moment later.
//! * Each thread that opens a file to execute it after such a removal is refused once with `ESTALE`. The kernel then begins the
//!   open anew, checks of permissions included, and learns the mode.
//! * While bits are being taken away without notice, opens to execute the file fail with `ETXTBSY`: the file is being written.
//! * The lock is held for no call of the file system, which may wait for a tier.
//! * Where the kernel may still install a mode that was answered before the removal (`unversioned`), such opens fail with `ETXTBSY`.
//! * A removal is remembered for [`REMEMBERED`] at least: longer than any `execve` needs from its check of permissions to its open.
//! * The number of remembered removals is bounded. At the bound every file counts as one whose bits were taken away just now.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polymux_types::{Errno, Ino};

use crate::threads::doing_of_asking;
use crate::unversioned::{INSTALLED_WITHIN, UninstalledAnswers};

/// How long a removal is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// From so many on, old ones are forgotten; and again whenever there are twice as many as were left, so that looking through them
/// costs little for each removal, however many files a user takes bits away from.
const REMOVALS_KEPT: usize = 1024;
/// Most files whose removals are remembered one by one.
const REMOVALS_MAX: usize = 16 * REMOVALS_KEPT;
/// How often, and with which time between, an open to execute a file looks whether an answer was installed.
const INSTALLING_LOOKS: u32 = 100;
const INSTALLING_LOOK_INTERVAL: Duration = Duration::from_micros(200);
/// Most threads of which it is remembered that they have been sent to look again.
const TOLD_MAX: usize = 64 * REMOVALS_KEPT;

/// Bits of a file were taken away unheard.
#[derive(Debug)]
struct Removal {
    at: Instant,
    /// Threads that have been sent to look again.
    told: HashSet<u32>,
}

impl Removal {
    fn new(at: Instant) -> Self {
        Self { at, told: HashSet::new() }
    }
}

/// Files whose bits were taken away unheard.
#[derive(Debug, Default)]
struct Removals {
    of_files: HashMap<Ino, Removal>,
    /// There were too many to remember each: of any file that is not among them bits may have been taken away.
    of_any: Option<Removal>,
    /// Entries that the last look for old ones left.
    left_by_look: usize,
    /// Threads that have been sent to look again, over all entries.
    told: usize,
}

impl Removals {
    fn note(&mut self, ino: Ino, now: Instant) {
        let is_remembered = |removal: &Removal| now.duration_since(removal.at) < REMEMBERED;
        self.of_any = self.of_any.take().filter(is_remembered);
        if self.of_files.len() >= REMOVALS_KEPT.max(2 * self.left_by_look) || self.of_files.len() >= REMOVALS_MAX {
            self.of_files.retain(|_, removal| is_remembered(removal));
            self.left_by_look = self.of_files.len();
        }
        if self.of_files.len() >= REMOVALS_MAX {
            // Those of which an answer may not be installed yet stay one by one; `is_full` sees to it that these are not too many.
            self.of_files.retain(|_, removal| now.duration_since(removal.at) < INSTALLED_WITHIN);
            self.left_by_look = self.of_files.len();
            self.of_any = Some(Removal::new(now));
        }
        // Threads that were notified before have to look again.
        self.of_files.insert(ino, Removal::new(now));
    }

    /// Whether so many removals are too fresh to be forgotten that another one has no place. A file that is among them has one.
    fn is_full(&self, ino: Ino, now: Instant) -> bool {
        self.of_files.len() >= REMOVALS_MAX
            && !self.of_files.contains_key(&ino)
            && self.of_files.values().all(|removal| now.duration_since(removal.at) < INSTALLED_WITHIN)
    }

    /// Whether bits of this very file were taken away, as far as that is remembered.
    fn has_own(&self, ino: Ino) -> bool {
        self.of_files.contains_key(&ino)
    }

    fn has(&self, ino: Ino) -> bool {
        self.of_any.is_some() || self.of_files.contains_key(&ino)
    }

    /// Whether a thread that opens a file to execute it has to be sent to look again, which it is now.
    fn tell(&mut self, ino: Ino, thread: u32) -> bool {
        if self.told >= TOLD_MAX {
            // They look once more.
            self.told = 0;
            self.of_files.values_mut().chain(&mut self.of_any).for_each(|removal| removal.told = HashSet::new());
        }
        let removal = self.of_files.get_mut(&ino).or(self.of_any.as_mut());
        let is_new = removal.is_some_and(|removal| removal.told.insert(thread));
        self.told += usize::from(is_new);
        is_new
    }
}

#[derive(Debug, Default)]
struct State {
    /// Descriptions that are open to execute a file.
    executing: HashMap<u64, Ino>,
    /// Files whose bits are being taken away unheard, and by how many threads.
    removing: HashMap<Ino, usize>,
    removals: Removals,
    answers: UninstalledAnswers,
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
    /// `ESTALE`: the kernel may not know the mode, and has to begin anew. `ETXTBSY`: the file is about to be written, or the kernel is
    /// about to install a mode from before such a write.
    pub(crate) fn begin(&self, ino: Ino, handle: u64, thread: u32) -> Result<(), Errno> {
        self.wait_for_installed(ino, thread);
        let mut state = self.lock();
        if state.removing.contains_key(&ino) {
            return Err(Errno::ETXTBSY);
        }
        // Files that nothing is remembered of have had time for their answers.
        if state.removals.has_own(ino) && state.answers.may_come(ino, thread, Instant::now()) {
            return Err(Errno::ETXTBSY);
        }
        if state.removals.tell(ino, thread) {
            return Err(Errno::ESTALE);
        }
        state.executing.insert(handle, ino);
        self.count(&state);
        Ok(())
    }

    /// Removals by earlier daemons are not known: bits of any file may have gone just now.
    pub(crate) fn know_no_removals(&self) {
        self.lock().removals.of_any = Some(Removal::new(Instant::now()));
    }

    /// A description that an earlier daemon opened to execute a file.
    pub(crate) fn go_on(&self, ino: Ino, handle: u64) {
        let mut state = self.lock();
        state.executing.insert(handle, ino);
        self.count(&state);
    }

    /// Gives a thread that was answered the mode of a file the time to run on: it is no longer than it takes to get a processor.
    fn wait_for_installed(&self, ino: Ino, thread: u32) {
        for _ in 0..INSTALLING_LOOKS {
            let mut state = self.lock();
            if !state.removals.has_own(ino) || !state.answers.may_come(ino, thread, Instant::now()) {
                return;
            }
            drop(state);
            std::thread::sleep(INSTALLING_LOOK_INTERVAL);
        }
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

    /// A mode with set-id bits is about to be sent to a thread in the answer to a change (`unversioned`). Returns whether bits may
    /// have been taken away since it was read, so that it has to be read again.
    #[must_use]
    pub(crate) fn note_answer(&self, ino: Ino, thread: u32) -> bool {
        let did = doing_of_asking(thread);
        let mut state = self.lock();
        state.answers.note(ino, thread, did, Instant::now());
        state.removing.contains_key(&ino) || state.removals.has(ino)
    }

    /// Takes set-id bits of a file away where the kernel does not hear of it; `remove` does so.
    ///
    /// # Errors
    /// `ETXTBSY`: the file is being executed. `EAGAIN`: bits of very many files were taken away within seconds. The errors of `remove`.
    pub(crate) fn remove_unheard<E: From<Errno>>(
        &self,
        ino: Ino,
        remove: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.lock();
        if state.executing.values().any(|executed| *executed == ino) {
            return Err(Errno::ETXTBSY.into());
        }
        if state.removals.is_full(ino, Instant::now()) {
            return Err(Errno::EAGAIN.into());
        }
        // Earlier installations are of no interest, and may be harder to see later.
        state.answers.forget_installed(ino);
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
        state.removals.note(self.ino, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);
    const OTHER: Ino = Ino(8);

    type Waiting = std::thread::JoinHandle<Result<(), std::sync::mpsc::RecvError>>;

    /// The number of a thread that waits in one call, the sender that ends its wait, and the thread.
    fn waiting_thread() -> (u32, std::sync::mpsc::Sender<()>, Waiting) {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (send, receive) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            ended.recv()
        });
        (receive.recv().unwrap(), end, waiting)
    }

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

    #[test]
    fn nobody_executes_a_file_while_the_kernel_may_install_a_mode_from_before_its_bits_went() {
        let programs = Programs::default();
        let (thread, end, changing) = waiting_thread();
        assert!(!programs.note_answer(FILE, thread), "no bits were taken away");
        assert_eq!(programs.begin(FILE, 1, 100), Ok(()), "what was answered is true");
        programs.end(1);
        remove(&programs).unwrap();
        assert_eq!(programs.begin(FILE, 2, 100), Err(Errno::ETXTBSY), "the thread is in the same call still");
        assert_eq!(programs.begin(OTHER, 3, 100), Ok(()));
        end.send(()).unwrap();
        changing.join().unwrap().unwrap();
        assert_eq!(
            programs.begin(FILE, 4, 100),
            Err(Errno::ESTALE),
            "it has its answer, and the mode is looked up again"
        );
        assert_eq!(programs.begin(FILE, 5, 100), Ok(()));
        programs.end(5);
        let meanwhile = || {
            assert!(programs.note_answer(FILE, 0), "what is answered beside a removal is read again");
            Ok::<(), Errno>(())
        };
        programs.remove_unheard(FILE, meanwhile).unwrap();
        assert!(programs.note_answer(FILE, 0), "and what was read before it");
        assert_eq!(programs.begin(FILE, 6, 100), Err(Errno::ETXTBSY));
    }

    #[test]
    fn who_executes_a_file_waits_for_an_answer_that_is_just_being_installed() {
        let programs = std::sync::Arc::new(Programs::default());
        let (thread, end, changing) = waiting_thread();
        assert!(!programs.note_answer(FILE, thread));
        remove(&programs).unwrap();
        let executing = programs.clone();
        let executing = std::thread::spawn(move || executing.begin(FILE, 1, 100));
        end.send(()).unwrap();
        changing.join().unwrap().unwrap();
        assert_eq!(executing.join().unwrap(), Err(Errno::ESTALE), "it looks the mode up again");
    }

    #[test]
    fn removals_of_any_number_of_files_take_bounded_room_and_none_is_forgotten() {
        let mut removals = Removals::default();
        let now = Instant::now();
        let count = 2 * REMOVALS_MAX as u64 + 10;
        for number in 0..count {
            // As many as are kept within the time that an answer may take.
            let then = now + Duration::from_micros(number * 700);
            assert!(!removals.is_full(Ino(number), then), "{number}");
            removals.note(Ino(number), then);
            assert!(removals.of_files.len() <= REMOVALS_MAX);
        }
        let now = now + Duration::from_micros(count * 700);
        for (thread, number) in (100..).zip([0, 1, REMOVALS_MAX as u64 + 1, count - 1, count + 1]) {
            assert!(removals.has(Ino(number)) && removals.tell(Ino(number), thread), "inode {number}");
            assert!(!removals.tell(Ino(number), thread), "inode {number}: once");
        }
        removals.note(OTHER, now + REMEMBERED);
        assert!(removals.of_files.len() < REMOVALS_MAX && removals.of_any.is_none(), "they are forgotten in time");
    }

    #[test]
    fn who_takes_bits_of_too_many_files_away_at_once_waits_and_other_files_are_executed() {
        let programs = Programs::default();
        let remove = |number: usize| programs.remove_unheard(Ino(number as u64), || Ok::<(), Errno>(()));
        (1..=REMOVALS_MAX).for_each(|number| remove(number).unwrap());
        assert_eq!(remove(REMOVALS_MAX + 1), Err(Errno::EAGAIN));
        assert_eq!(remove(1), Ok(()), "a file that is remembered anyway");
        for number in 0..2000_u64 {
            let _ = programs.note_answer(Ino(1_000_000 + number), 0);
        }
        let other = Ino(5_000_000);
        assert_eq!(programs.begin(other, 1, 100), Err(Errno::ESTALE), "its mode is looked up again");
        assert_eq!(programs.begin(other, 1, 100), Ok(()));
    }

    #[test]
    fn threads_of_any_number_that_look_again_take_bounded_room() {
        let mut removals = Removals::default();
        removals.note(FILE, Instant::now());
        for thread in 0..3 * u32::try_from(TOLD_MAX).unwrap() {
            assert!(removals.tell(FILE, thread));
            assert!(removals.of_files[&FILE].told.len() <= TOLD_MAX);
        }
    }
}
