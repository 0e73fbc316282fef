//! Memory that outlives the process that writes it, and nothing else (docs/design/0023).
//!
//! Invariants:
//! * Bytes stored in it are there for the next process of the same boot of the same machine, however the first one
//!   ended. After another boot it is gone, and its user checks that: a header names the boot.
//! * One process at a time has a piece of it open for writing.
//! * A store never fails: the memory is allocated before it is given out.

use std::fmt;
use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// A piece of surviving memory, open for writing.
pub trait SurvivingMemory: Send + Sync {
    /// Its words; as many as were asked for. Zeros where it is new.
    fn words(&self) -> &[AtomicU64];

    /// Where it is, for people.
    fn description(&self) -> String;

    /// Removes it: the process ends in order, and nothing in it is needed any more. Open pieces stay usable.
    fn discard(&self);
}

/// Where pieces of surviving memory are found by name.
pub trait SurvivingPlace: fmt::Debug + Send + Sync {
    /// The boot of the machine.
    fn boot(&self) -> [u8; 16];

    /// Opens the piece called `name`, which has `bytes` bytes, or makes it.
    ///
    /// # Errors
    ///
    /// Why there is none to be had, for people.
    fn open(&self, name: &str, bytes: u64) -> Result<Arc<dyn SurvivingMemory>, String>;

    /// The words of the piece called `name` as they are at this moment, without a change; `None` where there is none of
    /// that length.
    fn read(&self, name: &str, bytes: u64) -> Option<Vec<u64>>;
}

/// Copies words out.
#[must_use]
pub fn snapshot(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Acquire)).collect()
}

/// The boot of a machine as two words.
#[must_use]
pub fn boot_words(boot: [u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(boot);
    let low = u64::try_from(number & u128::from(u64::MAX)).expect("the upper half is masked");
    let high = u64::try_from(number >> 64).expect("half of it is left");
    [low, high]
}
