//! How many requests of each kind came.
//!
//! Invariant: each thread counts for itself, in memory that no other thread writes; a reader adds the counts up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::wire::Opcode;

/// Numbers of all kinds that are known are below this; kind 0 stands for those that are not.
const KINDS: usize = 64;

/// The counts of one thread, aligned to two cache lines, because these are fetched together.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCounters([AtomicU64; KINDS]);

impl ThreadCounters {
    pub(crate) fn count(&self, opcode: u32) {
        let index = usize::try_from(opcode).ok().filter(|index| *index < KINDS).unwrap_or(0);
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }
}

/// How many requests of each kind came over one connection.
#[derive(Debug, Default)]
pub struct MessageCounters {
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl MessageCounters {
    /// The counters of a further thread.
    pub(crate) fn for_thread(&self) -> Arc<ThreadCounters> {
        let counters = Arc::new(ThreadCounters([const { AtomicU64::new(0) }; KINDS]));
        self.threads.lock().push(counters.clone());
        counters
    }

    /// The numbers so far, by the name of the kind; kinds that never came are left out.
    #[must_use]
    pub fn totals(&self) -> BTreeMap<&'static str, u64> {
        let threads = self.threads.lock();
        let total = |kind: usize| threads.iter().map(|thread| thread.0[kind].load(Ordering::Relaxed)).sum::<u64>();
        (0..KINDS)
            .filter_map(|kind| {
                let number = u32::try_from(kind).expect("a small number");
                let name = Opcode::from_number(number).map_or("unknown", Opcode::name);
                let total = total(kind);
                (total > 0).then_some((name, total))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_all_threads_are_added_up_and_unknown_ones_are_one_kind() {
        let counters = MessageCounters::default();
        let (one, two) = (counters.for_thread(), counters.for_thread());
        one.count(Opcode::Lookup.number());
        two.count(Opcode::Lookup.number());
        two.count(Opcode::Write.number());
        two.count(4096);
        two.count(u32::MAX);
        assert_eq!(counters.totals(), BTreeMap::from([("lookup", 2), ("write", 1), ("unknown", 2)]));
    }

    #[test]
    fn every_kind_has_a_counter_of_its_own() {
        for opcode in Opcode::ALL {
            assert!((1..KINDS).contains(&(opcode.number() as usize)));
        }
    }
}
