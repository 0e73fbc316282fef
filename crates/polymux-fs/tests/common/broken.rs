//! A tier that a test can break.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::Errno;

use super::{Hook, HookedTier, Verdict, Volume};

/// Fails the calls that are set to fail, until they are reset.
#[derive(Default)]
pub struct Broken {
    pub reads: AtomicBool,
    pub writes: AtomicBool,
    pub syncs: AtomicBool,
    /// Syncs that still pass while `syncs` is set.
    pub syncs_passing: AtomicU32,
    /// The failures are about a quota.
    pub quota: AtomicBool,
}

impl Broken {
    fn verdict(&self, broken: &AtomicBool, operation: &'static str) -> Verdict {
        if !broken.load(Ordering::Relaxed) {
            Verdict::Pass
        } else if self.quota.load(Ordering::Relaxed) {
            Verdict::Fail(TierError::Quota)
        } else {
            Verdict::Fail(TierError::Io { operation, errno: Errno::EIO })
        }
    }
}

impl Hook for Broken {
    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.verdict(&self.writes, "write")
    }

    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.verdict(&self.reads, "read")
    }

    fn before_sync(&self) -> Verdict {
        let one_passes = |left: u32| left.checked_sub(1);
        match self.syncs_passing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_passes) {
            Ok(_) => Verdict::Pass,
            Err(_) => self.verdict(&self.syncs, "sync"),
        }
    }
}

/// Refuses writes while switched on, as a full copy-on-write file system refuses overwrites too.
#[derive(Default)]
pub struct Full(pub AtomicBool);

impl Hook for Full {
    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        if self.0.load(Ordering::Relaxed) { Verdict::Fail(TierError::NoSpace) } else { Verdict::Pass }
    }
}

/// A volume, one tier of which can be broken.
pub fn volume_with_broken_tier(capacities: &[u64], index: usize) -> (Volume, Arc<Broken>) {
    let broken = Arc::new(Broken::default());
    let volume = Volume::wrapping(capacities, |place, tier| -> Arc<dyn Tier> {
        if place == index { Arc::new(HookedTier::new(tier, Arc::clone(&broken) as _)) } else { tier }
    });
    (volume, broken)
}
