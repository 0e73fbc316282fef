//! How fast a mover goes: size of its requests, and when the next one may begin (P15, DESIGN section 8).
//!
//! Invariant: each request is admitted by the schedule of its tier, counts as under way there until it is ended, and
//! waits no longer than a moment before it asks again whether it is still wanted.

use std::time::Duration;

use polymux_tier::Rotation;
use polymux_volume::sched::{Direction, MoveEnd, MoverPace, Ready, Seeks, Sizing, request_between};
use polymux_volume::space::TierHandle;

use super::interrupt::Interrupt;
use super::part::{Part, is_unwanted};
use crate::Mover;

/// Whether a copy ends when another thread waits for the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRule {
    WhenAsked,
    /// It is short, and its writers are kept out.
    Never,
}

/// Request of a mover that takes its share of a device,
const SHARED_REQUEST_BYTES: u64 = 1 << 20;
/// and of one that does so where programs wait for syncs.
const SHARED_REQUEST_BYTES_BESIDE_SYNCS: u64 = 256 << 10;

/// One request of a mover to a tier.
#[derive(Clone, Copy)]
pub(crate) struct MoveRequest {
    pub(crate) direction: Direction,
    pub(crate) bytes: u64,
    pub(crate) sizing: Sizing,
}

/// Longest wait before a mover looks again whether it must stop.
const NAP_MAX: Duration = Duration::from_millis(20);

impl Mover {
    /// Whether a mover must stop its work: another thread wants the file, or the volume is being unmounted.
    pub(crate) fn is_stopped(&self, part: &Part, rule: StopRule) -> bool {
        rule == StopRule::WhenAsked
            && (part.ticket.is_asked_to_stop()
                || self.moves.must_stop()
                || part.began_wanted && is_unwanted(&part.inode))
    }

    /// Bytes of the next request: as many as both tiers serve within their time, and as programs that use them may wait for.
    pub(crate) fn request_bytes(&self, from: &TierHandle, to: &TierHandle, pace: MoverPace) -> (u64, Sizing) {
        let now = self.volume.clock.elapsed();
        match pace {
            MoverPace::Polite => request_between(self.end_of_move(from), self.end_of_move(to), now),
            // Other requests are under way beside it, so its duration does not depend on its size alone; and the fewer of its own, the better.
            MoverPace::TakesShare => {
                let is_waited_for = [from, to].iter().any(|tier| tier.speed.schedule.is_waited_for(now));
                let bytes = if is_waited_for { SHARED_REQUEST_BYTES_BESIDE_SYNCS } else { SHARED_REQUEST_BYTES };
                (bytes, Sizing::Full)
            }
        }
    }

    fn end_of_move<'a>(&self, tier: &'a TierHandle) -> MoveEnd<'a> {
        let rotation = tier.present().map_or(Rotation::Unknown, |present| present.capabilities().rotation);
        let small_read_ns = self.placement.tier_reads.small_read_ns(tier.id);
        MoveEnd { schedule: &tier.speed.schedule, seeks: Seeks::of(rotation, small_read_ns) }
    }

    /// Runs a request of a mover when its tier admits it. While writers are kept out, it runs at once.
    pub(crate) fn paced<T>(
        &self,
        part: &Part,
        tier: &TierHandle,
        request: MoveRequest,
        rule: StopRule,
        operation: impl FnOnce(&TierHandle) -> Result<T, Interrupt>,
    ) -> Result<T, Interrupt> {
        let MoveRequest { direction, bytes, sizing } = request;
        if rule == StopRule::Never {
            return operation(tier);
        }
        let mut ready = Ready::default();
        loop {
            let wait = tier.speed.schedule.admit(
                bytes,
                part.pace.get(),
                &tier.speed.read_lane,
                &mut ready,
                self.volume.clock.elapsed(),
            );
            if wait.is_zero() {
                break;
            }
            self.volume.clock.sleep(wait.min(NAP_MAX));
            if self.is_stopped(part, rule) {
                return Err(Interrupt::Stopped);
            }
        }
        let began = self.volume.clock.elapsed();
        let outcome = operation(tier);
        let now = self.volume.clock.elapsed();
        let done = if outcome.is_ok() { bytes } else { 0 };
        tier.speed.schedule.mover_ended(direction, done, sizing, now.saturating_sub(began), now);
        outcome
    }
}
