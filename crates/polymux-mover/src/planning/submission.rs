//! Bundles of moves become jobs.

use polymux_records::report::{Destination, JobId, MoveReason};
use polymux_types::{Ino, TierId};
use polymux_volume::sched::MoverPace;

use super::bundle::Bundle;
use crate::Mover;
use crate::mover::scope_of;
use crate::queue::Order;

impl Mover {
    /// Submits a promotion, and charges it to the write budget of its tier. Returns whether it was accepted.
    pub(crate) fn submit_promotion(&self, ino: Ino, tier: TierId, bundle: Bundle, pace: MoverPace) -> bool {
        let bytes = bundle.bytes;
        let destination = Destination::To(tier);
        let job = self.submit_move(ino, bundle.into_ranges(), destination, MoveReason::Promote, pace, bytes);
        let is_taken = job.is_some();
        if is_taken {
            self.placement.write_budget.charge(tier, bytes, self.placement.logical_clock.now());
        }
        is_taken
    }

    /// As [`Mover::submit_move`], and the bytes count as leaving a tier until the job ends.
    pub(crate) fn submit_move_off(
        &self,
        ino: Ino,
        bundle: Bundle,
        from: TierId,
        to: TierId,
        reason: MoveReason,
        pace: MoverPace,
    ) -> Option<JobId> {
        let bytes = bundle.bytes;
        let scope = scope_of(bundle.into_ranges());
        let now = self.volume.clock.elapsed();
        self.moves.submit(
            Order { ino, scope, destination: Destination::To(to), leaves: Some(from), reason, pace, bytes },
            now,
        )
    }
}
