//! A region and a block medium in memory that lose power together, at any of their own steps.
//!
//! Invariants:
//! * The content of the region after a power failure is chosen word by word: the bytes of the last write-back, or those stored
//!   since. Beside that, lines are evicted at random moments, as caches do.
//! * The moment is a count of steps: each write-back, write and flush is one before and one after. The images are taken
//!   then, and the log goes on unaware.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64 as StdAtomicU64;
use std::sync::{Arc, Mutex};

use super::crash_medium::CrashMedium;
use super::medium::LogMedium;
use super::region::LogRegion;
use super::tests::Random;
use polymux_types::sync::{AtomicU64, Ordering};

const LINE_WORDS: usize = 8;

/// The images that survive.
pub(crate) struct Images {
    pub(crate) medium: Vec<u8>,
    pub(crate) region: Vec<u64>,
    /// The position acknowledged at that moment.
    pub(crate) acknowledged: u64,
}

/// A mistake that a test has to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    /// Only the line of the commit mark is written back.
    BodyStaysInTheCache,
    /// A spill is not flushed before the header of the region says that it happened.
    SpillIsNotFlushed,
}

pub(crate) struct World {
    pub(crate) medium: CrashMedium,
    present: Box<[AtomicU64]>,
    durable: Mutex<Vec<u64>>,
    steps_left: StdAtomicU64,
    random: Mutex<Random>,
    images: Mutex<Option<Images>>,
    pub(crate) acknowledged: StdAtomicU64,
    pub(crate) planted: Planted,
}

impl World {
    pub(crate) fn of(medium: Vec<u8>, region: Vec<u64>, seed: u64, planted: Planted) -> Arc<Self> {
        Arc::new(Self {
            medium: CrashMedium::of(medium),
            present: region.iter().map(|word| AtomicU64::new(*word)).collect(),
            durable: Mutex::new(region),
            steps_left: StdAtomicU64::new(u64::MAX),
            random: Mutex::new(Random(seed)),
            images: Mutex::new(None),
            acknowledged: StdAtomicU64::new(0),
            planted,
        })
    }

    /// Power fails after so many steps.
    pub(crate) fn fail_after(&self, steps: u64) {
        self.steps_left.store(steps, Ordering::SeqCst);
    }

    /// The images after the power failure; fails the power now if it has not failed yet.
    pub(crate) fn images(&self) -> Images {
        let images = self.images.lock().unwrap().take();
        images.unwrap_or_else(|| self.fail())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.images.lock().unwrap().is_some()
    }

    /// In this order, so that the images are of one moment even with threads at work: entries that are given up here later are
    /// found on the medium, which is read last, and the entries acknowledged at the start are in the images read afterwards.
    fn fail(&self) -> Images {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        let mut random = self.random.lock().unwrap();
        let share = random.below(101);
        let durable = self.durable.lock().unwrap();
        let mut region = durable.clone();
        for index in (0..region.len()).rev() {
            if random.below(100) < share {
                region[index] = self.present[index].load(Ordering::SeqCst);
            }
        }
        let medium = self.medium.crash(|| random.below(100) < share);
        Images { medium, region, acknowledged }
    }

    fn step(&self) {
        let left = self.steps_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            let mut images = self.images.lock().unwrap();
            if images.is_none() {
                *images = Some(self.fail());
            }
        }
        let lines = self.present.len() / LINE_WORDS;
        let evicted = usize::try_from(self.random.lock().unwrap().below(lines as u64)).unwrap();
        self.copy_line(evicted);
    }

    fn copy_line(&self, line: usize) {
        let mut durable = self.durable.lock().unwrap();
        for word in line * LINE_WORDS..(line + 1) * LINE_WORDS {
            durable[word] = self.present[word].load(Ordering::SeqCst);
        }
    }
}

impl LogRegion for World {
    fn words(&self) -> &[AtomicU64] {
        &self.present
    }

    fn write_back(&self, bytes: Range<usize>) -> io::Result<()> {
        self.step();
        let forgotten = self.planted == Planted::BodyStaysInTheCache && bytes.len() > 64;
        if !bytes.is_empty() && !forgotten {
            for line in bytes.start / 64..bytes.end.div_ceil(64) {
                self.copy_line(line);
            }
        }
        self.step();
        Ok(())
    }

    fn description(&self) -> String {
        "memory that loses what was not written back".to_owned()
    }
}

impl LogMedium for World {
    fn length(&self) -> u64 {
        self.medium.length()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.medium.read(offset, bytes)
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.step();
        self.medium.write(offset, blocks)?;
        self.step();
        Ok(())
    }

    fn write_durable(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.step();
        self.medium.write_durable(offset, blocks)?;
        self.step();
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.step();
        if self.planted != Planted::SpillIsNotFlushed {
            self.medium.flush()?;
        }
        self.step();
        Ok(())
    }

    fn description(&self) -> String {
        self.medium.description()
    }
}
