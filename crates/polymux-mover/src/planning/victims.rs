//! Eviction candidates of a tier: a walk over the files on it, in windows.
//!
//! Invariant: a window ends when it has seen a few times the bytes that are needed, or everything. The best of it
//! leave; the walk goes on behind it the next time.

use std::collections::BTreeMap;

use polymux_policy::{Granularity, PolicyKind, TierTable, evict};
use polymux_records::blockmap::Owner;
use polymux_records::error::Result;
use polymux_records::report::{MoveReason, PAYS_BACK_SOON_SECONDS};
use polymux_records::store::InodeBody;
use polymux_types::{Block, Ino, TierId};
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::sched::MoverPace;
use polymux_volume::tier_reads::{RoomWanted, SoughtInVain};

use super::bundle::Bundle;
use super::facts::{Piece, pieces_of_node};
use super::tables::note_coming;
use crate::Mover;
use crate::mover::planner::{Candidate, Needed, Search};

/// Inode records looked at in a step.
const FILES_PER_STEP: usize = 256;

/// Nodes looked at in a step.
const NODES_PER_STEP: usize = 4096;

/// A window sees this many times the bytes that are needed, where there are so many.
const WINDOW_FACTOR: u64 = 4;

/// Bytes in a window of a search for candidates while no eviction is required.
const WISH_BYTES: u64 = 256 * 1024 * 1024;

/// Bytes for which a window looks at least, where something must leave: the coldest of a few ranges may be hot.
const NEEDED_BYTES_MIN: u64 = 64 << 20;

/// Candidates of a window at the most.
const CANDIDATES_MAX: usize = 65_536;

/// Whether what would pay back soon on its tier stays there beside the ranges that want its space.
fn keeps_what_pays(wanted: Option<RoomWanted>) -> bool {
    wanted.is_none_or(|wanted| wanted.keeps_what_pays())
}

/// The nodes of a file that lie on a tier, from one of them on.
fn nodes_on(file: &FileState, tier: TierId, from: u64) -> Vec<u64> {
    let end = Block::at_or_after(file.size());
    let layout = file.layout.read();
    let Some(slot) = layout.slot_of(tier) else { return Vec::new() };
    let start = Block::first_of_node(from);
    if start >= end {
        return Vec::new();
    }
    let mut nodes: Vec<u64> = Vec::new();
    for run in layout.map.runs(start, end) {
        if run.owner == Some(Owner::Slot(slot)) {
            let (first, last) = (run.start.node(), (run.end - 1).node());
            let first = nodes.last().map_or(first, |known: &u64| first.max(known + 1));
            nodes.extend((first..=last).take(NODES_PER_STEP));
        }
        if nodes.len() >= NODES_PER_STEP {
            nodes.truncate(NODES_PER_STEP);
            break;
        }
    }
    nodes
}

/// The cost of one eviction from the high mark to the low one: the heat of its hottest candidate, and the longest time that one of them
/// was not used. Not the coldest of all: that is an outlier, and for something hotter all of these
/// must go.
fn coldest_of(candidates: &mut [Candidate], tier: TierId, table: &TierTable) -> Option<(u32, u32)> {
    let fill = table.fill_of(tier.0)?;
    candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.score));
    let (mut bytes, mut coldest) = (0, None);
    for candidate in candidates.iter() {
        if bytes >= fill.high_mark.saturating_sub(fill.low_mark) && coldest.is_some() {
            break;
        }
        bytes += candidate.bytes;
        let (heat, idle): (u32, u32) = coldest.unwrap_or_default();
        coldest = Some((heat.max(candidate.heat), idle.max(candidate.idle_seconds)));
    }
    coldest
}

