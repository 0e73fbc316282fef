//! Placement: gathers the facts, asks the policy, checks its answer.
//!
//! Invariant: a policy never sees a lock, a clock or a device, and an answer that names a tier which was not offered is
//! dropped (DESIGN section 9).

mod context;
mod fill;
mod load;
mod pins;
mod read_speed;
mod writer_maps;

pub use context::{Context, ContextSource, PIN_ATTRIBUTE, Steering, seconds_between};
pub use writer_maps::WriterMaps;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use polymux_policy::{Growth, HEAT_ONE, NO_TIER, PlacementFacts, Synced, TierFill, growth, room_for_waited_for};
use polymux_records::error::Result;
use polymux_records::parts::MountOptions;
use polymux_types::TierId;
use polymux_types::sync::RwLock;
use polymux_volume::heat::{GrownFiles, HeatOptions, HeatTable, LogicalClock};
use polymux_volume::inode::Inode;
use polymux_volume::sched::WriteBudget;
use polymux_volume::tier_reads::TierReads;
use polymux_volume::volume::Volume;

use self::pins::Pins;

fn heat_options(options: &MountOptions) -> HeatOptions {
    HeatOptions {
        memory_bytes: usize::try_from(options.heat_memory_bytes).unwrap_or(usize::MAX),
        half_life_seconds: options.heat_half_life_seconds.max(1),
    }
}

/// Where bytes belong: policy, rules and pins, and the use of files and tiers that they decide by.
pub struct Placement {
    /// The volume whose blocks are placed.
    pub volume: Arc<Volume>,
    /// Policy and rules.
    pub steering: RwLock<Arc<Steering>>,
    /// Whether anything is pinned.
    pub pins: Pins,
    /// Which ranges are used, how often and how lately.
    pub heat: HeatTable,
    /// Seconds in which the volume was mounted.
    pub logical_clock: LogicalClock,
    /// How fast tiers are read, which of them is the limit of its readers, and the free space that is wanted on them.
    pub tier_reads: TierReads,
    /// Bytes that may still be promoted today.
    pub write_budget: WriteBudget,
    /// Files that grew over several tiers.
    pub grown_files: GrownFiles,
    /// Which writers have which tier, for the policies that map them.
    pub writer_maps: WriterMaps,
    /// Whether policy or a rule lets any file be spread.
    pub may_spread: AtomicBool,
    /// Whether any did since the mount.
    pub(crate) has_spread: AtomicBool,
}

impl Placement {
    /// Resumes the logical clock and the budgets of the last mount.
    pub fn new(volume: Arc<Volume>) -> Result<Self> {
        let (logical_clock, promoted) = LogicalClock::resume(&volume.metadata, volume.clock.elapsed())?;
        Ok(Self {
            steering: RwLock::default(),
            pins: Pins::default(),
            heat: HeatTable::new(heat_options(&volume.options)),
            write_budget: WriteBudget::new(Vec::new(), promoted, logical_clock.now()),
            logical_clock,
            tier_reads: TierReads::default(),
            grown_files: GrownFiles::default(),
            writer_maps: WriterMaps::default(),
            may_spread: AtomicBool::new(false),
            has_spread: AtomicBool::new(false),
            volume,
        })
    }
}

/// The write or range to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Bytes of the write.
    pub length: u64,
    /// End of the file after it.
    pub file_end: u64,
    /// The file has bytes elsewhere already, so that only a tier that can hold parts of files is eligible.
    pub partial: bool,
    /// A tier that has just refused.
    pub except: Option<TierId>,
}

impl Placement {
    /// Tiers for new blocks of a file, best first. Empty if none has space.
    pub fn place(&self, inode: &Inode, request: &Request) -> Vec<TierId> {
        self.place_in(&self.context_of(inode), inode, request)
    }

    /// As [`Placement::place`], where the pins and rules of the file are known.
    pub fn place_in(&self, context: &Context, inode: &Inode, request: &Request) -> Vec<TierId> {
        self.place_mapped(context, inode, request, None)
    }

    /// As [`Placement::place_in`], for a writer that is mapped to a tier.
    pub(crate) fn place_mapped(
        &self,
        context: &Context,
        inode: &Inode,
        request: &Request,
        mapped: Option<TierId>,
    ) -> Vec<TierId> {
        tiers_for(context, &self.placement_facts(context, inode, request, mapped))
    }

