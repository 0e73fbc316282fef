//! Counters of the file system; always on, shown by `status`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Name and value of each counter.
            pub(crate) fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed))),*]
            }
        }
    };
}

counters!(
    /// Reads of files.
    reads,
    /// Bytes that reads returned.
    bytes_read,
    /// Reads that began anew because the mapping changed under them.
    read_retries,
    /// Reads that held the mapping because it kept changing.
    read_fallbacks,
    /// Writes to files.
    writes,
    /// Bytes that writes took.
    bytes_written,
    /// Times that a file went on growing on another tier because its own had no room.
    tail_switches,
    /// Times that existing blocks moved to another tier because an overwrite found no room.
    relocations,
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
    /// Objects and ranges freed on tiers.
    disowned_freed,
    /// Operations that would have had to wait and were handed back.
    would_block,
);

impl Counters {
    /// Adds one.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a number of bytes.
    pub(crate) fn add(counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
