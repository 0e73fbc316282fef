//! Explains why a file is where it is, and which migrations come next.

use polymux_data::placement::{Context, ContextSource, Request};
use polymux_policy::{Action, Demand, Growth, WAITED_FOR_FILE_MAX, Why, evict};
use polymux_records::error::Result;
use polymux_records::report::{
    Explanation, GrowthExplanation, MoveReason, PolicyReport, RangeExplanation, SteeredBy, TierState,
};
use polymux_types::{Block, Ino, TierId};
use polymux_volume::heat::at_least;
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::sched::GateState;
use polymux_volume::tier_reads::PieceIs;

use crate::Mover;
use crate::planning::facts::{Piece, pieces_of_node};
use crate::planning::worth::Worth;

/// Nodes of a file that are looked at; of a larger one, those in front.
const NODES_MAX: u64 = 65_536;

impl Mover {
    /// Everything about the place of a file; see `FileSystem::explain`.
    pub fn explain(&self, ino: Ino) -> Result<Explanation> {
        let inode = self.volume.inode(ino)?;
        let file = inode.file().ok_or(polymux_types::Errno::EINVAL)?;
        self.data.ensure_size_or_guess(&inode, file)?;
        let context = self.placement.context_of(&inode);
        let steered_by = match &context.source {
            ContextSource::Volume => SteeredBy::Volume,
            ContextSource::Rule(index, name) => SteeredBy::Rule { index: *index, name: name.clone() },
            ContextSource::Pin(pinned) => SteeredBy::Pin { ino: *pinned, path: self.volume.path_of(*pinned)? },
        };
        let mut jobs = self.moves.jobs_of(ino, self.volume.clock.elapsed());
        jobs.truncate(100);
        let is_drained = |handle: &std::sync::Arc<polymux_volume::space::TierHandle>| {
            self.drains.is_emptied(handle) && file.layout.read().slot_of(handle.id).is_some()
        };
        // Migrations for users and drains continue while no time window is open.
        let is_urgent = jobs.iter().any(|job| matches!(job.reason, MoveReason::User | MoveReason::Drain))
            || self.volume.tiers.all().iter().any(is_drained);
        let why_not_now = self.why_nothing_moves().filter(|_| !is_urgent || !self.waits_for_window());
        Ok(Explanation {
            ino,
            path: self.volume.path_of(ino)?,
            size: file.size(),
            bytes_inline: if file.is_inline() { file.size() } else { 0 },
            policy: context.policy.name().to_owned(),
            steered_by,
            allowed_tiers: self.names_of_allowed(&context),
            ranges: self.explain_ranges(&inode, file, &context),
            growth: self.explain_growth(&inode, file, &context),
            growth_why: self.explain_spreading(&inode, file, &context),
            readers: self.explain_readers(ino, file, &context),
            jobs,
            why_not_now,
            tiers_out: self.tiers_out(),
        })
    }

    fn tiers_out(&self) -> Vec<(String, String)> {
        let reason = |handle: &std::sync::Arc<polymux_volume::space::TierHandle>| match handle.state() {
            TierState::Online => self.volume.shortage_of(handle).map(|why| (handle.name.clone(), why)),
            TierState::Failing(why) | TierState::NotAnswering(why) | TierState::Missing(why) => {
                Some((handle.name.clone(), why))
            }
        };
        self.volume.tiers.all().iter().filter_map(reason).collect()
    }

    fn names_of_allowed(&self, context: &Context) -> Vec<String> {
        if context.allowed == u64::MAX && context.preferred.is_empty() {
            return Vec::new();
        }
        let preferred = context.preferred.iter().map(|tier| TierId(*tier));
        preferred.map(|tier| self.name_of_tier(tier)).collect()
    }

