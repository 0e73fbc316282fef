//! The map of a leased file: which object has which bytes.
//!
//! Layout of the memory, in words of this machine: at 0 the state (32 bits), at 4 the number of runs (32 bits), at 8 the number of bytes that they cover
//! (64 bits), at 16 the inode number of the file (64 bits), at 24 1 where the file may change meanwhile (32 bits); from 64 on the runs, each with its first byte, the byte behind its last one, and the place of its object in the list of descriptors,
//! with [`WRITABLE`] where it may be overwritten, or [`HOLE`] (64 bits each).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use polymux_types::MapRun;

use crate::memory::{Access, SharedMemory};

/// Most runs of a map. Of a file with more of them, the first ones are leased.
pub const RUNS_MAX: usize = 8192;

const COUNT_AT: usize = 4;
const COVERED_AT: usize = 8;
const INODE_AT: usize = 16;
const CHANGES_AT: usize = 24;
const RUNS_AT: usize = 64;
const RUN_LENGTH: usize = 24;
/// Instead of the place of an object: the bytes are zeros.
const HOLE: u64 = u64::MAX;
/// Beside the place of an object: the bytes may be overwritten there.
const WRITABLE: u64 = 1 << 32;
/// State of a map that is true. Memory that was never written says that it is not.
const CURRENT: u32 = 1;
/// The daemon waits for writes that began before.
const RECALLED: u32 = 2;
/// It waits no longer.
const EXPIRED: u32 = 3;

/// Whether the bytes of a file may change while a map of it is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// They do not.
    None,
    /// They may: where they are stays the same.
    Possible,
}

/// Whether a write that reached an object is one of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is: the daemon used these bytes for nothing else before.
    ToFile,
    /// The daemon may have gone on before: the bytes are to be written once more, through the kernel.
    ToObjectAlone,
}

/// A map in shared memory.
#[derive(Debug)]
pub struct LeasedMap(SharedMemory);

impl LeasedMap {
    /// The daemon's side: a map of the file with an inode number that is true from now on, and its descriptor for a program. The runs begin with the first byte and follow one another.
    ///
    /// # Errors
    /// There is no memory or no descriptor left.
    pub fn create(inode: u64, runs: &[MapRun], file: Changes) -> io::Result<(Self, OwnedFd)> {
        assert!(runs.len() <= RUNS_MAX, "a map has at most {RUNS_MAX} runs");
        let length = RUNS_AT + runs.len() * RUN_LENGTH;
        let (memory, descriptor) = SharedMemory::create("polymux-map", length, Access::Read)?;
        let count = u32::try_from(runs.len()).expect("it is at most RUNS_MAX");
        memory.word(COUNT_AT).store(count, Ordering::Relaxed);
        memory.long_word(COVERED_AT).store(runs.last().map_or(0, |run| run.end), Ordering::Relaxed);
        memory.long_word(INODE_AT).store(inode, Ordering::Relaxed);
        memory.word(CHANGES_AT).store(u32::from(file == Changes::Possible), Ordering::Relaxed);
        for (place, run) in runs.iter().enumerate() {
            let at = RUNS_AT + place * RUN_LENGTH;
            memory.long_word(at).store(run.start, Ordering::Relaxed);
            memory.long_word(at + 8).store(run.end, Ordering::Relaxed);
            let flag = if run.is_writable { WRITABLE } else { 0 };
            memory.long_word(at + 16).store(run.object.map_or(HOLE, |object| object as u64 | flag), Ordering::Relaxed);
        }
        memory.word(0).store(CURRENT, Ordering::Release);
        Ok((Self(memory), descriptor))
    }

