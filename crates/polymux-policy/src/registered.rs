//! Policies that a program brings along, and the one question that the data path asks of those that map writers to tiers.
//!
//! Invariants:
//! * Such policies exist to compare others with, and none of them is in the product: the crate `polymux-lab` has them.
//! * They are registered once, before any name of a policy is looked up, and stay while the process runs.
//! * A policy is its name: two with the same one are the same, so none has the name of a built-in one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::time::Duration;

use polymux_types::{StreamId, TierId};

use crate::{Decision, Eviction, PlacementDecision, PlacementFacts, RangeFacts};

/// A policy that is not built in. Its answers obey the rules of [`crate::decide`], [`crate::evict`] and [`crate::place`].
pub trait ComparisonPolicy: Send + Sync {
    /// The name in configs and on the command line.
    fn name(&self) -> &'static str;

    /// One sentence for `policy list`.
    fn description(&self) -> &'static str;

    /// See [`crate::decide`].
    fn decide(&self, facts: &RangeFacts) -> Decision;

    /// See [`crate::evict`].
    fn evict(&self, facts: &RangeFacts) -> Eviction;

    /// See [`crate::place`].
    fn place(&self, facts: &PlacementFacts) -> PlacementDecision;

    /// See [`crate::PolicyKind::comes_to_rest`].
    fn comes_to_rest(&self) -> bool;

    /// See [`crate::PolicyKind::spreads`].
    fn spreads(&self) -> bool;

    /// A new map, for one volume, where the policy gives each writer of large files a tier.
    fn writer_map(&self) -> Option<Box<dyn WriterMap>>;
}

/// The state known of a tier when a writer begins a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The tier.
    pub tier: TierId,
    /// Bytes that its device took since mounting.
    pub delivered_bytes: u64,
    /// Bytes per second that it takes, as it was measured (P7: by fio, offline) or seen; 0 where nothing is known. Writers are alike, so
    /// how many of them saturate a device is in proportion to this.
    pub bytes_per_second: u64,
}

/// Which writer of large files has which tier: the data path asks it where the next range of a growing file goes. Many threads ask at once, each in
/// the middle of a write, so that a lock of its own is a leaf, held for no longer than the answer takes.
///
/// Tiers are in speed order, and each set of tiers that files may go to is a matter of its own.
pub trait WriterMap: Send + Sync + fmt::Debug {
    /// The tier among `devices` that a writer is mapped to which begins a range now; [`PlacementFacts::mapped_tier`] for that range.
    fn tier_for_range(&self, writer: StreamId, devices: &[Device], now: Duration) -> Option<TierId>;

    /// The tier among these that a writer was mapped to when it last asked.
    fn present_tier(&self, tiers: &[TierId], writer: StreamId) -> Option<TierId>;

    /// How many writers each of these tiers has now.
    fn writers_of_tiers(&self, tiers: &[TierId]) -> Vec<(TierId, u32)>;
}

/// A registered policy.
#[derive(Clone, Copy)]
pub struct RegisteredPolicy(&'static dyn ComparisonPolicy);

impl RegisteredPolicy {
    /// The handle of a policy.
    #[must_use]
    pub const fn new(policy: &'static dyn ComparisonPolicy) -> Self {
        Self(policy)
    }
}

impl std::ops::Deref for RegisteredPolicy {
    type Target = dyn ComparisonPolicy;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for RegisteredPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for RegisteredPolicy {}

impl Hash for RegisteredPolicy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for RegisteredPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

static REGISTERED: OnceLock<&'static [RegisteredPolicy]> = OnceLock::new();

/// Makes policies known by their names. Further calls have no effect.
pub fn register(policies: &'static [RegisteredPolicy]) {
    // Policies that are known already may be in use, so the first call decides.
    let _ = REGISTERED.set(policies);
}

/// The registered policies.
pub fn registered() -> impl Iterator<Item = RegisteredPolicy> {
    REGISTERED.get().copied().unwrap_or(&[]).iter().copied()
}
