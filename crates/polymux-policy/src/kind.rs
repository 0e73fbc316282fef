//! Policies by name, built-in and registered ones, and the three questions that each answers.

use std::fmt;
use std::str::FromStr;

use crate::policies::{adaptive, hot_cold, lru, poly, spread, static_placement, tpfs, whole_file};
use crate::registered::{RegisteredPolicy, registered};
use crate::{Decision, Eviction, Growth, PlacementDecision, PlacementFacts, RangeFacts};

/// Bytes of a file that a policy which balances tiers promotes in one step.
const BALANCE_STEP_BYTES: u64 = 16 << 20;

/// The unit in which a policy moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Ranges of a file, each by its own use.
    Range,
    /// All of a file, by the use of all of it.
    File,
}

polymux_types::enum_with_all! {
    /// A policy. `ALL` has the built-in ones, and [`PolicyKind::all`] every one.
    #[repr(u32)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum PolicyKind {
        /// The Mux prototype: promote on access, evict the data unused for longest.
        Lru = 0,
        /// The default: promote on the second touch, evict the coldest.
        #[default]
        HotCold = 1,
        /// By size, synchronicity and access history, as TPFS does it (M5).
        Tpfs = 2,
        /// By bandwidth and capacity: BW_Move and CAP_Move of PolyStore (P13, P14).
        Poly = 3,
        /// Files move as a whole.
        WholeFile = 4,
        /// Nothing moves except as rules and pins demand.
        Static = 5,
        /// New ranges of large files go to the tier where they will be done soonest; otherwise as `poly`.
        Spread = 6,
        /// As `hot-cold`, and the growth of large files goes to several tiers while one does not carry it.
        Adaptive = 11;
        /// One that the program brought along ([`crate::register`]).
        Registered(RegisteredPolicy) = 12
    }
}

impl PolicyKind {
    /// Every policy of this program: the built-in ones, then the registered ones.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(registered().map(Self::Registered))
    }

    /// The name in configs and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::HotCold => "hot-cold",
            Self::Tpfs => "tpfs",
            Self::Poly => "poly",
            Self::WholeFile => "whole-file",
            Self::Static => "static",
            Self::Spread => "spread",
            Self::Adaptive => "adaptive",
            Self::Registered(policy) => policy.name(),
        }
    }

    /// One sentence for `policy list`.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Lru => "Promotes a range when it is used, and evicts the ranges that were not used for longest.",
            Self::HotCold => {
                "Promotes a range when it is used twice, and evicts the coldest ranges (where the configuration names none)."
            }
            Self::Tpfs => "Places by size and synchronicity, and keeps on fast tiers what is waited for and used.",
            Self::Poly => "Fills the fastest tiers that have bandwidth to spare, and evicts by frequency of use.",
            Self::WholeFile => "Keeps each file on one tier, and moves files as a whole by their heat.",
            Self::Static => "Leaves data where it was first written, except where a rule or a pin says otherwise.",
            Self::Spread => {
                "Writes large files to all tiers at once, each as fast as it goes, and moves data as poly does."
            }
            Self::Adaptive => {
                "Moves data as hot-cold does, and spreads the growth of large files while one tier does not keep up."
            }
            Self::Registered(policy) => policy.description(),
        }
    }

    /// Whether it stops moving data while the load stays the same.
    #[must_use]
    pub fn comes_to_rest(self) -> bool {
        match self {
            Self::Registered(policy) => policy.comes_to_rest(),
            _ => true,
        }
    }

    /// Whether new ranges of a large file may each go to another tier.
    #[must_use]
    pub fn spreads(self) -> bool {
        match self {
            Self::Spread | Self::Adaptive => true,
            Self::Registered(policy) => policy.spreads(),
            _ => false,
        }
    }

    /// Whether it spreads the growth of a file only while one tier does not keep up ([`crate::growth`]).
    #[must_use]
    pub fn spreads_by_load(self) -> bool {
        self == Self::Adaptive
    }

    /// What it moves at once.
    #[must_use]
    pub fn granularity(self) -> Granularity {
        if self == Self::WholeFile { Granularity::File } else { Granularity::Range }
    }

    /// Bytes of a file that are promoted in one step. Where there is a limit, the policy observes their effect before it goes on.
    #[must_use]
    pub fn promotion_step_bytes_max(self) -> u64 {
        if self == Self::Spread { BALANCE_STEP_BYTES } else { u64::MAX }
    }

    /// Whether a file on several tiers is laid out anew for its readers ([`crate::balance_reads`]).
    #[must_use]
    pub fn balances_reads(self) -> bool {
        self == Self::Spread
    }

    /// Whether ranges that keep a slower device busy move up as soon as that pays back ([`crate::pay_back_seconds`]).
    #[must_use]
    pub fn relieves(self) -> bool {
        matches!(self, Self::HotCold | Self::Adaptive)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The name of a policy that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}; there are {names}", names = names_of_all())]