    /// As [`Placement::place`], for bytes that are placed now: those that do not find the space that they should have are counted.
    pub(crate) fn place_now(&self, inode: &Inode, request: &Request) -> Vec<TierId> {
        let context = self.context_of(inode);
        let facts = self.placement_facts(&context, inode, request, None);
        let tiers = tiers_for(&context, &facts);
        if facts.is_message()
            && let Some((first, chosen)) = facts.first_allowed().map(TierId).zip(tiers.first().copied())
            && chosen != first
            && !self.reads_alike(first, chosen)
            && let Ok(tier) = self.volume.tiers.by_id(first)
        {
            tier.refused_messages.note(facts.length);
        }
        tiers
    }

    /// The tier where a message should begin, whether it has the space or not; `None` for a file that is no message, and where its policy promotes nothing.
    pub(crate) fn first_for_message(&self, inode: &Inode, request: &Request) -> Option<TierId> {
        let context = self.context_of(inode);
        let facts = self.placement_facts(&context, inode, request, None);
        facts.first_allowed().filter(|_| facts.is_message()).map(TierId)
    }

    /// The first tier before that of the end of a log, in the order of tiers that holds for it, on which a new one would find the space to begin; `None` also
    /// where its policy promotes nothing.
    pub(crate) fn better_tier_for_log(&self, inode: &Inode, request: &Request, tail: TierId) -> Option<TierId> {
        let context = self.context_of(inode);
        if !self.promotes_promptly(context.policy) {
            return None;
        }
        let facts = self.placement_facts(&context, inode, request, None);
        let end = facts.offered().iter().position(|tier| tier.tier == tail.0)?;
        let takes = |tier: &&TierFill| {
            context.allows(TierId(tier.tier)) && tier.takes_new_data() && room_for_waited_for(&facts, tier)
        };
        facts.offered()[..end].iter().find(takes).map(|tier| TierId(tier.tier))
    }

    /// Whether the growth of a file by a range goes to several tiers, or why not.
    pub fn growth_in(&self, context: &Context, inode: &Inode, request: &Request) -> Growth {
        match context.policy {
            // Where the answer needs no facts.
            policy if policy.spreads_by_load() => growth(policy, &self.placement_facts(context, inode, request, None)),
            policy if policy.spreads() => Growth::IsSpread,
            _ => Growth::PolicyKeeps,
        }
    }

    fn placement_facts(
        &self,
        context: &Context,
        inode: &Inode,
        request: &Request,
        mapped: Option<TierId>,
    ) -> PlacementFacts {
        let mut facts = PlacementFacts::new(request.length, request.file_end);
        facts.allowed = context.allowed;
        facts.is_new = u8::from(!request.partial);
        facts.tail_tier = tail_tier(inode).map_or(NO_TIER, |tier| tier.0);
        facts.mapped_tier = mapped.map_or(NO_TIER, |tier| tier.0);
        let heat = self.heat.file(inode.ino, self.logical_clock.now());
        facts.file_heat = heat.heat.max(if request.partial { 0 } else { HEAT_ONE });
        facts.sync_share = heat.sync_percent;
        facts.sequential = heat.sequential_percent;
        if let Some(file) = inode.file().filter(|_| self.promotes_promptly(context.policy)) {
            let known = file.is_waited_for(self.volume.clock.elapsed()).then_some(Synced::Log);
            facts.synchronous = known.or_else(|| file.usage.expected.get()).map_or(0, |synced| synced as u8);
        }
        for tier in self.volume.tiers.all().iter() {
            let Some(present) = tier.present() else { continue };
            let capabilities = present.capabilities();
            let eligible = Some(tier.id) != request.except
                && !tier.is_draining()
                && !tier.is_failing()
                && request.file_end <= capabilities.file_size_max
                && (!request.partial || capabilities.holds_partial_files());
            if !eligible {
                continue;
            }
            let Some(space) = tier.space() else { continue };
            if !tier.takes_objects(&space) {
                continue;
            }
            facts.offer(self.fill_of(tier, &space));
        }
        facts.tiers.prefer(&context.preferred);
        facts
    }
}

/// Of the tiers that a policy chooses those that can take the bytes.
fn tiers_for(context: &Context, facts: &PlacementFacts) -> Vec<TierId> {
    let is_offered = |tier: &&u16| facts.offered().iter().any(|offered| offered.tier == **tier);
    let decision = polymux_policy::place(context.policy, facts);
    decision.tiers().iter().filter(is_offered).map(|tier| TierId(*tier)).collect()
}

/// The tier that stores the rest of the file if it grows.
fn tail_tier(inode: &Inode) -> Option<TierId> {
    inode.file()?.layout.read().tail_tier()
}