    fn explain_ranges(&self, inode: &Inode, file: &FileState, context: &Context) -> Vec<RangeExplanation> {
        let table = self.planning_table();
        let nodes = Block::at_or_after(file.size()).node_at_or_after().min(NODES_MAX);
        let mut ranges: Vec<RangeExplanation> = Vec::new();
        for node in 0..nodes {
            for piece in pieces_of_node(file, node) {
                let next = self.explain_piece(inode, file, node, piece, context, &table);
                match ranges.last_mut() {
                    Some(last) if is_alike(last, &next) => join(last, &next),
                    _ => ranges.push(next),
                }
            }
        }
        ranges
    }

    /// Whether the growth of a file goes to several tiers, if that depends on their load, or the effect of its syncs.
    fn explain_spreading(&self, inode: &Inode, file: &FileState, context: &Context) -> Option<String> {
        if file.is_inline() {
            return None;
        }
        if self.placement.promotes_promptly(context.policy)
            && file.size() < WAITED_FOR_FILE_MAX
            && file.is_waited_for(self.volume.clock.elapsed())
        {
            return Some(
                "Programs wait for its writes: where they keep a slower tier busy, all of it moves up.".to_owned(),
            );
        }
        if !context.policy.spreads_by_load() {
            return None;
        }
        let growth = if file.grows_unsettled() { Growth::IsSpread } else { self.growth_of(inode, file, context) };
        Some(growth.sentence().to_owned())
    }

    /// Whether the next range of a file that was not spread before goes to several tiers, or why not.
    fn growth_of(&self, inode: &Inode, file: &FileState, context: &Context) -> Growth {
        let length = self.data.range_bytes();
        let file_end = file.size().saturating_add(length);
        self.placement.growth_in(context, inode, &Request { length, file_end, partial: true, except: None })
    }

    /// Tiers in the order in which they would be asked for the next range of a file that is spread.
    fn explain_growth(&self, inode: &Inode, file: &FileState, context: &Context) -> Vec<GrowthExplanation> {
        let length = self.data.range_bytes();
        // Up to there a file stays where it is.
        if !context.policy.spreads() || file.size() < length {
            return Vec::new();
        }
        if !file.grows_unsettled() && self.growth_of(inode, file, context) != Growth::IsSpread {
            return Vec::new();
        }
        let file_end = file.size().saturating_add(length);
        let request = Request { length, file_end, partial: true, except: None };
        let tiers: Vec<TierId> = self.data.tiers_to_spread_to(context).iter().map(|handle| handle.id).collect();
        let threads =
            self.placement.writer_maps.of(context.policy).map_or(Vec::new(), |map| map.writers_of_tiers(&tiers));
        let explain = |tier: TierId| {
            let handle = self.volume.tiers.by_id(tier).ok()?;
            Some(GrowthExplanation {
                tier: handle.name.clone(),
                outstanding_bytes: handle.bytes_behind(),
                bytes_per_second: handle.speed.write_lane.state(self.volume.clock.elapsed()).bytes_per_second,
                threads: threads.iter().find(|(of, _)| *of == tier).map(|(_, threads)| *threads),
            })
        };
        self.placement.place_in(context, inode, &request).into_iter().filter_map(explain).collect()
    }

