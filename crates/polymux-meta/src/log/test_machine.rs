//! A machine of a test, with memory that outlives everything opened on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use polymux_types::surviving::{SurvivingMemory, SurvivingPlace};
use polymux_types::sync::{AtomicU64, Mutex};

/// Surviving memory of a test: it is there as long as the place is.
#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) pieces: Mutex<BTreeMap<String, Arc<Vec<AtomicU64>>>>,
    pub(crate) boot: u8,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "boot {}", self.boot)
    }
}

struct Piece(Arc<Vec<AtomicU64>>);

impl SurvivingMemory for Piece {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    fn description(&self) -> String {
        "memory of a test".to_owned()
    }

    fn discard(&self) {}
}

impl SurvivingPlace for Machine {
    fn boot(&self) -> [u8; 16] {
        [self.boot; 16]
    }

    fn open(&self, name: &str, bytes: u64) -> Result<Arc<dyn SurvivingMemory>, String> {
        let mut pieces = self.pieces.lock();
        let piece = pieces
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()));
        Ok(Arc::new(Piece(Arc::clone(piece))))
    }

    fn read(&self, name: &str, _bytes: u64) -> Option<Vec<u64>> {
        Some(polymux_types::surviving::snapshot(self.pieces.lock().get(name)?))
    }
}

impl Machine {
    /// Begins another boot. Memory keeps its old content, which a reader that does not check the boot would take.
    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
    }
}
