//! A crash of a simulated medium leaves durable data, and nothing else.

use polymux_meta::{Batch, MetadataStore, Sequence, StoreError};
use polymux_sim::{MemoryStore, MemoryTier};
use polymux_tier::{ObjectRef, Tier, TierError, Wait};
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Bucket, ObjectId};

const BLOCK: usize = 4096;

fn object(id: u64) -> ObjectRef {
    ObjectRef::new(ObjectId(id), Bucket(3))
}

fn written(tier: &MemoryTier, id: u64, byte: u8, blocks: usize) -> ObjectRef {
    if tier.stat(object(id)).is_err() {
        tier.create(object(id)).expect("an object is made");
    }
    let data = vec![byte; blocks * BLOCK];
    assert_eq!(tier.write(object(id), 0, &data, Wait::Allowed), Ok(data.len()));
    object(id)
}

fn contents(tier: &MemoryTier, object: ObjectRef) -> Vec<u8> {
    let mut buffer = vec![0xee; 64 * BLOCK];
    let count = tier.read(object, 0, &mut buffer, Wait::Allowed).expect("a read succeeds");
    buffer.truncate(count);
    buffer
}

#[test]
fn an_object_that_was_never_synced_is_gone() {
    let tier = MemoryTier::new("memory", 1 << 20);
    let lost = written(&tier, 1, 1, 2);
    tier.crash();
    assert_eq!(tier.stat(lost), Err(TierError::NotFound(lost.id)));
    assert_eq!(tier.list(lost.bucket), Ok(vec![]));
    assert_eq!(tier.space().expect("a tier knows its room").used, 0, "lost objects still take room");
}

#[test]
fn a_crash_takes_back_bytes_and_size_to_the_last_sync() {
    let tier = MemoryTier::new("memory", 1 << 20);
    let kept = written(&tier, 1, 1, 2);
    tier.sync(kept).expect("an object is made durable");
    written(&tier, 1, 2, 5);
    tier.crash();
    assert_eq!(contents(&tier, kept), vec![1; 2 * BLOCK]);
    tier.truncate(kept, 10).expect("an object is cut");
    tier.crash();
    assert_eq!(contents(&tier, kept), vec![1; 2 * BLOCK], "a cut without a sync survived");
    tier.punch(kept, 0, BLOCK_SIZE).expect("a hole is punched");
    tier.sync_all().expect("the tier is made durable");
    tier.crash();
    assert_eq!(contents(&tier, kept), [vec![0; BLOCK], vec![1; BLOCK]].concat());
    assert_eq!(tier.space().expect("a tier knows its room").used, BLOCK_SIZE);
}

#[test]
fn a_removal_survives_only_after_a_sync_of_the_tier() {
    let tier = MemoryTier::new("memory", 1 << 20);
    let kept = written(&tier, 1, 1, 1);
    tier.sync(kept).expect("an object is made durable");
    tier.remove(kept).expect("an object is removed");
    tier.crash();
    assert_eq!(contents(&tier, kept), vec![1; BLOCK], "the removal survived without a sync");
    tier.remove(kept).expect("an object is removed");
    tier.sync_all().expect("the tier is made durable");
    tier.crash();
    assert_eq!(tier.stat(kept), Err(TierError::NotFound(kept.id)), "a durable removal was undone");
}

#[test]
fn pages_that_happened_to_be_written_back_survive_a_crash_and_nothing_else() {
    let tier = MemoryTier::new("memory", 1 << 20);
    let kept = written(&tier, 1, 1, 3);
    tier.sync(kept).expect("an object is made durable");
    written(&tier, 1, 2, 4);
    tier.crash_keeping(|_, block| block != 1);
    assert_eq!(contents(&tier, kept), [vec![2; BLOCK], vec![1; BLOCK], vec![2; BLOCK]].concat());
}

#[test]
fn a_full_tier_writes_whole_blocks_and_then_refuses() {
    let tier = MemoryTier::new("memory", 3 * BLOCK_SIZE);
    tier.create(object(1)).expect("an object is made");
    assert_eq!(tier.write(object(1), 100, &[1; 5 * BLOCK], Wait::Allowed), Ok(3 * BLOCK - 100));
    assert_eq!(tier.write(object(1), 3 * BLOCK_SIZE, &[1], Wait::Allowed), Err(TierError::NoSpace));
    assert_eq!(tier.write(object(1), 0, &[2; 3 * BLOCK], Wait::Allowed), Ok(3 * BLOCK), "an overwrite needs no room");
    tier.punch(object(1), 0, BLOCK_SIZE).expect("a hole is punched");
    assert_eq!(tier.write(object(1), 9 * BLOCK_SIZE, &[1], Wait::Allowed), Ok(1), "punched room is free again");
}

fn put(store: &MemoryStore, key: u8) -> Sequence {
    let mut batch = Batch::new();
    batch.put([key], [key]);
    store.commit(batch).expect("a commit succeeds")
}

fn keys(store: &MemoryStore) -> Vec<u8> {
    let entries = store.range(&[0], &[0xff], 100).expect("a range read succeeds");
    entries.into_iter().map(|(key, _)| key[0]).collect()
}

#[test]
fn a_crash_of_a_store_keeps_a_prefix_that_holds_everything_synced() {
    let store = MemoryStore::new();
    let sequences: Vec<_> = (1..=5).map(|key| put(&store, key)).collect();
    store.sync(sequences[1]).expect("a sync succeeds");
    store.crash_keeping(1);
    assert_eq!(keys(&store), [1, 2, 3]);
    assert_eq!((store.committed(), store.durable()), (sequences[2], sequences[2]));
    put(&store, 9);
    store.crash();
    assert_eq!(keys(&store), [1, 2, 3]);
    put(&store, 7);
    store.crash_keeping(100);
    assert_eq!(keys(&store), [1, 2, 3, 7]);
}

#[test]
fn a_poisoned_store_fails_until_it_is_opened_again() {
    let store = MemoryStore::new();
    let error = StoreError::Poisoned("a test".to_owned());
    store.poison(error.clone());
    assert_eq!(store.get(b"a"), Err(error.clone()));
    assert_eq!(store.commit(Batch::new()), Err(error));
    store.crash();
    assert_eq!(store.get(b"a"), Ok(None));
}