    /// Ends the truth of the map, before anything that it says is changed. One that is expired stays so.
    pub fn recall(&self) {
        let _ = self.0.word(0).compare_exchange(CURRENT, RECALLED, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Waits no longer for writes that began before the recall. Before anything else is done with the bytes.
    pub fn expire(&self) {
        self.0.word(0).store(EXPIRED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The program's side.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn map(descriptor: impl AsFd) -> io::Result<Self> {
        Ok(Self(SharedMemory::map(descriptor, Access::Read, RUNS_AT)?))
    }

    /// Whether the map was true until this call. Bytes that were read from objects before it are those of the file.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        // Earlier reads stay before this: who sees a byte from after a recall sees the recall.
        fence(Ordering::Acquire);
        self.0.word(0).load(Ordering::Acquire) == CURRENT
    }

    /// Whether a write may begin, which [`crate::UseCounts::begin_write`] has announced.
    #[inline]
    #[must_use]
    pub fn admits_write(&self) -> bool {
        // Either the daemon sees the announcement, or this sees the recall.
        fence(Ordering::SeqCst);
        self.0.word(0).load(Ordering::SeqCst) == CURRENT
    }

    /// Whether a write that has just reached an object, and is still announced, is one of the file.
    #[inline]
    #[must_use]
    pub fn written(&self) -> Written {
        fence(Ordering::SeqCst);
        match self.0.word(0).load(Ordering::SeqCst) {
            CURRENT | RECALLED => Written::ToFile,
            _ => Written::ToObjectAlone,
        }
    }

    /// Whether the file may change while the map is true.
    #[must_use]
    pub fn changes(&self) -> Changes {
        match self.0.word(CHANGES_AT).load(Ordering::Relaxed) {
            0 => Changes::None,
            _ => Changes::Possible,
        }
    }

    /// Number of the inode of which it is the map.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.0.long_word(INODE_AT).load(Ordering::Relaxed)
    }

    /// A copy of the runs, which name `objects` objects at the most.
    ///
    /// # Errors
    /// The memory does not hold a map.
    pub fn runs(&self, objects: usize) -> io::Result<Vec<MapRun>> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the map of a lease is malformed");
        let count = usize::try_from(self.0.word(COUNT_AT).load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if count > RUNS_MAX || RUNS_AT + count * RUN_LENGTH > self.0.length() {
            return Err(malformed());
        }
        let mut runs = Vec::with_capacity(count);
        let mut covered = 0;
        for place in 0..count {
            let at = RUNS_AT + place * RUN_LENGTH;
            let [start, end, object] = [at, at + 8, at + 16].map(|at| self.0.long_word(at).load(Ordering::Relaxed));
            let is_writable = object != HOLE && object & WRITABLE != 0;
            let place = |object: u64| usize::try_from(object & !WRITABLE).ok().filter(|place| *place < objects);
            let object = match object {
                HOLE => None,
                object => Some(place(object).ok_or_else(malformed)?),
            };
            if start != covered || end <= start || i64::try_from(end).is_err() {
                return Err(malformed());
            }
            covered = end;
            runs.push(MapRun { start, end, object, is_writable });
        }
        if covered == self.0.long_word(COVERED_AT).load(Ordering::Relaxed) { Ok(runs) } else { Err(malformed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64, object: Option<usize>) -> MapRun {
        MapRun { start, end, object, is_writable: start == 0 && object.is_some() }
    }

    #[test]
    fn a_program_sees_the_runs_and_the_recall() {
        let runs = [run(0, 4096, Some(1)), run(4096, 8192, None), run(8192, 9000, Some(0))];
        let (ours, descriptor) = LeasedMap::create(7, &runs, Changes::None).unwrap();
        let theirs = LeasedMap::map(&descriptor).unwrap();
        assert_eq!((theirs.inode(), theirs.runs(2).unwrap()), (7, runs.to_vec()));
        assert!(theirs.is_current());
        ours.recall();
        assert!(!theirs.is_current());
    }

    #[test]
    fn a_write_beside_a_recall_is_one_of_the_file_until_it_is_waited_for_no_longer() {
        let (ours, descriptor) = LeasedMap::create(7, &[run(0, 4096, Some(0))], Changes::None).unwrap();
        let theirs = LeasedMap::map(&descriptor).unwrap();
        assert_eq!((theirs.admits_write(), theirs.written()), (true, Written::ToFile));
        ours.recall();
        assert_eq!((theirs.admits_write(), theirs.written()), (false, Written::ToFile));
        ours.expire();
        assert_eq!((theirs.admits_write(), theirs.written()), (false, Written::ToObjectAlone));
        ours.recall();
        assert_eq!(theirs.written(), Written::ToObjectAlone, "for ever");
    }

    #[test]
    fn a_map_that_cannot_be_is_refused() {
        let cases: [&[MapRun]; 3] =
            [&[run(0, 4096, Some(2))], &[run(0, 4096, Some(0)), run(5000, 8192, Some(1))], &[run(0, 0, Some(0))]];
        for runs in cases {
            let (_ours, descriptor) = LeasedMap::create(7, runs, Changes::None).unwrap();
            assert!(LeasedMap::map(&descriptor).unwrap().runs(2).is_err(), "{runs:?}");
        }
        let (memory, descriptor) = SharedMemory::create("test", 4096, Access::ReadWrite).unwrap();
        let theirs = LeasedMap::map(&descriptor).unwrap();
        assert!(!theirs.is_current(), "memory that was never written is no map");
        memory.word(COUNT_AT).store(u32::MAX, Ordering::Relaxed);
        assert!(theirs.runs(2).is_err());
        memory.word(COUNT_AT).store(300, Ordering::Relaxed);
        assert!(theirs.runs(2).is_err(), "more runs than the memory holds");
    }
}