pub struct UnknownPolicy(pub String);

fn names_of_all() -> String {
    PolicyKind::all().map(PolicyKind::name).collect::<Vec<_>>().join(", ")
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::all().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Where the range should be now because of rules and of its use.
///
/// A range on a tier that is not allowed moves to the best allowed one with free space, whatever the policy. Otherwise it only ever
/// moves to a faster tier; the way down is [`evict`]'s. The answer names an allowed tier that takes new data, has headroom for
/// the bytes, and stays at or below its high mark, with two exceptions: where the range is much hotter than the coldest data
/// there, the target may go above its mark by this one range, so that eviction begins; and a range that a rule or pin sends away goes
/// above the mark where no allowed tier has space below it.
#[must_use]
pub fn decide(kind: PolicyKind, facts: &RangeFacts) -> Decision {
    match kind {
        PolicyKind::Lru => lru::decide(facts),
        PolicyKind::HotCold | PolicyKind::Adaptive => hot_cold::decide(facts),
        PolicyKind::Tpfs => tpfs::decide(facts),
        PolicyKind::Spread => spread::decide(facts),
        PolicyKind::Poly => poly::decide(facts),
        PolicyKind::WholeFile => whole_file::decide(facts),
        PolicyKind::Static => static_placement::decide(facts),
        PolicyKind::Registered(policy) => policy.decide(facts),
    }
}

/// How soon the range leaves its tier, to be asked only about tiers that are above their high mark: ranges leave in order of
/// falling score until the tier is at its low mark. The target is an allowed slower tier that stays at or below its high mark;
/// for a range that a rule or pin sends away it is the target of [`decide`]. Score 0: it stays.
#[must_use]
pub fn evict(kind: PolicyKind, facts: &RangeFacts) -> Eviction {
    match kind {
        PolicyKind::Lru => lru::evict(facts),
        PolicyKind::HotCold | PolicyKind::Adaptive => hot_cold::evict(facts),
        PolicyKind::Tpfs => tpfs::evict(facts),
        PolicyKind::Poly | PolicyKind::Spread => poly::evict(facts),
        PolicyKind::WholeFile => whole_file::evict(facts),
        PolicyKind::Static => static_placement::evict(facts),
        PolicyKind::Registered(policy) => policy.evict(facts),
    }
}

/// Tiers for new blocks, best first.
///
/// Every offered tier that takes new data and has headroom is named exactly once: first those the policy prefers, then other
/// allowed ones above their mark, then allowed ones that take only a part, and at last those that rules do not allow: a rule is
/// a wish, ENOSPC is a failure (DESIGN section 9). All prefer only tiers below their mark, except that `hot-cold` and `adaptive` let bytes
/// that are waited for use half of the space above it.
#[must_use]
pub fn place(kind: PolicyKind, facts: &PlacementFacts) -> PlacementDecision {
    match kind {
        PolicyKind::HotCold => hot_cold::place_waited_for(facts),
        PolicyKind::Lru => hot_cold::place(facts),
        PolicyKind::Tpfs => tpfs::place(facts),
        PolicyKind::Poly => poly::place(facts),
        PolicyKind::WholeFile => whole_file::place(facts),
        PolicyKind::Static => static_placement::place(facts),
        PolicyKind::Spread => spread::place(facts),
        PolicyKind::Adaptive => adaptive::place(facts),
        PolicyKind::Registered(policy) => policy.place(facts),
    }
}

/// Whether the growth of a file goes to several tiers, and why not; `facts` are about its next range. Where it was spread before, and
/// the policy still spreads, [`place`] alone decides.
#[must_use]
pub fn growth(kind: PolicyKind, facts: &PlacementFacts) -> Growth {
    match kind {
        PolicyKind::Adaptive => adaptive::growth(facts),
        _ if kind.spreads() => Growth::IsSpread,
        _ => Growth::PolicyKeeps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_name_and_no_other_is() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert!(kind.description().ends_with('.'));
            let unknown = UnknownPolicy("x".to_owned()).to_string();
            assert!(unknown.contains(kind.name()), "{unknown} does not name {kind}");
        }
        assert!("LRU".parse::<PolicyKind>().is_err());
        assert_eq!(PolicyKind::default(), PolicyKind::HotCold);
    }
}
