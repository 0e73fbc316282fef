//! A batch: parts of several files to one tier, copied one after the other, made durable side by side, switched each.
//!
//! Invariant: every part that was begun ends here, switched or given up, whatever happens to the others.

use std::collections::VecDeque;
use std::ops::Range;

use polymux_records::blockmap::BLOCKS_PER_NODE;
use polymux_records::error::Result;
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_records::report::Destination;
use polymux_types::{Block, TierId};

use super::interrupt::Interrupt;
use super::pace::StopRule;
use super::part::{Beginning, Gaps, Part, Selection, is_unwanted};
use crate::Mover;
use crate::queue::{Job, Scope};

/// Nodes in one batch: 32 MiB, so that the sync at its end is a small part of it.
pub(crate) const BATCH_NODES: u64 = 16;

/// Files in one batch: as many as are synced side by side.
pub(crate) const BATCH_FILES: usize = 16;

/// Copies of a part that are given up before its writers are kept out.
pub(crate) const STOPS_MAX: u32 = 3;

/// The outcome of a job in a batch.
pub(crate) enum Outcome {
    /// Its ranges are done as far as it was begun; there may be more.
    Advanced,
    /// As it was; again.
    Again,
    Interrupted(Interrupt),
    /// The file is gone, or has nothing to move.
    Over,
}

/// Stops after which the writers of a part are held off, where the part is a whole file of any size.
const STOPS_OF_WHOLE_MAX: u32 = 12;

/// Whether the writers of a part may go on while it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Optimistic,
    /// It was stopped too often: they are kept out from the first byte to the last.
    Locked,
}

/// One job's part of a batch.
struct Share {
    job: Job,
    form: Form,
    part: Option<Part>,
    taken: Vec<Range<Block>>,
    outcome: Option<Outcome>,
}

/// Takes the first nodes off the ranges.
fn take_nodes(ranges: &mut VecDeque<Range<Block>>, nodes_max: u64) -> Vec<Range<Block>> {
    let mut taken = Vec::new();
    let mut left = nodes_max * BLOCKS_PER_NODE;
    while left > 0 {
        let Some(range) = ranges.pop_front() else { break };
        let here = left.min(range.end - range.start);
        left -= here;
        let end = range.start + here;
        if end < range.end {
            ranges.push_front(end..range.end);
        }
        taken.push(range.start..end);
    }
    taken
}

impl Mover {
    /// Carries a batch out. Returns each job with its outcome.
    pub(crate) fn carry_out_batch(&self, target: TierId, jobs: Vec<Job>) -> Vec<(Job, Outcome)> {
        let alone = jobs.len() == 1;
        let mut shares: Vec<Share> = jobs.into_iter().map(|job| self.begin_share(job, target, alone)).collect();
        let mut behind = None;
        for index in 0..shares.len() {
            self.stop_early(&mut shares[..index]);
            let (present, later) = shares[index..].split_first_mut().expect("the index is one of them");
            if let Some(next) = later.iter().find_map(|share| share.part.as_ref()) {
                self.read_ahead_part(next);
            }
            if let Some(part) = &mut present.part {
                part.behind = behind.take();
            }
            self.copy_share(present);
            behind = present.part.as_mut().and_then(|part| part.behind.take());
        }
        self.stop_early(&mut shares);
        self.sync_shares(&mut shares);
        for share in &mut shares {
            self.commit_share(share);
        }
        shares.into_iter().map(end_share).collect()
    }

    /// Lets files go that another thread waits for, although they were copied: their turn comes again, and the rest of the batch
    /// may take long.
    fn stop_early(&self, shares: &mut [Share]) {
        let is_wanted = |share: &&mut Share| share.part.as_ref().is_some_and(|part| part.ticket.is_asked_to_stop());
        for share in shares.iter_mut().filter(is_wanted) {
            self.interrupt_share(share, Interrupt::Stopped);
        }
    }

