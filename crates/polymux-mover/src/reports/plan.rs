//! Lists the moves that would be submitted next if nothing changed: the decisions of the planner, asked for without submitting them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use polymux_data::placement::Request;
use polymux_policy::{PolicyKind, TierTable};
use polymux_records::error::Result;
use polymux_records::report::{Benefit, HeldBack, MoveReason, PlanReport, PlannedFile, PlannedMoves};
use polymux_records::store::InodeBody;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::HeatCursor;
use polymux_volume::inode::Inode;

use crate::Mover;
use crate::mover::planner::Search;
use crate::planning::facts::bytes_mapped_on;
use crate::planning::load_balance::{Handover, PairPlan};
use crate::planning::planned::Planned;
use crate::planning::promotion::{Promotions, Verdict};
use crate::planning::rules::Demand;
use crate::planning::tables::note_coming;

/// Hot nodes looked at in one piece.
const HOT_PAGE: usize = 4096;

/// Files listed.
const FILES_MAX: usize = 50;

/// Moves of one file between two tiers for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileMove {
    reason: MoveReason,
    from: TierId,
    to: TierId,
    ino: Ino,
}

/// The bytes that moves of a file add up to, and their benefit.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: u64,
    /// Of the part that is worth most; nothing where that is not the reason.
    benefit: Benefit,
}

type Sums = BTreeMap<FileMove, Sum>;

fn add(sums: &mut Sums, moved: FileMove, bytes: u64) {
    sums.entry(moved).or_default().bytes += bytes;
}

/// Adds the moves that pay back at once to the other ones.
fn note_relief(relief: &Planned, sums: &mut Sums) {
    for piece in &relief.pieces {
        let moved = FileMove { reason: MoveReason::Promote, from: piece.from, to: piece.to, ino: piece.ino };
        let sum = sums.entry(moved).or_default();
        sum.bytes += piece.bytes;
        sum.benefit = sum.benefit.or_better(piece.benefit);
    }
}

/// Notes the benefit of promotions that are on their way already, and would pay back at once.
fn note_hurried(relief: &Planned, sums: &mut Sums) {
    for (FileMove { reason, to, ino, .. }, sum) in sums {
        let benefit = relief.hurried.get(to).and_then(|files| files.get(ino));
        if *reason == MoveReason::Promote && sum.benefit == Benefit::default() {
            sum.benefit = benefit.copied().unwrap_or_default();
        }
    }
}

impl Mover {
    /// See `FileSystem::plan`. `policy` takes the place of the volume's.
    pub fn plan(&self, policy: Option<PolicyKind>) -> Result<PlanReport> {
        let policy = policy.unwrap_or_else(|| self.placement.steering.read().policy);
        let mut table = self.planning_table();
        let mut sums = Sums::new();
        let held_back = self.plan_all_rules(policy, &mut table, &mut sums)?;
        let laid_out = self.plan_all_readers(policy, &mut table, &mut sums)?;
        let mut relief = self.plan_reliefs(Some(policy), &mut table);
        for PairPlan { pair: (from, to), handovers, .. } in self.plan_handovers(Some(policy), &mut relief, &mut table) {
            for Handover { ino, bytes, .. } in handovers {
                add(&mut sums, FileMove { reason: MoveReason::Handover, from, to, ino }, bytes);
            }
        }
        note_relief(&relief, &mut sums);
        self.plan_all_promotions(policy, &laid_out, &relief, &mut table, &mut sums);
        note_hurried(&relief, &mut sums);
        self.plan_all_evictions(policy, &relief, &table, &mut sums)?;
        let (open, ..) = self.moves.open_jobs(|_| true);
        let moves = self.sum_up(&sums);
        let mut by_benefit: Vec<_> = sums.iter().collect();
        by_benefit.sort_unstable_by_key(|(_, sum)| (sum.benefit.rank(), Reverse(sum.bytes)));
        let mut files = Vec::new();
        for (FileMove { reason, to, ino, .. }, sum) in by_benefit.into_iter().take(FILES_MAX) {
            files.push(PlannedFile {
                path: self.volume.path_of(*ino)?,
                ino: *ino,
                reason: *reason,
                to: self.name_of_tier(*to),
                bytes: sum.bytes,
                benefit: sum.benefit,
            });
        }
        Ok(PlanReport { policy: policy.name().to_owned(), moves, files, held_back, jobs_open: open as u64 })
    }

