//! Numbers handed out from a range whose upper end is durable (DESIGN section 4).
//!
//! Invariants:
//! * Every number was reserved durably before it is handed out, and is handed out once.
//! * A thread takes numbers from its stripe, and a stripe takes a block of them at a time from the range. So threads do not
//!   write the same cache line for each file they make, and the numbers of files made one after the other by one thread
//!   are neighbours, in the inode table as in the metadata store.
//! * Numbers left in a stripe when the volume is unmounted are never used, like the rest of the range.

use std::sync::atomic::{AtomicU64, Ordering};

use polymux_meta::Sequence;
use polymux_types::sync::Mutex;

use crate::counters::{STRIPES, stripe_of_thread};
use crate::error::Result;

/// Binary logarithm of the numbers that a stripe takes at a time. Each such block is aligned.
pub const BLOCK_BITS: u32 = 6;

/// Numbers left when the next range is reserved: enough for the time that a flush and the second copy take.
const AHEAD_NUMBERS: u64 = 32_768;

/// The rest of a block of numbers: `next <= end`, and both only grow.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    next: AtomicU64,
    end: AtomicU64,
    /// Held to take a new block.
    taking: Mutex<()>,
}

impl Stripe {
    /// Moves `next` past a number and returns it. `next` never takes a value twice, so that who succeeds in moving it saw
    /// an `end` that holds for it.
    fn take(&self) -> Option<u64> {
        let within = |next: u64| (next < self.end.load(Ordering::Acquire)).then(|| next + 1);
        self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).ok()
    }
}

/// Numbers of one kind.
#[derive(Debug, Default)]
pub(crate) struct NumberRange {
    stripes: [Stripe; STRIPES],
    reserved: Mutex<Reserved>,
}

/// Numbers that no stripe took yet.
#[derive(Debug, Default)]
struct Reserved {
    /// Next number of the durable range, and its end.
    next: u64,
    end: u64,
    /// The range after it, which is reserved and need not be durable yet.
    ahead: Option<AheadRange>,
}

/// A range whose reservation is committed, so that no caller has to wait long for it later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AheadRange {
    /// Its first number.
    pub start: u64,
    /// The number after its last.
    pub end: u64,
    /// The transaction that reserves it.
    pub sequence: Sequence,
}

/// Where ranges come from.
pub(crate) trait RangeSource {
    /// Begins to reserve the range after the present one, without waiting; `None` where that cannot be done now.
    fn reserve_ahead(&self) -> Option<AheadRange>;

    /// A range that is durable as far as it has to be: the one that was reserved ahead, or a new one. Its first number and
    /// the one after its last.
    fn reserve(&self, ahead: Option<AheadRange>) -> Result<(u64, u64)>;
}

impl NumberRange {
    /// A number that was never handed out before. Where the range is used up, the source gives another one.
    pub fn allocate(&self, source: &impl RangeSource) -> Result<u64> {
        let stripe = &self.stripes[stripe_of_thread()];
        if let Some(number) = stripe.take() {
            return Ok(number);
        }
        let _one_at_a_time = stripe.taking.lock();
        if let Some(number) = stripe.take() {
            return Ok(number);
        }
        let (start, end) = self.take_block(source)?;
        assert!(start < end && start >= stripe.next.load(Ordering::Acquire), "numbers are never handed out twice");
        // The first number is the caller's. `next` is set before `end`, so that no thread gets a number in between.
        stripe.next.store(start + 1, Ordering::Release);
        stripe.end.store(end, Ordering::Release);
        Ok(start)
    }

    fn take_block(&self, source: &impl RangeSource) -> Result<(u64, u64)> {
        let mut reserved = self.reserved.lock();
        if reserved.next == reserved.end {
            let ahead = reserved.ahead.take();
            (reserved.next, reserved.end) = source.reserve(ahead)?;
        }
        let start = reserved.next;
        let block_end = ((start >> BLOCK_BITS) + 1) << BLOCK_BITS;
        reserved.next = block_end.min(reserved.end);
        if reserved.ahead.is_none() && reserved.end - reserved.next <= AHEAD_NUMBERS {
            reserved.ahead = source.reserve_ahead();
        }
        Ok((start, reserved.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each range begins beyond the end of the one before, as after an unclean stop.
    struct Source<'a>(&'a AtomicU64);

    impl RangeSource for Source<'_> {
        fn reserve_ahead(&self) -> Option<AheadRange> {
            let start = self.0.fetch_add(1000, Ordering::Relaxed);
            // Now and then there is none.
            (!start.is_multiple_of(3)).then_some(AheadRange { start, end: start + 900, sequence: Sequence(1) })
        }

        fn reserve(&self, ahead: Option<AheadRange>) -> Result<(u64, u64)> {
            if let Some(ahead) = ahead {
                return Ok((ahead.start, ahead.end));
            }
            let start = self.0.fetch_add(1000, Ordering::Relaxed);
            Ok((start, start + 900))
        }
    }

    #[test]
    fn threads_get_no_number_twice_and_none_that_was_not_reserved() {
        let range = NumberRange::default();
        let reserved = AtomicU64::new(5);
        let source = Source(&reserved);
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let take = || (0..5000).map(|_| range.allocate(&source).expect("numbers are left")).collect::<Vec<_>>();
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("no worker failed")).collect()
        });
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "a number was handed out twice");
        assert!(all.iter().all(|number| *number >= 5 && (number - 5) % 1000 < 900), "a number was not reserved");
        assert!(all.last() < Some(&reserved.load(Ordering::Relaxed)));
    }

    #[test]
    fn one_thread_gets_numbers_in_a_row() {
        let range = NumberRange::default();
        let reserved = AtomicU64::new(16);
        let source = Source(&reserved);
        let numbers: Vec<u64> = (0..200).map(|_| range.allocate(&source).expect("numbers are left")).collect();
        assert_eq!(numbers, (16..216).collect::<Vec<_>>());
    }
}
