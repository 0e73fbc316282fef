//! A word that says whether a daemon lives, which no death of it can leave behind as it was.
//!
//! Invariants:
//! * The word has the number of a thread of the daemon. When that thread ends, for whatever reason, the kernel itself clears the number (robust futexes,
//!   `get_robust_list(2)`), before it closes the last descriptor of the process. So no other daemon has the lock of the volume, and none can
//!   change a map, before every program can see that the map ended.
//! * A word that once said that the daemon is dead never says anything else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use crate::memory::{Access, SharedMemory};

/// Bits of the word in which the kernel expects the owner, and clears it (`FUTEX_TID_MASK` of include/uapi/linux/futex.h).
const OWNER: u32 = 0x3fff_ffff;

/// Places in the memory of the list: its one entry (`struct robust_list` of include/uapi/linux/futex.h: the address of the next one), and its head (`struct
/// robust_list_head`: the address of the first entry, the distance from an entry to its word, and the address of one that is being added: none).
const ENTRY: usize = 0;
const HEAD: usize = 64;
const HEAD_LENGTH: usize = 24;
const _: () = assert!(usize::BITS == 64, "addresses are written as words of 64 bits");

/// The daemon's side. Programs see the end of the daemon when this is dropped, too.
#[derive(Debug)]
pub struct LifeKeeper {
    descriptor: OwnedFd,
    /// Ends the thread when it is dropped.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LifeKeeper {
    /// Starts a thread that sleeps for all of the life of the daemon.
    ///
    /// # Errors
    /// There is no memory, no descriptor or no thread left, or the kernel has no robust futexes.
    pub fn start() -> io::Result<Self> {
        let (memory, descriptor) = SharedMemory::create("polymux-life", size_of::<u32>(), Access::Read)?;
        let (list, _) = SharedMemory::create("polymux-life-list", HEAD + HEAD_LENGTH, Access::Read)?;
        let (end, ended) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let thread = std::thread::Builder::new().name("leases-life".to_owned()).spawn(move || {
            let _ = started.send(own(&memory, &list));
            // It ends with an error when the sender is dropped; nothing is ever sent.
            let _ = ended.recv();
            // Both stay mapped until the kernel has cleared the word.
            std::mem::forget((memory, list));
        })?;
        has_started.recv().map_err(|_| io::Error::other("the thread ended at once"))??;
        Ok(Self { descriptor, end: Some(end), thread: Some(thread) })
    }

    /// For programs, which may only read it.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for LifeKeeper {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes the calling thread, which never uses a robust mutex, the owner of the word, and the kernel its executor.
///
/// The list is in shared memory: private memory of a process that was killed may be taken away before its threads end (the OOM killer, `process_mrelease(2)`), and the
/// kernel would find no list. It is memory of its own, because the word is handed out, and addresses are not for others.
fn own(memory: &SharedMemory, list: &SharedMemory) -> io::Result<()> {
    let address_of = |place: &AtomicU64| std::ptr::from_ref(place).addr();
    let word = memory.word(0);
    let (entry, head) = (address_of(list.long_word(ENTRY)), address_of(list.long_word(HEAD)));
    let distance = std::ptr::from_ref(word).addr().wrapping_sub(entry);
    list.long_word(ENTRY).store(head as u64, Ordering::Relaxed);
    list.long_word(HEAD).store(entry as u64, Ordering::Relaxed);
    list.long_word(HEAD + 8).store(distance as u64, Ordering::Relaxed);
    list.long_word(HEAD + 16).store(0, Ordering::Relaxed);
    let thread =
        u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).expect("numbers of threads are positive");
    word.store(thread & OWNER, Ordering::Release);
    // SAFETY: the list is whole, ends with its head, and is never unmapped. The thread has no other robust list that counts: it locks no robust mutex.
    let outcome = unsafe { libc::syscall(libc::SYS_set_robust_list, head, HEAD_LENGTH) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A program's side.
#[derive(Debug)]
pub struct Life(SharedMemory);

impl Life {
    /// Maps the word of a daemon.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn map(descriptor: impl AsFd) -> io::Result<Self> {
        Ok(Self(SharedMemory::map(descriptor, Access::Read, size_of::<u32>())?))
    }

    /// Whether the daemon had not ended by the time of this call.
    #[inline]
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.0.word(0).load(Ordering::Acquire) & OWNER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_ends_with_its_keeper() {
        let keeper = LifeKeeper::start().unwrap();
        let life = Life::map(keeper.descriptor()).unwrap();
        assert!(life.goes_on());
        drop(keeper);
        assert!(!life.goes_on());
    }
}
