//! The answers of a policy.

use crate::{FACTS_VERSION, Why};

/// The action for a range.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It stays where it is.
    Stay = 0,
    /// It should move to the target.
    Move = 1,
}

/// Where a range should be now.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// [`FACTS_VERSION`].
    pub version: u32,
    /// Stay or move.
    pub action: Action,
    /// The tier to move to; for "stay" the tier it is on.
    pub target: u16,
    /// The reason.
    pub why: Why,
    /// Zero.
    pub reserved: u32,
    /// Among moves, the higher goes first; 0 for "stay".
    pub score: u64,
}

impl Decision {
    /// A range stays on its tier.
    #[must_use]
    pub fn stay(tier: u16, why: Why) -> Self {
        Self { version: FACTS_VERSION, action: Action::Stay, target: tier, why, reserved: 0, score: 0 }
    }

    pub(crate) fn move_to(target: u16, why: Why, score: u64) -> Self {
        Self { version: FACTS_VERSION, action: Action::Move, target, why, reserved: 0, score }
    }
}

/// How soon a range leaves a tier that is above its high mark.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// [`FACTS_VERSION`].
    pub version: u32,
    /// The tier it would go to; where the score is 0 the tier it is on.
    pub target: u16,
    /// The reason.
    pub why: Why,
    /// The higher leaves first; 0: it stays.
    pub score: u64,
}

impl Eviction {
    pub(crate) fn never(tier: u16, why: Why) -> Self {
        Self { version: FACTS_VERSION, target: tier, why, score: 0 }
    }

    pub(crate) fn to(target: u16, why: Why, score: u64) -> Self {
        Self { version: FACTS_VERSION, target, why, score }
    }
}
