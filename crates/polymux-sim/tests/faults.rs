//! A faulty tier fails exactly where a test requested it.

use std::sync::Arc;

use polymux_sim::{FaultyTier, MemoryTier, OperationKind};
use polymux_tier::{AllocateMode, ObjectRef, Tier, TierError, Wait};
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Bucket, Errno, ObjectId};

const BLOCK: usize = 4096;
const OBJECT: ObjectRef = ObjectRef::new(ObjectId(1), Bucket(0));

fn tiers() -> (Arc<MemoryTier>, FaultyTier) {
    let memory = Arc::new(MemoryTier::new("memory", 1 << 20));
    let faulty = FaultyTier::new(memory.clone());
    faulty.create(OBJECT).expect("an object is made");
    (memory, faulty)
}

fn write(tier: &dyn Tier, offset: u64, data: &[u8]) -> Result<usize, TierError> {
    tier.write(OBJECT, offset, data, Wait::Allowed)
}

#[test]
fn a_counted_failure_hits_as_many_operations_of_its_kind_and_no_more() {
    let (_, tier) = tiers();
    let error = TierError::Io { operation: "writing", errno: Errno::EIO };
    tier.fail_next(OperationKind::Write, 2, error.clone());
    tier.stat(OBJECT).expect("another kind is let through");
    assert_eq!(write(&tier, 0, b"a"), Err(error.clone()));
    assert_eq!(write(&tier, 0, b"a"), Err(error));
    assert_eq!(tier.stat(OBJECT).expect("an object has a stat").size, 0, "a failed write had an effect");
    assert_eq!(write(&tier, 0, b"a"), Ok(1));
}

#[test]
fn a_lasting_failure_ends_with_healing() {
    let (_, tier) = tiers();
    tier.fail_always(OperationKind::Create, TierError::ReadOnly);
    let other = ObjectRef::new(ObjectId(2), Bucket(0));
    assert_eq!(tier.create(other), Err(TierError::ReadOnly));
    assert_eq!(tier.create(other), Err(TierError::ReadOnly));
    tier.heal();
    tier.create(other).expect("a healed tier works");
}

#[test]
fn a_vanished_tier_fails_everything_and_comes_back_as_it_was() {
    let (_, tier) = tiers();
    write(&tier, 0, b"kept").expect("a write succeeds");
    tier.vanish();
    tier.heal();
    assert!(matches!(tier.stat(OBJECT), Err(TierError::Io { errno: Errno::EIO, .. })));
    assert!(matches!(tier.sync_all(), Err(TierError::Io { errno: Errno::EIO, .. })));
    assert!(matches!(tier.read_label(), Err(TierError::Io { errno: Errno::EIO, .. })));
    tier.come_back();
    assert_eq!(tier.stat(OBJECT).expect("an object has a stat").size, 4);
}

#[test]
fn limited_room_cuts_a_write_at_a_block_and_then_refuses() {
    let (_, tier) = tiers();
    tier.room(Some(3 * BLOCK_SIZE));
    assert_eq!(write(&tier, 10, &[1; BLOCK]), Ok(BLOCK), "within the limit");
    assert_eq!(tier.space().expect("a tier knows its room").free, BLOCK_SIZE);
    assert_eq!(write(&tier, 2 * BLOCK_SIZE, &[1; 4 * BLOCK]), Ok(BLOCK), "beyond the limit");
    assert_eq!(write(&tier, 9 * BLOCK_SIZE, &[1]), Err(TierError::NoSpace));
    assert_eq!(tier.allocate(OBJECT, 9 * BLOCK_SIZE, 1, AllocateMode::KeepSize), Err(TierError::NoSpace));
    assert_eq!(write(&tier, 0, &[2; 3 * BLOCK]), Ok(3 * BLOCK), "an overwrite needs no room");
    tier.room(None);
    assert_eq!(write(&tier, 9 * BLOCK_SIZE, &[1]), Ok(1));
}

#[test]
fn a_failed_sync_can_lose_the_bytes_that_it_should_have_written() {
    let (memory, tier) = tiers();
    write(&tier, 0, &[1; BLOCK]).expect("a write succeeds");
    tier.sync(OBJECT).expect("an object is made durable");
    write(&tier, 0, &[2; 2 * BLOCK]).expect("a write succeeds");
    let hook = memory.clone();
    tier.on_failed_sync(move |object| hook.lose_unsynced(object));
    tier.fail_next(OperationKind::Sync, 1, TierError::Io { operation: "syncing", errno: Errno::EIO });
    tier.sync(OBJECT).expect_err("the sync was made to fail");
    let mut buffer = vec![9; 2 * BLOCK];
    assert_eq!(tier.read(OBJECT, 0, &mut buffer, Wait::Allowed), Ok(2 * BLOCK), "the size stays");
    assert_eq!(buffer, [vec![1; BLOCK], vec![0; BLOCK]].concat());
    tier.sync(OBJECT).expect("the next sync succeeds, as the kernel's would");
}

#[test]
fn a_dropped_write_claims_success_and_changes_nothing() {
    let (memory, tier) = tiers();
    tier.drop_every_nth_write(2);
    assert_eq!(write(&tier, 0, b"aaaa"), Ok(4));
    assert_eq!(write(&tier, 0, b"bbbb"), Ok(4));
    let mut buffer = [0; 4];
    memory.read(OBJECT, 0, &mut buffer, Wait::Allowed).expect("a read succeeds");
    assert_eq!(&buffer, b"aaaa");
}
