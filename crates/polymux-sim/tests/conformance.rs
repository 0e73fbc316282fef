//! Everything simulated passes the suite of the real thing.

use std::sync::Arc;

use polymux_sim::{FaultyTier, MemoryStore, MemoryTier};
use polymux_tier::Tier;

const CAPACITY: u64 = 256 << 20;

#[test]
fn a_memory_tier_keeps_every_promise() {
    polymux_tier::conformance::run(|| Box::new(MemoryTier::new("memory", CAPACITY)) as Box<dyn Tier>);
}

#[test]
fn a_faulty_tier_without_faults_is_transparent() {
    polymux_tier::conformance::run(|| {
        Box::new(FaultyTier::new(Arc::new(MemoryTier::new("memory", CAPACITY)))) as Box<dyn Tier>
    });
}

#[test]
fn a_faulty_tier_with_ample_room_is_transparent() {
    polymux_tier::conformance::run(|| {
        let tier = FaultyTier::new(Arc::new(MemoryTier::new("memory", CAPACITY)));
        tier.room(Some(CAPACITY));
        Box::new(tier) as Box<dyn Tier>
    });
}

#[test]
#[should_panic(expected = "a whole object")]
fn a_tier_that_drops_writes_is_found_out() {
    let tier = FaultyTier::new(Arc::new(MemoryTier::new("memory", CAPACITY)));
    tier.drop_every_nth_write(1);
    polymux_tier::conformance::bytes_read_back_and_the_end_cuts_reads(&tier);
}

#[test]
fn a_memory_store_keeps_every_promise() {
    polymux_meta::conformance::run(|| Box::new(MemoryStore::new()));
}