    fn explain_piece(
        &self,
        inode: &Inode,
        file: &FileState,
        node: u64,
        piece: Piece,
        context: &Context,
        table: &polymux_policy::TierTable,
    ) -> RangeExplanation {
        let facts = self.range_facts(inode, file, node, piece, context, table);
        let decision = self.decide_after_look(file, node, piece, context, &facts);
        let eviction = evict(context.policy, &facts);
        let moves = decision.action == Action::Move;
        let drained = self.volume.tiers.by_id(piece.tier).ok().filter(|handle| self.drains.is_emptied(handle));
        let (wanted_on, why) = match drained {
            Some(_) => self.explain_drain(inode, file, piece),
            None if decision.why == Why::AlreadyBest && self.data.may_be_handed_over(context, piece.tier) => {
                (None, Why::OthersAnswerSooner.sentence())
            }
            None => (moves.then_some(TierId(decision.target)), decision.why.sentence()),
        };
        let demand = self.placement.heat.demand.of_node(inode.ino, node);
        let worth = match self.placement.promotes_promptly(context.policy) {
            true => self.worth_shown(file, piece, &demand, context, table),
            false => None,
        };
        let may_leave = eviction.score > 0 && drained.is_none();
        RangeExplanation {
            offset: Block::first_of_node(node).first_byte(),
            length: piece.bytes.min(file.size() - Block::first_of_node(node).first_byte()),
            tier: self.name_of_tier(piece.tier),
            heat: facts.heat,
            reads: facts.reads,
            writes: facts.writes,
            idle_seconds: facts.idle_seconds,
            sequential_percent: facts.sequential,
            sync_percent: facts.synchronous,
            device_reads_per_kilosecond: demand.random_reads_per_kilosecond,
            benefit: worth.map(|worth| (self.name_of_tier(worth.target), worth.benefit)),
            moved_seconds_ago: (facts.moved_seconds_ago != polymux_policy::NEVER).then_some(facts.moved_seconds_ago),
            wanted_on: wanted_on.map(|tier| self.name_of_tier(tier)),
            why: why.to_owned(),
            would_leave_to: may_leave
                .then(|| (self.name_of_tier(TierId(eviction.target)), eviction.why.sentence().to_owned())),
        }
    }

    /// The benefit as people see it. Where chance may account for all of the present rate, that of the last minute tells when the move would pay
    /// back.
    fn worth_shown(
        &self,
        file: &FileState,
        piece: Piece,
        demand: &Demand,
        context: &Context,
        table: &polymux_policy::TierTable,
    ) -> Option<Worth> {
        let best = |worth: Vec<Worth>| worth.into_iter().min_by_key(|worth| worth.benefit.rank());
        let sure = best(self.worth_of_moving(file, piece, PieceIs::Here, &at_least(demand), context, table));
        if sure.is_some_and(|sure| sure.benefit.pays_back_seconds.is_some()) {
            return sure;
        }
        let of_minute = Demand { random_reads_per_kilosecond: demand.lately_per_kilosecond(), ..*demand };
        let mut likely = best(self.worth_of_moving(file, piece, PieceIs::Here, &of_minute, context, table))?;
        likely.benefit.is_overdue = sure.is_some_and(|sure| sure.benefit.is_overdue);
        Some(likely)
    }

    /// Where a part of a file goes whose tier is being emptied, and why.
    fn explain_drain(&self, inode: &Inode, file: &FileState, piece: Piece) -> (Option<TierId>, &'static str) {
        let file_end = file.size().max(1);
        let request = Request { length: piece.bytes.max(1), file_end, partial: true, except: Some(piece.tier) };
        match self.tier_to_drain_to(inode, &request, piece.tier) {
            Some(tier) => (Some(tier), "Its tier is being emptied."),
            None => (None, "Its tier is being emptied, and no other tier has room for it."),
        }
    }

    fn waits_for_window(&self) -> bool {
        !self.volume.is_read_only() && matches!(self.gate.state(self.minute_of_week()), GateState::Shut(_))
    }

    /// All policies there are.
    pub fn policy_reports(&self) -> Vec<PolicyReport> {
        let current = self.placement.steering.read().policy;
        let report = |kind: polymux_policy::PolicyKind| PolicyReport {
            name: kind.name().to_owned(),
            description: kind.description().to_owned(),
            is_current: kind == current,
        };
        polymux_policy::PolicyKind::all().map(report).collect()
    }
}

/// Whether two neighbours differ in nothing but their heat.
fn is_alike(last: &RangeExplanation, next: &RangeExplanation) -> bool {
    last.offset + last.length == next.offset
        && (&last.tier, &last.wanted_on, &last.why, &last.would_leave_to)
            == (&next.tier, &next.wanted_on, &next.why, &next.would_leave_to)
}

/// One range of two neighbours, described by the hotter one.
fn join(last: &mut RangeExplanation, next: &RangeExplanation) {
    let (offset, length) = (last.offset, last.length + next.length);
    if next.heat > last.heat {
        *last = next.clone();
    }
    last.offset = offset;
    last.length = length;
}