    /// Promotions of hot ranges, except for files that are laid out for their readers, whose ranges are looked at when they are used
    /// again, and for moves that pay back at once.
    fn plan_all_promotions(
        &self,
        policy: PolicyKind,
        laid_out: &BTreeSet<Ino>,
        relief: &Planned,
        table: &mut TierTable,
        sums: &mut Sums,
    ) {
        let mut cursor = Some(HeatCursor::default());
        let mut promotions = Promotions::new();
        while let Some(from) = cursor {
            let mut hot = Vec::new();
            cursor = self.placement.heat.for_each_after(
                from,
                HOT_PAGE,
                self.placement.logical_clock.now(),
                |ino, node, heat| {
                    if heat.is_hot() && !laid_out.contains(&ino) && !relief.has_node(ino, node) {
                        hot.push((ino, node));
                    }
                },
            );
            for (ino, node) in hot {
                self.plan_one_promotion(policy, ino, node, table, &mut promotions, sums);
            }
        }
    }

    /// Moves up for readers, done as soon as the tiers are idle. Returns the affected files.
    fn plan_all_readers(&self, policy: PolicyKind, table: &mut TierTable, sums: &mut Sums) -> Result<BTreeSet<Ino>> {
        let mut laid_out = BTreeSet::new();
        for (ino, queued) in self.files_to_be_laid_out() {
            let Ok(inode) = self.volume.inode(ino) else { continue };
            let Some(file) = inode.file() else { continue };
            if let Err(error) = self.data.ensure_size(&inode, file) {
                self.pass_over(ino, &error);
                continue;
            }
            let context = self.context_for(&inode, Some(policy));
            let Some(plan) = self.plan_for_readers(inode.ino, file, &context, &queued, table) else { continue };
            for moves in &plan.moves {
                let bytes = plan.bytes_of(moves);
                note_coming(table, moves.to.0, bytes);
                let (from, to) = (moves.from, moves.to);
                add(sums, FileMove { reason: MoveReason::Rebalance, from, to, ino }, bytes);
                laid_out.insert(ino);
            }
        }
        Ok(laid_out)
    }

    fn plan_one_promotion(
        &self,
        policy: PolicyKind,
        ino: Ino,
        node: u64,
        table: &mut TierTable,
        promotions: &mut Promotions,
        sums: &mut Sums,
    ) {
        let Ok(inode) = self.volume.inode(ino) else { return };
        match self.decide_promotion(&inode, node, Some(policy), table, promotions) {
            Ok(verdicts) => {
                for verdict in verdicts {
                    if let Verdict::Promoted { from, to, bytes } = verdict {
                        add(sums, FileMove { reason: MoveReason::Promote, from, to, ino }, bytes);
                    }
                }
            }
            Err(error) => self.pass_over(ino, &error),
        }
    }

