//! Whether the place of a file lets the kernel read it without the daemon: whether it may have to move while it is open, or its reads have to reach the
//! daemon (docs/design/0033).
//!
//! Invariants:
//! * Nothing is decided here on whether passing through is safe; that is `obstacle` and `obstacle_to_changes` of the parent module.
//! * Files that stay on the fastest tier they may be on are passed through, unless that tier has more to read than it can serve, or less space than
//!   is wanted there.

use std::sync::Arc;

use polymux_policy::WAITED_FOR_FILE_MAX;
use polymux_records::parts::Promotion;
use polymux_records::passthrough::Obstacle;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Ino, TierId};
use polymux_volume::inode::{FileState, Inode, OpenPurpose};
use polymux_volume::space::TierHandle;
use polymux_volume::tier_reads::Pair;

use crate::data_path::DataPath;
use crate::placement::{Context, ContextSource};

/// Largest file that is passed through on another tier than the fastest it may be on, if its policy does not promote files that are
/// read there: larger ones stay movable while they are open. If it does promote, the daemon has to see the reads on the slower tier.
const SLOW_SIZE_MAX: u64 = 64 << 20;
/// Reads of the device in a thousand seconds of each range node of a file that stays on a tier from which others are to leave.
const READS_THAT_STAY: u64 = 500;
/// Device time in nanoseconds of a small read below which a tier serves readers by itself as soon as the daemon is asked.
const OBSERVED_READ_NS: u64 = 20_000;
/// Device time of reads in each second, in nanoseconds, from which on a tier may be the limit of readers that the daemon does not see: half of one
/// read under way at any time.
const BUSY_NS_PER_SECOND_MIN: u64 = 500_000_000;
/// Shortest time of a small read that is assumed for that: the shortest that were seen may have been served by memory.
const READ_NS_MIN: u64 = 100_000;

impl DataPath {
    /// Why a file has to be able to move while it is open, or why its requests have to reach the daemon. Of those that are changed only logs have to
    /// be: they gain most by being on a fast tier, and others, tables of a database for one, would pay for each of their writes.
    pub(super) fn obstacle_of_place(
        &self,
        inode: &Inode,
        file: &FileState,
        tier: &TierHandle,
        size: u64,
        purpose: OpenPurpose,
    ) -> Option<Obstacle> {
        let is_large = size > SLOW_SIZE_MAX;
        let may_have_to_be_observed = self.volume.options.promotion == Promotion::Prompt
            && (purpose == OpenPurpose::Read
                || size < WAITED_FOR_FILE_MAX && file.is_waited_for(self.volume.clock.elapsed()));
        // The rules of a file are looked up only where they matter: most opens are of small files.
        if !is_large && !may_have_to_be_observed {
            return None;
        }
        let context = self.placement.context_of(inode);
        let is_observed = may_have_to_be_observed && self.placement.promotes_promptly(context.policy);
        if (is_large || is_observed) && !self.is_well_placed(&context, tier.id) {
            return Some(Obstacle::MayMove);
        }
        (is_observed && self.may_have_to_leave(&context, inode.ino, file, tier)).then_some(Obstacle::MayLeave)
    }

    /// Whether a file is on the fastest tier that it may be on.
    fn is_well_placed(&self, context: &Context, own: TierId) -> bool {
        let tiers = self.volume.tiers.all();
        let mut candidates = tiers.iter().filter(|tier| tier.present().is_some() && !tier.is_draining());
        let preferred =
            context.preferred.iter().find(|id| tiers.iter().any(|tier| tier.id.0 == **id && tier.present().is_some()));
        match (&context.source, preferred) {
            (ContextSource::Rule(..) | ContextSource::Pin(_), Some(id)) => TierId(*id) == own,
            _ => candidates.find(|tier| context.allows(tier.id)).is_some_and(|best| {
                let is_alike = || {
                    let is_fast = |ns: u64| ns < OBSERVED_READ_NS;
                    let is_fast_itself = || self.placement.tier_reads.small_read_ns(own).is_some_and(is_fast);
                    self.placement.promotes_promptly(context.policy)
                        && (self.placement.reads_alike(best.id, own) || is_fast_itself())
                };
                best.id == own || context.allows(own) && is_alike()
            }),
        }
    }

    /// Whether a file has to be able to leave its tier while it is open: because the tier has more to read than it can serve, or because the
    /// file is read too little to be certain to stay on a tier that has to free space for data that is read more.
    fn may_have_to_leave(&self, context: &Context, ino: Ino, file: &FileState, tier: &TierHandle) -> bool {
        if self.may_be_handed_over(context, tier.id) || self.may_be_limit_of_bypassing_reads(context, tier.id) {
            return true;
        }
        let tiers = self.volume.tiers.all();
        let mut slower = tiers.iter().skip_while(|other| other.id != tier.id).skip(1);
        let may_go = |other: &Arc<TierHandle>| {
            context.allows(other.id) && other.present().is_some() && !self.placement.reads_alike(tier.id, other.id)
        };
        let is_short_of_room = || {
            self.placement.tier_reads.wanted_room_lately(tier.id, self.volume.clock.elapsed())
                || tier.is_above_high_mark()
        };
        if !slower.any(may_go) || !is_short_of_room() {
            return false;
        }
        let nodes = file.size().div_ceil(RANGE_NODE_SIZE).max(1);
        self.placement.heat.demand.reads_of_file(ino) / nodes < READS_THAT_STAY
    }

    /// Whether a tier is the limit of its readers, and a file with this context may go to one that would answer sooner.
    pub fn may_be_handed_over(&self, context: &Context, tier: TierId) -> bool {
        let tier_reads = &self.placement.tier_reads;
        tier_reads.is_limit(tier, None)
            && self.placement.promotes_promptly(context.policy)
            && self.may_go_to_another(context, tier, |(from, to)| tier_reads.is_limit(from, Some(to)))
    }

    /// Whether the kernel itself served so many reads of a tier that it may be the limit of its readers, which only reads that reach the daemon
    /// tell, and a file with this context may go to another one then.
    fn may_be_limit_of_bypassing_reads(&self, context: &Context, tier: TierId) -> bool {
        let tier_reads = &self.placement.tier_reads;
        let now = self.volume.clock.elapsed();
        // By Little's law, as many reads are under way at a time as come in the time that one takes.
        let is_in_use = || {
            let bypassing = self.placement.heat.device_reads.bypassing_per_second(tier, now);
            let alone_ns = tier_reads.unqueued_ns(tier).unwrap_or(0).max(READ_NS_MIN);
            bypassing.saturating_mul(alone_ns) >= BUSY_NS_PER_SECOND_MIN
        };
        self.may_go_to_another(context, tier, |pair| tier_reads.may_hand_over(pair))
            && is_in_use()
            && tier_reads.should_observe(tier, now)
    }

    /// Whether a file with this context, for which no order of tiers is set, may go from its tier to another one that has space, between which
    /// `is_suitable`.
    fn may_go_to_another(&self, context: &Context, own: TierId, is_suitable: impl Fn(Pair) -> bool) -> bool {
        let may_take_it = |other: &Arc<TierHandle>| {
            other.id != own && context.allows(other.id) && is_suitable((own, other.id)) && !other.is_above_low_mark()
        };
        context.preferred.is_empty() && self.volume.tiers.all().iter().any(may_take_it)
    }
}