impl Mover {
    /// One step of the search; where a window is complete, its result is recorded and the required evictions are submitted.
    /// Returns whether there is more to do at once.
    pub(crate) fn search_step(
        &self,
        tier: TierId,
        needed: Needed,
        makes_room: Option<RoomWanted>,
        table: &TierTable,
    ) -> Result<bool> {
        let mut search = self.planner.state.lock().searches.remove(&tier).unwrap_or_default();
        if search.keeps_returning && !needed.keeps_returning() {
            // It passed over what may leave now.
            search = Search { after: search.after, node: search.node, ..Search::default() };
        }
        search.makes_room = makes_room;
        search.keeps_returning = needed.keeps_returning();
        let began = self.volume.clock.elapsed();
        let is_complete = self.search_piece(&mut search, tier, needed.bytes, table)?;
        search.took = search.took.saturating_add(self.volume.clock.elapsed().saturating_sub(began));
        if is_complete {
            // The movers hear of new jobs at once.
            return Ok(self.end_window(tier, needed, search, table));
        }
        self.planner.state.lock().searches.insert(tier, search);
        Ok(true)
    }

    /// Looks at the next files. Returns whether the window is complete.
    pub(crate) fn search_piece(
        &self,
        search: &mut Search,
        tier: TierId,
        needed: u64,
        table: &TierTable,
    ) -> Result<bool> {
        search.from.get_or_insert(search.after);
        let page = self.volume.metadata.inodes_after(search.after, FILES_PER_STEP)?;
        let mut budget = NODES_PER_STEP;
        let mut has_seen_page = true;
        for (ino, record) in &page {
            let is_here =
                matches!(&record.body, InodeBody::Regular(file) if file.objects.iter().any(|entry| entry.tier == tier));
            if is_here && !self.look_for_victims(search, *ino, tier, table, &mut budget) {
                has_seen_page = false;
                break;
            }
            search.after = *ino;
            search.node = 0;
        }
        if has_seen_page && page.len() < FILES_PER_STEP {
            search.after = Ino(0);
            search.ends += 1;
        }
        let wanted = if needed == 0 { WISH_BYTES } else { needed.max(NEEDED_BYTES_MIN) }.saturating_mul(WINDOW_FACTOR);
        // Of a small tier half is enough to choose from.
        let used = table.fill_of(tier.0).map_or(0, |fill| fill.used);
        let wanted = wanted.min(used / 2).max(needed);
        Ok(search.bytes >= wanted || search.has_seen_all() || search.candidates.len() >= CANDIDATES_MAX)
    }

    /// Chooses from the candidates seen. Returns whether anything is to be moved.
    fn end_window(&self, tier: TierId, needed: Needed, mut search: Search, table: &TierTable) -> bool {
        {
            let mut state = self.planner.state.lock();
            state.wants_victims.remove(&tier);
            match coldest_of(&mut search.candidates, tier, table) {
                Some(coldest) => state.coldest.insert(tier, coldest),
                None => state.coldest.remove(&tier),
            };
            let next = Search { after: search.after, node: search.node, ..Search::default() };
            state.searches.insert(tier, next);
        }
        // Only data whose eviction frees the wanted space is worth disturbing readers for. On an overfull tier it waits with the rest.
        let mut wanted = self.placement.tier_reads.room_wanted(tier).map_or(0, |wanted| wanted.bytes);
        let mut has_submitted = false;
        let victims = self.choose_victims(tier, needed, &mut search, table);
        if needed.bytes > 0 && search.has_seen_all() && victims.is_empty() {
            let Search { took, may_find_soon, .. } = search;
            let sought = SoughtInVain { took, may_find_soon, is_pressing: needed.pressing > 0 };
            self.placement.tier_reads.note_sought_in_vain(tier, sought, self.volume.clock.elapsed());
        }
        for ((ino, target), bundle) in victims {
            let bytes = bundle.bytes;
            let pace = if wanted > 0 { MoverPace::TakesShare } else { MoverPace::Polite };
            wanted = wanted.saturating_sub(bytes);
            let job = self.submit_move_off(ino, bundle, tier, target, MoveReason::Demote, pace);
            has_submitted |= job.is_some();
        }
        has_submitted
    }

