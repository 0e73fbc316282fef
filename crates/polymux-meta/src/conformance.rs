//! The suite that every [`MetadataStore`] passes. Each check gets a store of its own, empty, from `make`.
//!
//! Nothing is assumed beyond the promises of the trait, so that one suite serves every
//! implementation and every wrapper. A broken promise panics with its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use polymux_types::Sequence;

use crate::batch::Batch;
use crate::store::MetadataStore;

/// Runs every check. `make` gives a new, empty store each time.
pub fn run(make: impl Fn() -> Box<dyn MetadataStore>) {
    a_new_store_is_empty(&*make());
    a_committed_value_is_seen_at_once(&*make());
    the_later_change_of_a_batch_counts(&*make());
    removing_what_is_not_there_is_no_error(&*make());
    an_empty_batch_is_no_transaction(&*make());
    a_range_is_half_open_ordered_and_limited(&*make());
    keys_are_ordered_bytewise(&*make());
    values_may_be_empty_or_large(&*make());
    sync_makes_durable_what_it_was_asked_for(&*make());
    concurrent_committers_lose_nothing(&Arc::from(make()));
    a_range_sees_the_changes_of_a_batch_to_one_group_together(&Arc::from(make()));
    concurrent_syncs_all_return_durable(&Arc::from(make()));
}

fn put(store: &dyn MetadataStore, key: &[u8], value: &[u8]) -> Sequence {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(batch).expect("a commit succeeds")
}

fn get(store: &dyn MetadataStore, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).expect("a read succeeds")
}

fn keys(store: &dyn MetadataStore, from: &[u8], to: &[u8], limit: usize) -> Vec<Vec<u8>> {
    store.range(from, to, limit).expect("a range read succeeds").into_iter().map(|(key, _)| key).collect()
}

fn a_new_store_is_empty(store: &dyn MetadataStore) {
    assert_eq!(get(store, b"a"), None);
    assert_eq!(keys(store, &[0], &[0xff; 8], usize::MAX), Vec::<Vec<u8>>::new());
    assert_eq!(store.committed(), store.durable(), "nothing waits to be made durable in a new store");
}

fn a_committed_value_is_seen_at_once(store: &dyn MetadataStore) {
    let first = put(store, b"key", b"one");
    assert_eq!(get(store, b"key").as_deref(), Some(b"one".as_slice()));
    let second = put(store, b"key", b"two");
    assert_eq!(get(store, b"key").as_deref(), Some(b"two".as_slice()));
    assert!(second > first, "a later transaction has a greater sequence");
    assert_eq!(store.committed(), second);
    let mut batch = Batch::new();
    batch.delete(b"key".as_slice());
    store.commit(batch).expect("a commit succeeds");
    assert_eq!(get(store, b"key"), None);
    assert_eq!(keys(store, b"a", b"z", 10), Vec::<Vec<u8>>::new());
}

fn the_later_change_of_a_batch_counts(store: &dyn MetadataStore) {
    put(store, b"replaced", b"old");
    let mut batch = Batch::new();
    batch.put(b"gone".as_slice(), b"x".as_slice());
    batch.delete(b"gone".as_slice());
    batch.delete(b"replaced".as_slice());
    batch.put(b"replaced".as_slice(), b"first".as_slice());
    batch.put(b"replaced".as_slice(), b"last".as_slice());
    store.commit(batch).expect("a commit succeeds");
    assert_eq!(get(store, b"gone"), None, "put then delete leaves nothing");
    assert_eq!(get(store, b"replaced").as_deref(), Some(b"last".as_slice()), "the last put counts");
    assert_eq!(store.range(b"a", b"z", 10).expect("a range read succeeds").len(), 1);
}

fn removing_what_is_not_there_is_no_error(store: &dyn MetadataStore) {
    let before = store.committed();
    let mut batch = Batch::new();
    batch.delete(b"nothing".as_slice());
    let sequence = store.commit(batch).expect("removing a missing key succeeds");
    assert!(sequence > before, "it is a transaction all the same");
}

fn an_empty_batch_is_no_transaction(store: &dyn MetadataStore) {
    let last = put(store, b"a", b"1");
    assert_eq!(store.commit(Batch::new()).expect("an empty commit succeeds"), last);
    assert_eq!(store.committed(), last);
}

fn a_range_is_half_open_ordered_and_limited(store: &dyn MetadataStore) {
    let mut batch = Batch::new();
    for key in ["d", "b", "a", "c", "e"] {
        batch.put(key.as_bytes(), key.as_bytes());
    }
    store.commit(batch).expect("a commit succeeds");
    let expect = |from: &str, to: &str, limit: usize, expected: &[&str]| {
        let found = keys(store, from.as_bytes(), to.as_bytes(), limit);
        let expected: Vec<Vec<u8>> = expected.iter().map(|key| key.as_bytes().to_vec()).collect();
        assert_eq!(found, expected, "range {from}..{to}, at most {limit}");
    };
    expect("b", "d", 10, &["b", "c"]);
    expect("a", "z", 3, &["a", "b", "c"]);
    expect("aa", "dd", 10, &["b", "c", "d"]);
    expect("c", "c", 10, &[]);
    expect("d", "b", 10, &[]);
    expect("a", "z", 0, &[]);
    expect("f", "z", 10, &[]);
    expect("", "c", 10, &["a", "b"]);
    let entries = store.range(b"a", b"b", 10).expect("a range read succeeds");
    assert_eq!(entries, vec![(b"a".to_vec(), b"a".to_vec())], "values come with their keys");
}

