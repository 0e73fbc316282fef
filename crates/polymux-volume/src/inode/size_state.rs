//! The size of a file, as far as it is known.

use std::sync::atomic::{AtomicBool, AtomicU64};

use polymux_types::sync::Mutex;

/// Whether the size of a file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeKnown {
    /// It is.
    Yes,
    /// Its objects have to be asked for it.
    NotYet,
}

/// The size of a file, as far as it is known.
#[derive(Debug)]
pub struct SizeState {
    /// Size in bytes. Grows under `append`, shrinks under `barrier` alone.
    pub bytes: AtomicU64,
    /// Whether `bytes` is known: it may have to be queried from the object of the size authority.
    pub is_known: AtomicBool,
    /// Held to find the size out.
    pub finding: Mutex<()>,
    /// Times that it was made shorter. Changes under the barrier alone.
    pub cuts: AtomicU64,
}

impl SizeState {
    /// Of a file with this size, which is known for certain or a lower limit.
    pub(super) fn new(bytes: u64, known: SizeKnown) -> Self {
        let is_known = AtomicBool::new(known == SizeKnown::Yes);
        Self { bytes: AtomicU64::new(bytes), is_known, finding: Mutex::new(()), cuts: AtomicU64::new(0) }
    }
}
