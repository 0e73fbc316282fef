//! Pure placement decisions: one fixed-size struct of facts in, one of decisions out (DESIGN sections 3 and 9).
//!
//! Invariants: no I/O, no clock, no lock (a [`WriterMap`] may have one), and no allocation in a decision about a range. The structs are
//! `repr(C)` and versioned, because policies from outside will be handed the same bytes. All arithmetic is in integers, so the same facts give the
//! same answer on every machine. Facts may be nonsense: the answer is then "stay", never a panic.
//!
//! ```text
//! PlacementFacts ──► place  ──► tiers for new blocks, best first
//!                └─► growth ──► whether a file that grows goes to several tiers
//! RangeFacts     ──► decide ──► where a range should be because of its use: rules first, then promotion
//!                └─► evict  ──► how soon a range leaves a tier that is above its high mark, and to where
//! Demand         ──► saved_ns_per_second, move_ns ──► whether a move pays back, and when
//! ReadLoad       ──► reads_to_hand_over ──► the reads that one tier takes over from another that is the limit of its readers
//! ReadPart       ──► balance_reads ──► the bytes of a spread file that move up, so that its readers wait for no single tier
//! RangeReads     ──► Coverage ──► the share of device reads that a fast tier of some size could serve
//! FileFacts      ──► RuleSet::first_match ──► which policy and which tiers hold for a file
//! ```
//!
//! A program may bring policies of its own, to compare others with: see [`ComparisonPolicy`].
//!
//! Three things keep data from moving to and fro, and every policy uses them (module `hysteresis`): promotion without a
//! victim stops at the low mark, so that eviction never sends away data that promotion has just fetched; promotion with a victim
//! needs a range that is hotter by more than chance, the more so the longer it was warm already; and a recently moved range is
//! harder to move again.

#![forbid(unsafe_code)]

mod benefit;
mod coverage;
mod decision;
mod eviction;
mod facts;
mod hysteresis;
mod kind;
mod load_balance;
mod placement;
mod policies;
mod promotion;
mod read_balance;
mod registered;
mod rules;
mod tier_fill;
mod why;

pub use benefit::{
    Demand, DeviceSpeed, is_half_as_fast_again, lost_ns, move_ns, pay_back_seconds, saved_ns_per_second,
};
pub use coverage::{Coverage, RangeReads};
pub use decision::{Action, Decision, Eviction};
pub use facts::{HEAT_ONE, NEVER, RangeFacts};
pub use kind::{Granularity, PolicyKind, UnknownPolicy, decide, evict, growth, place};
pub use load_balance::{ReadLoad, is_limit, is_of_help, reads_to_hand_over, would_rest};
pub use placement::{
    FACTS_VERSION, MESSAGE_FILE_MAX, NO_TIER, PlacementDecision, PlacementFacts, Synced, TierFacts,
    WAITED_FOR_FILE_MAX, fastest_with_headroom, order, room_below_mark, room_for_waited_for,
};
pub use policies::adaptive::{Growth, LARGE_FILE_RANGES};
pub use promotion::displace_anything;
pub use read_balance::{GAIN_MIN_PERCENT, ReadBalance, ReadPart, Rounding, Shift, balance_reads};
pub use registered::{ComparisonPolicy, Device, RegisteredPolicy, WriterMap, register, registered};
pub use rules::{FileFacts, PassthroughUse, Rule, RuleError, RuleField, RuleMatch, RuleProblem, RuleSet};
pub use tier_fill::{TierFill, TierTable};
pub use why::Why;
