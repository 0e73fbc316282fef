//! Counters of the file system; always on, shown by `status`.
//!
//! There are several sets of them, each on cache lines of its own, and a thread mostly adds to a set that no other
//! thread uses at the moment. Only their sums mean anything.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies of the counters that every thread changes frequently.
pub(crate) const STRIPES: usize = 16;

/// The copy that the calling thread should use: below [`STRIPES`], and mostly not that of another running thread.
#[inline]
pub(crate) fn stripe_of_thread() -> usize {
    // Each thread has a stack of its own, at least this far from the next one's, so that the address of a local tells
    // threads apart for nothing, and without anything that belongs to the whole process.
    const STACK_DISTANCE: usize = 1 << 18;
    let local = 0_u8;
    let stack = (&raw const local).addr() / STACK_DISTANCE;
    (stack ^ (stack / STRIPES)) % STRIPES
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One set of counters. Two cache lines are fetched together, so sets are padded to that size.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct CounterSet {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Name and value of each counter.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                let sum = |of: fn(&CounterSet) -> &AtomicU64| {
                    self.sets.iter().map(|set| of(set).load(Ordering::Relaxed)).sum()
                };
                vec![$((stringify!($name), sum(|set| &set.$name))),*]
            }
        }
    };
}

counters!(
    /// Reads of files.
    reads,
    /// Of these, small ones at random that memory answered, past the bookkeeping of tiers.
    reads_from_memory,
    /// Bytes that reads returned.
    bytes_read,
    /// Reads that began anew because the mapping changed under them.
    read_retries,
    /// Reads of several parts, of which the later ones were begun before the first one was waited for.
    reads_of_parts,
    /// Reads that held the mapping because it kept changing.
    read_fallbacks,
    /// Writes to files.
    writes,
    /// Bytes that writes took.
    bytes_written,
    /// Bytes that were to move up at once, because that pays back within seconds.
    bytes_promoted_at_once,
    /// Bytes that were leaving a tier and were to do so at once, for messages that found no space there.
    bytes_hurried_for_messages,
    /// Bytes that were to move to another tier because their own had more to read than it can serve.
    bytes_handed_over,
    /// Times that a file continued to grow on another tier, because its own was full or it is a log.
    tail_switches,
    /// Of these, the times that a log continued to grow on a faster tier.
    tail_switches_of_logs,
    /// Ranges of spread files that were given to another tier than the one before.
    spread_switches,
    /// Writes that waited until a size authority was durably given up.
    spread_switches_awaited,
    /// Ranges of holes that were given to a tier when they were first written.
    spread_holes_filled,
    /// Space reservations (`fallocate`) that were divided among tiers.
    spread_reservations,
    /// Writes that waited until a tier had space for another range.
    spread_waits,
    /// Sizes of spread files put on record.
    spread_floors,
    /// Bytes of long write streams whose writeback began before any caller asked for it.
    stream_bytes_behind,
    /// Bytes on volumes whose kernel collects writes that were begun to be written out as they came.
    collected_bytes_behind,
    /// Ranges brought into memory ahead of a stream.
    ranges_read_ahead,
    /// Times that readers of a spread file kept one of its devices busy for a second.
    windows_of_waiting_readers,
    /// Files that were laid out anew for their readers.
    files_laid_out_for_readers,
    /// Bytes that moved for that.
    bytes_moved_for_readers,
    /// Looks at the page cache of a tier before a promotion.
    page_cache_looks,
    /// Promotions that were left out because the page cache holds the range.
    promotions_spared_by_cache,
    /// Times that existing blocks moved to another tier because an overwrite found no space.
    relocations,
    /// Changes of inline files that were logged at once, because there was no space for another note of them.
    notes_without_room,
    /// Inline files that went from the metadata store to an object.
    inline_moves,
    /// Files opened that the kernel uses directly.
    opens_passed_through,
    /// Files opened for changes through the daemon while a reader uses passthrough.
    opens_beside_passthrough,
    /// Files opened through the daemon, with the page cache.
    opens_cached,
    /// Files opened through the daemon, without it.
    opens_direct,
    /// Leases given to programs.
    leases_given,
    /// Times that the kernel had to forget the pages of a file for a lease.
    leases_with_pages_forgotten,
    /// Times that leases of a file ended because the kernel was about to have pages of it.
    leases_ended_by_pages,
    /// Sizes made exact.
    settles,
    /// Syncs of files.
    file_syncs,
    /// Syncs of files that failed.
    file_sync_failures,
    /// Flushes of the metadata log.
    log_flushes,
    /// Names looked up.
    lookups,
    /// Files, directories and other inodes made.
    creates,
    /// Names removed.
    unlinks,
    /// Names moved.
    renames,
    /// Descriptions written to objects.
    stamps_written,
    /// Descriptions that a tier did not take.
    stamps_failed,
    /// Objects and ranges freed on tiers.
    disowned_freed,
    /// Operations that would have had to wait and were handed back.
    would_block,
    /// Parts of files that a mover began to copy.
    moves_begun,
    /// Parts whose blocks were switched to their new tier.
    moves_committed,
    /// Parts whose copy was given up.
    moves_given_up,
    /// Parts that stopped because an operation wanted the file for itself.
    moves_stopped,
    /// Parts that were written to while they were copied.
    move_conflicts,
    /// Rounds in which blocks that were written meanwhile were copied again.
    move_retries,
    /// Parts that were copied with their writers kept out, because they kept being written.
    move_lock_fallbacks,
    /// Bytes that movers wrote.
    bytes_moved,
    /// Those of them that the file system below copied or shared itself.
    bytes_offloaded,
    /// Jobs parked because they could not go on.
    moves_parked,
    /// Parked jobs that an event woke.
    moves_woken,
);

/// Live counters. Dereferences to the set that the calling thread adds to.
#[derive(Debug, Default)]
pub struct Counters {
    sets: [CounterSet; STRIPES],
}

impl Deref for Counters {
    type Target = CounterSet;

    #[inline]
    fn deref(&self) -> &CounterSet {
        &self.sets[stripe_of_thread()]
    }
}

impl Counters {
    /// Adds one.
    #[inline]
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a number of bytes.
    #[inline]
    pub fn add(counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