fn keys_are_ordered_bytewise(store: &dyn MetadataStore) {
    let sorted: Vec<Vec<u8>> =
        vec![vec![0], vec![0, 0], vec![0, 1], vec![1], vec![0x7f, 0xff], vec![0x80], vec![0xff], vec![0xff, 0]];
    for key in sorted.iter().rev() {
        put(store, key, b"x");
    }
    assert_eq!(keys(store, &[0], &[0xff, 0xff], 100), sorted);
}

fn values_may_be_empty_or_large(store: &dyn MetadataStore) {
    let large: Vec<u8> = (0_u32..300_000).flat_map(u32::to_le_bytes).collect();
    put(store, b"empty", b"");
    put(store, b"large", &large);
    put(store, &[b'k'; 1024], b"long key");
    assert_eq!(get(store, b"empty").as_deref(), Some(b"".as_slice()));
    assert!(get(store, b"large").as_deref() == Some(large.as_slice()), "a value of over a megabyte comes back whole");
    assert_eq!(get(store, &[b'k'; 1024]).as_deref(), Some(b"long key".as_slice()));
}

fn sync_makes_durable_what_it_was_asked_for(store: &dyn MetadataStore) {
    let first = put(store, b"a", b"1");
    let second = put(store, b"b", b"2");
    store.sync(first).expect("a sync succeeds");
    assert!(store.durable() >= first);
    store.sync(second).expect("a sync succeeds");
    assert!(store.durable() >= second);
    assert!(store.durable() <= store.committed());
    store.sync(first).expect("what is durable can be asked for again");
    assert!(store.bytes_used() > 0, "what is durable takes room");
}

const THREADS: u32 = 8;
const COMMITS: u32 = 50;

fn concurrent_committers_lose_nothing(store: &Arc<dyn MetadataStore>) {
    let workers: Vec<_> = (0..THREADS)
        .map(|worker| {
            let store = Arc::clone(store);
            thread::spawn(move || {
                let mut sequences = Vec::new();
                for number in 0..COMMITS {
                    let key = [worker.to_be_bytes(), number.to_be_bytes()].concat();
                    sequences.push(put(&*store, &key, &key));
                    assert_eq!(get(&*store, &key), Some(key.clone()), "a commit is visible when it returns");
                }
                sequences
            })
        })
        .collect();
    let mut sequences = Vec::new();
    for worker in workers {
        let own = worker.join().expect("no worker failed");
        assert!(own.is_sorted(), "sequences grow within a thread");
        sequences.extend(own);
    }
    sequences.sort_unstable();
    sequences.dedup();
    let count = usize::try_from(THREADS * COMMITS).expect("the number of commits fits");
    assert_eq!(sequences.len(), count, "no two transactions share a sequence");
    assert_eq!(store.committed(), sequences[count - 1]);
    assert_eq!(keys(&**store, &[0], &[0xff; 8], usize::MAX).len(), count);
}

fn a_range_sees_the_changes_of_a_batch_to_one_group_together(store: &Arc<dyn MetadataStore>) {
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
        thread::spawn(move || {
            for round in 0_u64..300 {
                let mut batch = Batch::new();
                for key in 0_u8..16 {
                    batch.put([b"one group of keys".as_slice(), &[key]].concat(), round.to_be_bytes());
                }
                store.commit(batch).expect("a commit succeeds");
            }
            stop.store(true, Ordering::Release);
        })
    };
    while !stop.load(Ordering::Acquire) {
        let entries = store.range(b"one group of keys", b"one group of keyt", 100).expect("a range read succeeds");
        assert!(entries.is_empty() || entries.len() == 16, "all keys of a batch are there or none");
        assert!(entries.windows(2).all(|pair| pair[0].1 == pair[1].1), "all values are of one batch");
    }
    writer.join().expect("the writer did not fail");
}

fn concurrent_syncs_all_return_durable(store: &Arc<dyn MetadataStore>) {
    let workers: Vec<_> = (0..THREADS)
        .map(|worker| {
            let store = Arc::clone(store);
            thread::spawn(move || {
                for number in 0..10_u32 {
                    let key = [worker.to_be_bytes(), number.to_be_bytes()].concat();
                    let sequence = put(&*store, &key, b"x");
                    store.sync(sequence).expect("a sync succeeds");
                    assert!(store.durable() >= sequence, "what was synced is durable");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker failed");
    }
    assert_eq!(store.durable(), store.committed());
}
