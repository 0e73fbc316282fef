//! Migrations among the operations: the reference ignores them, because they must not be observable.

use polymux_fs::{FileKind, MoversState, Progress};

use super::harness::{Check, Harness};
use super::operation::{Index, Operation};

/// Batches after which the mover counts as one that never ends.
const BATCHES_MAX: usize = 500;

impl Harness {
    fn tier_name(&self, index: Index) -> String {
        let tiers = self.volume.fs().status().expect("status answers").tiers;
        tiers[usize::from(index) % tiers.len()].name.clone()
    }

    pub(super) fn apply_to_movers(&mut self, operation: &Operation) -> Check {
        match *operation {
            Operation::Migrate { file, tier, node } => {
                let Some((_, ino)) = self.node_where(file, |kind| kind == FileKind::Regular) else { return Ok(()) };
                let range = node.map(|position| position..position + 1);
                // A refusal is an answer like any other: a range beyond the end, a tier that is being drained.
                let _ = self.volume.fs().migrate(ino, &self.tier_name(tier), range);
            }
            Operation::MoveStep => {
                self.volume.fs().move_step();
            }
            Operation::MoveAll => {
                self.volume.fs().set_movers(MoversState::Working);
                let idle = (0..BATCHES_MAX).any(|_| self.volume.fs().move_step() == Progress::Idle);
                if !idle {
                    return Err(format!("the mover does not end: {:?}", self.volume.fs().moves()));
                }
            }
            Operation::Drain { tier } => {
                // The last tier stays: without it the data does not fit. Without space elsewhere it is refused.
                let tiers = self.volume.fs().status().expect("status answers").tiers;
                if let Some(chosen) = tiers[..tiers.len() - 1].iter().cycle().nth(usize::from(tier)) {
                    let _ = self.volume.fs().start_drain(&chosen.name);
                }
            }
            Operation::CancelDrain { tier } => {
                let _ = self.volume.fs().cancel_drain(&self.tier_name(tier));
            }
            Operation::PauseMovers => self.volume.fs().set_movers(MoversState::Paused),
            _ => unreachable!("{operation:?} is applied elsewhere"),
        }
        Ok(())
    }
}
