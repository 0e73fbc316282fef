//! Counters of a tier's operations; always on, read by `status`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters, added to with relaxed atomics.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Copies all counters; each is exact, together they are a moment's blur.
            #[must_use]
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl CounterSnapshot {
            /// Name and value of each counter, in order of declaration.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters!(
    /// Reads that were carried out.
    reads,
    /// Bytes read.
    bytes_read,
    /// Writes that were carried out.
    writes,
    /// Bytes written.
    bytes_written,
    /// Reads or writes that were not carried out because they would have waited.
    would_block,
    /// Queries for the size, the space and the times of an object.
    looks,
    /// Objects made.
    creates,
    /// Objects removed.
    removes,
    /// Sizes set.
    truncates,
    /// Ranges reserved.
    allocates,
    /// Ranges made holes.
    punches,
    /// Objects made durable.
    syncs,
    /// Syncs of the whole tier.
    syncs_all,
    /// Syncs that failed.
    sync_failures,
    /// Operations refused because space ran out.
    no_space,
    /// Operations that failed for any other reason.
    errors,
    /// Descriptors opened.
    descriptors_opened,
    /// Descriptors synced only because the cache had to close them.
    descriptors_synced_early,
);

impl Counters {
    /// Adds one.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a number of bytes.
    pub fn add(counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