    /// Moves that rules and pins demand. Returns the data that no tier has space for.
    fn plan_all_rules(&self, policy: PolicyKind, table: &mut TierTable, sums: &mut Sums) -> Result<HeldBack> {
        let mut held_back = HeldBack::default();
        let mut files = Vec::new();
        self.volume.metadata.for_each_inode(|ino, record| {
            if matches!(&record.body, InodeBody::Regular(file) if !file.objects.is_empty()) {
                files.push(ino);
            }
            Ok(())
        })?;
        for ino in files {
            let Ok(inode) = self.volume.inode(ino) else { continue };
            let context = self.context_for(&inode, Some(policy));
            self.plan_drains_of(&inode, table, sums);
            match self.wanted_by_rule(&inode, &context, table) {
                Ok(Demand::Move { from, to, bytes }) => {
                    note_coming(table, to.0, bytes);
                    add(sums, FileMove { reason: MoveReason::Pin, from, to, ino }, bytes);
                }
                Ok(Demand::NoRoom { bytes }) => {
                    held_back.files += 1;
                    held_back.bytes += bytes;
                }
                Ok(Demand::Nothing) => {}
                Err(error) => self.pass_over(ino, &error),
            }
        }
        Ok(held_back)
    }

    /// The parts of a file that are still on tiers being emptied.
    fn plan_drains_of(&self, inode: &Inode, table: &mut TierTable, sums: &mut Sums) {
        let Some(file) = inode.file() else { return };
        for handle in self.volume.tiers.all().iter().filter(|handle| self.drains.is_emptied(handle)) {
            if file.layout.read().slot_of(handle.id).is_none() {
                continue;
            }
            let bytes = bytes_mapped_on(file, handle.id);
            let request =
                Request { length: bytes.max(1), file_end: file.size().max(1), partial: true, except: Some(handle.id) };
            let Some(to) = self.tier_to_drain_to(inode, &request, handle.id) else { continue };
            note_coming(table, to.0, bytes);
            add(sums, FileMove { reason: MoveReason::Drain, from: handle.id, to, ino: inode.ino }, bytes);
        }
    }

    fn plan_all_evictions(
        &self,
        policy: PolicyKind,
        relief: &Planned,
        table: &TierTable,
        sums: &mut Sums,
    ) -> Result<()> {
        for fill in table.offered() {
            let tier = TierId(fill.tier);
            let room_wanted = relief.room_wanted.get(&tier).copied();
            let wanted = room_wanted.map_or(0, |wanted| wanted.bytes);
            let needed = self.bytes_needed(fill, wanted);
            let now = self.volume.clock.elapsed();
            if !self.seeks_victims(tier, needed, now) {
                continue;
            }
            let mut search =
                Search::new(Some(policy), needed, room_wanted.or_else(|| self.placement.tier_reads.spared(tier, now)));
            while !self.search_piece(&mut search, tier, needed.bytes, table)? {}
            for ((ino, target), bundle) in self.choose_victims(tier, needed, &mut search, table) {
                add(sums, FileMove { reason: MoveReason::Demote, from: tier, to: target, ino }, bundle.bytes);
            }
        }
        Ok(())
    }

    fn sum_up(&self, sums: &Sums) -> Vec<PlannedMoves> {
        let mut kinds: BTreeMap<(MoveReason, TierId, TierId), (u64, u64)> = BTreeMap::new();
        for (FileMove { reason, from, to, .. }, of_file) in sums {
            let sum = kinds.entry((*reason, *from, *to)).or_default();
            sum.0 += 1;
            sum.1 += of_file.bytes;
        }
        let planned = |((reason, from, to), (files, bytes)): ((MoveReason, TierId, TierId), (u64, u64))| PlannedMoves {
            reason,
            from: self.name_of_tier(from),
            to: self.name_of_tier(to),
            files,
            bytes,
            seconds: self.seconds_to_move(from, to, bytes),
        };
        kinds.into_iter().map(planned).collect()
    }

    /// At the bandwidth that was seen of both tiers.
    fn seconds_to_move(&self, from: TierId, to: TierId, bytes: u64) -> Option<u64> {
        let now = self.volume.clock.elapsed();
        let read = self.volume.tiers.by_id(from).ok()?.speed.schedule.load(now).read_best;
        let written = self.volume.tiers.by_id(to).ok()?.speed.schedule.load(now).written_best;
        let rate = read.min(written);
        (rate > 0).then(|| bytes.div_ceil(rate))
    }
}