    fn begin_share(&self, mut job: Job, target: TierId, alone: bool) -> Share {
        let inode = match self.volume.inode(job.ino) {
            Ok(inode) => inode,
            Err(error) => {
                let gone = error.errno() == polymux_types::Errno::ENOENT;
                let outcome = if gone { Outcome::Over } else { Outcome::Interrupted(error.into()) };
                return ended_at_once(job, outcome);
            }
        };
        if is_unwanted(&inode) && matches!(job.destination, Destination::To(_)) {
            return ended_at_once(job, Outcome::Over);
        }
        if job.scope == Scope::Whole {
            match self.whole_range(&inode) {
                Ok(Some(range)) => {
                    job.is_whole = true;
                    job.progress.bytes_total = Block::bytes_of(range.end - range.start);
                    job.scope = Scope::Ranges(VecDeque::from([range]));
                }
                Ok(None) => return ended_at_once(job, Outcome::Over),
                Err(error) => return ended_at_once(job, Outcome::Interrupted(error.into())),
            }
        }
        let (selection, is_whole) = (Selection { from: job.source_only(), target }, job.is_whole);
        let Scope::Ranges(ranges) = &mut job.scope else { unreachable!("the whole became a range above") };
        // A part whose writers are kept out is one node. Where there are no holes, an object is all of its file or nothing.
        let (form, nodes_max) = match self.holds_parts(target) {
            true if job.setbacks.stops >= STOPS_MAX && alone => (Form::Locked, 1),
            true => (Form::Optimistic, BATCH_NODES),
            false if job.setbacks.stops >= STOPS_OF_WHOLE_MAX && alone => (Form::Locked, u64::MAX / BLOCKS_PER_NODE),
            false => (Form::Optimistic, u64::MAX / BLOCKS_PER_NODE),
        };
        let taken = take_nodes(ranges, nodes_max);
        if taken.is_empty() {
            return ended_at_once(job, Outcome::Over);
        }
        let gaps = if is_whole && selection.leaves_nothing(&inode) { Gaps::None } else { Gaps::Follow };
        let (part, outcome) = match self.begin_part(&inode, &taken, selection, gaps) {
            Ok(Beginning::Part(part)) => {
                let arrived = job.progress.arrived.begin(bytes_of(&taken));
                (Some(Part { pace: job.pace.clone(), arrived, ..*part }), None)
            }
            Ok(Beginning::NothingToMove) => (None, Some(Outcome::Advanced)),
            Ok(Beginning::Busy) => (None, Some(Outcome::Again)),
            Err(interrupt) => (None, Some(Outcome::Interrupted(interrupt))),
        };
        Share { job, form, part, taken, outcome }
    }

    fn holds_parts(&self, tier: TierId) -> bool {
        let handle = self.volume.tiers.by_id(tier);
        handle.is_ok_and(|handle| handle.present().is_some_and(|tier| tier.capabilities().holds_partial_files()))
    }

    /// All nodes of a file, at least one; `None` where no object holds bytes of it.
    fn whole_range(&self, inode: &polymux_volume::inode::Inode) -> Result<Option<Range<Block>>> {
        let Some(file) = inode.file() else { return Ok(None) };
        self.data.ensure_size(inode, file)?;
        if file.layout.read().objects.is_empty() {
            return Ok(None);
        }
        let nodes = Block::at_or_after(file.size()).node_at_or_after().max(1);
        Ok(Some(Block(0)..Block::first_of_node(nodes)))
    }

    fn copy_share(&self, share: &mut Share) {
        if share.form == Form::Locked {
            return;
        }
        let Some(part) = &mut share.part else { return };
        for range in part.ranges.clone() {
            if let Err(interrupt) = self.copy_blocks(part, &range, StopRule::WhenAsked) {
                self.interrupt_share(share, interrupt);
                return;
            }
        }
    }

    fn interrupt_share(&self, share: &mut Share, interrupt: Interrupt) {
        let part = share.part.take().expect("only a part that was begun is interrupted");
        share.job.progress.bytes_copied += part.bytes_copied;
        share.job.progress.arrived.end();
        self.give_up_part(&part, &interrupt);
        share.outcome = Some(Outcome::Interrupted(interrupt));
    }

    fn sync_shares(&self, shares: &mut [Share]) {
        if is_planted(PlantedFault::CopyNotSynced) {
            return;
        }
        let mut places = Vec::new();
        let mut parts = Vec::new();
        for (place, share) in shares.iter_mut().enumerate().filter(|(_, share)| share.form == Form::Optimistic) {
            if let Some(part) = &mut share.part {
                places.push(place);
                parts.push(part);
            }
        }
        let outcomes = self.sync_parts(&mut parts);
        for (place, outcome) in places.into_iter().zip(outcomes) {
            if let Err(interrupt) = outcome {
                self.interrupt_share(&mut shares[place], interrupt);
            }
        }
    }

    fn commit_share(&self, share: &mut Share) {
        let Some(part) = &mut share.part else { return };
        let committed = match share.form {
            Form::Locked => self.move_locked(part),
            Form::Optimistic => self.catch_up(part).and_then(|()| self.commit_part(part)),
        };
        match committed {
            Ok(()) => {
                let part = share.part.take().expect("it was there");
                share.job.progress.bytes_copied += part.bytes_copied;
                self.end_part(&part);
                share.outcome = Some(Outcome::Advanced);
            }
            Err(interrupt) => self.interrupt_share(share, interrupt),
        }
    }
}

fn bytes_of(blocks: &[Range<Block>]) -> u64 {
    blocks.iter().map(|range| Block::bytes_of(range.end - range.start)).sum()
}

/// A job whose part was not begun.
fn ended_at_once(job: Job, outcome: Outcome) -> Share {
    Share { job, form: Form::Optimistic, part: None, taken: Vec::new(), outcome: Some(outcome) }
}

/// The part that was taken counts as done, or goes back in front of the rest.
fn end_share(share: Share) -> (Job, Outcome) {
    let Share { mut job, taken, outcome, .. } = share;
    let outcome = outcome.expect("every share has an outcome");
    match (&outcome, &mut job.scope) {
        (Outcome::Advanced, _) => {
            job.progress.bytes_done += bytes_of(&taken);
            job.setbacks.stops = 0;
        }
        (Outcome::Again | Outcome::Interrupted(_), Scope::Ranges(ranges)) => {
            taken.into_iter().rev().for_each(|range| ranges.push_front(range));
        }
        _ => {}
    }
    (job, outcome)
}