    /// Looks at the nodes of a file. Returns whether all of them were seen.
    fn look_for_victims(
        &self,
        search: &mut Search,
        ino: Ino,
        tier: TierId,
        table: &TierTable,
        budget: &mut usize,
    ) -> bool {
        let Ok(inode) = self.volume.inode(ino) else { return true };
        let Some(file) = inode.file() else { return true };
        if let Err(error) = self.data.ensure_size(&inode, file) {
            self.pass_over(ino, &error);
            return true;
        }
        if file.is_passed_through() {
            // It stays until it is closed: other candidates free the space.
            search.may_find_soon = true;
            return true;
        }
        let context = self.context_for(&inode, search.policy);
        let is_whole = context.policy.granularity() == Granularity::File;
        let wanted = search.makes_room;
        for node in nodes_on(file, tier, search.node) {
            if *budget == 0 {
                search.node = node;
                return false;
            }
            *budget -= 1;
            let bytes = match pieces_of_node(file, node).into_iter().find(|piece| piece.tier == tier) {
                Some(_) if is_whole => file.size(),
                Some(piece) => piece.bytes,
                None => continue,
            };
            let demand = self.placement.heat.demand.of_node(ino, node);
            if wanted.is_some_and(|wanted| !wanted.may_take(&demand)) {
                continue;
            }
            let facts = self.range_facts(&inode, file, node, Piece { tier, bytes }, &context, table);
            let eviction = evict(context.policy, &facts);
            if eviction.score == 0 {
                continue;
            }
            // Data that came lately has not paid back yet, and data that would pay back soon comes again: either would go to and fro.
            let came_lately = || u64::from(facts.moved_seconds_ago) < PAYS_BACK_SOON_SECONDS;
            let from_there = Piece { tier: TierId(eviction.target), bytes };
            let comes_back =
                || keeps_what_pays(wanted) && self.pays_back_on(tier, file, from_there, &demand, &context, table);
            if self.placement.promotes_promptly(context.policy) && (came_lately() || comes_back()) {
                search.may_find_soon |= came_lately();
                continue;
            }
            let returns = self.placement.promotes_promptly(context.policy)
                && self.would_return(tier, file, from_there, &demand, &context, table);
            if returns && search.keeps_returning {
                continue;
            }
            let heat = if is_whole { facts.file_heat } else { facts.heat };
            let (score, idle_seconds) = (eviction.score, facts.idle_seconds);
            search.candidates.push(Candidate { score, ino, node, bytes, is_whole, returns, heat, idle_seconds });
            search.bytes += bytes;
            if is_whole {
                break;
            }
        }
        let seen_all = nodes_on(file, tier, search.node).len() < NODES_PER_STEP;
        if !seen_all {
            search.node += NODES_PER_STEP as u64;
        }
        seen_all
    }

    /// The candidates that leave first, with where they go, until as much as needed goes.
    pub(crate) fn choose_victims(
        &self,
        tier: TierId,
        needed: Needed,
        search: &mut Search,
        table: &TierTable,
    ) -> BTreeMap<(Ino, TierId), Bundle> {
        search.candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.score));
        let mut table = *table;
        let mut bundles: BTreeMap<(Ino, TierId), Bundle> = BTreeMap::new();
        let mut planned = 0;
        for candidate in &search.candidates {
            if planned >= needed.bytes {
                break;
            }
            if candidate.returns && planned >= needed.pressing {
                continue;
            }
            // The demand that space is freed for may have changed since it was looked up.
            let demand = || self.placement.heat.demand.of_node(candidate.ino, candidate.node);
            if search.makes_room.is_some_and(|wanted| !wanted.may_take(&demand())) {
                continue;
            }
            // The slower tiers fill up as the plan grows, so each is asked where it goes.
            let Some(target) = self.eviction_target(candidate, tier, search.policy, &table) else { continue };
            note_coming(&mut table, target.0, candidate.bytes);
            planned += candidate.bytes;
            let bundle = bundles.entry((candidate.ino, target)).or_default();
            bundle.is_whole |= candidate.is_whole;
            bundle.add(candidate.node, candidate.bytes);
        }
        bundles
    }

    fn eviction_target(
        &self,
        candidate: &Candidate,
        tier: TierId,
        policy: Option<PolicyKind>,
        table: &TierTable,
    ) -> Option<TierId> {
        let inode: std::sync::Arc<Inode> = self.volume.inode(candidate.ino).ok()?;
        let context = self.context_for(&inode, policy);
        let piece = Piece { tier, bytes: candidate.bytes };
        let facts = self.range_facts(&inode, inode.file()?, candidate.node, piece, &context, table);
        let eviction = evict(context.policy, &facts);
        (eviction.score > 0).then_some(TierId(eviction.target))
    }
}
