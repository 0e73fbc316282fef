//! Tests of the table as a whole.

mod keeping;

use std::collections::HashMap;
use std::time::Instant;

use polymux_types::Ino;
use proptest::prelude::*;

use super::*;

const KIB: u64 = 1024;

fn table(memory_bytes: usize, half_life_seconds: u32) -> HeatTable {
    HeatTable::new(HeatOptions { memory_bytes, half_life_seconds })
}

fn read(table: &HeatTable, ino: u64, node: u64, now: u64) {
    table.touch(Ino(ino), node, AccessKind::Read, 4 * KIB, Pattern::Random, now);
}

#[derive(Clone, Debug)]
struct Access {
    node: u64,
    kind: AccessKind,
    seconds_later: u64,
}

fn accesses() -> impl Strategy<Value = Vec<Access>> {
    let kind = prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)];
    let access = (0_u64..4, kind, 0_u64..3000);
    let access = access.prop_map(|(node, kind, seconds_later)| Access { node, kind, seconds_later });
    prop::collection::vec(access, 1..200)
}

proptest! {
    #[test]
    fn heat_is_the_sum_of_all_accesses_each_decayed_by_its_age(accesses in accesses(), half_life in 60_u32..100_000) {
        let table = table(1 << 20, half_life);
        let mut now = 1000;
        let mut told: HashMap<(u64, bool), Vec<u64>> = HashMap::new();
        for access in &accesses {
            now += access.seconds_later;
            table.touch(Ino(9), access.node, access.kind, 4096, Pattern::Random, now);
            told.entry((access.node, access.kind == AccessKind::Read)).or_default().push(now);
        }
        for node in 0..4 {
            let found = table.node(Ino(9), node, now);
            for (is_read, found) in [(true, found.reads), (false, found.writes)] {
                let times = told.get(&(node, is_read)).cloned().unwrap_or_default();
                let age = |time: &u64| f64::from(u32::try_from(now - time).unwrap());
                let exact: f64 = times.iter().map(|time| 256.0 * (-age(time) / f64::from(half_life)).exp2()).sum();
                // Half a unit, of which an access has 256, may be lost with each access of the node.
                let slack = 0.51 * accesses.len() as f64 + exact * 1e-5;
                prop_assert!((f64::from(found) - exact).abs() <= slack, "{found} is not {exact}");
            }
            prop_assert_eq!(found.heat, found.reads + found.writes);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn memory_is_bounded_and_hot_nodes_outlive_a_flood_of_new_ones(seed: u64) {
        let memory_bytes = 256 << 10;
        let table = table(memory_bytes, 3600);
        for round in 0..20 {
            (0..100).for_each(|node| read(&table, 5, node, 10 + round));
        }
        for number in 0..50_000_u64 {
            read(&table, seed.wrapping_add(number) | 1 << 63, number % 3, 40);
        }
        let counters = table.counters();
        prop_assert!(counters.memory_bytes <= memory_bytes as u64, "{counters:?}");
        let entry_bytes = counters.entries * 32;
        prop_assert!(entry_bytes <= memory_bytes as u64 && entry_bytes >= memory_bytes as u64 * 9 / 10);
        prop_assert!(counters.evictions >= 50_000 - counters.entries);
        let kept = (0..100).filter(|node| table.node(Ino(5), *node, 40).visits > 2).count();
        prop_assert_eq!(kept, 100);
    }
}

#[test]
fn a_large_read_that_the_kernel_cuts_up_is_one_access_and_one_visit() {
    let (table, streams) = (table(1 << 20, 3600), StreamTable::default());
    for (piece, now) in [(0, 99), (1, 99), (2, 99), (3, 100), (4, 100), (5, 101)] {
        let pattern = streams.pattern(Ino(3), piece * 128 * KIB, 128 * KIB);
        table.touch(Ino(3), 0, AccessKind::Read, 128 * KIB, pattern, now);
    }
    let found = table.node(Ino(3), 0, 101);
    assert_eq!((found.visits, found.heat), (1, HEAT_ONE));
    assert_eq!(table.take_hot(10), []);
    assert!(found.sequential_percent > 30, "{found:?}");
}

#[test]
fn the_second_visit_makes_a_node_hot_and_it_is_told_of_once() {
    let table = table(1 << 20, 3600);
    for _ in 0..100 {
        read(&table, 3, 7, 50);
    }
    assert_eq!(table.take_hot(10), [], "all in one second are one visit");
    read(&table, 3, 7, 51);
    read(&table, 3, 7, 52);
    assert_eq!(table.take_hot(10), [(Ino(3), 7)]);
    read(&table, 3, 7, 60);
    assert_eq!(table.take_hot(10), []);
    table.tell_again(Ino(3), 7);
    read(&table, 3, 7, 61);
    assert_eq!(table.take_hot(10), [(Ino(3), 7)]);
    // It cools, and warms up again.
    read(&table, 3, 7, 61 + 40 * 3600);
    assert_eq!(table.take_hot(10), []);
    read(&table, 3, 7, 62 + 40 * 3600);
    assert_eq!(table.take_hot(10), [(Ino(3), 7)]);
    assert_eq!(table.counters().hot_waiting, 0);
}

#[test]
fn an_access_an_age_after_the_last_one_is_a_first_one_again() {
    let table = table(1 << 20, 60);
    read(&table, 3, 7, 1000);
    read(&table, 3, 7, 1000 + 60);
    assert_eq!(table.node(Ino(3), 7, 1060).visits, 1);
    read(&table, 3, 7, 1061);
    assert_eq!(table.node(Ino(3), 7, 1061).visits, 2);
}

#[test]
fn more_hot_nodes_than_the_queues_hold_are_told_of_when_they_are_touched_again() {
    let table = table(32 << 20, 3600);
    let nodes = 60_000;
    let mut found = std::collections::HashSet::new();
    for round in 0..8 {
        (0..nodes).for_each(|node| read(&table, 3, node, 100 + round));
        let taken = table.take_hot(usize::MAX);
        assert!(taken.len() <= 64 * 256, "the queues are bounded");
        for node in taken {
            assert!(found.insert(node), "{node:?} is told of twice");
        }
    }
    assert_eq!(found.len() as u64, nodes);
}

#[test]
fn a_file_is_as_hot_as_its_nodes_and_a_small_one_has_one_entry() {
    let table = table(1 << 20, 3600);
    for node in 0..10 {
        read(&table, 3, node, 50);
    }
    assert_eq!(table.file(Ino(3), 50).heat, 10 * HEAT_ONE);
    assert_eq!(table.counters().entries, 11);
    read(&table, 4, 0, 50);
    assert_eq!(table.counters().entries, 12);
    assert_eq!((table.file(Ino(4), 3650).heat, table.file(Ino(4), 3650).idle_seconds), (HEAT_ONE / 2, 3600));
    table.forget(Ino(3), 10);
    assert_eq!(table.counters().entries, 1);
    assert_eq!(table.file(Ino(3), 77), NodeHeat { idle_seconds: 77, ..NodeHeat::default() });
}

#[test]
fn a_log_that_syncs_each_write_is_told_from_a_copy_that_syncs_once() {
    let table = table(1 << 20, 3600);
    for second in 0..20 {
        table.touch(Ino(3), 0, AccessKind::Write, 4096, Pattern::Sequential, 100 + 2 * second);
        table.note_synced(Ino(3));
    }
    for node in 0..200 {
        table.touch(Ino(4), node, AccessKind::Write, 4096, Pattern::Sequential, 100);
    }
    table.note_synced(Ino(4));
    assert_eq!(table.file(Ino(3), 140).sync_percent, 100);
    assert!(table.node(Ino(4), 20, 140).sync_percent <= 1);
    assert_eq!(table.node(Ino(4), 20, 140).sequential_percent, 100);
}

#[test]
fn moves_are_remembered_also_of_cold_nodes_but_push_nothing_warm_out() {
    let table = table(16 << 10, 3600);
    for ino in 1..2000 {
        read(&table, ino, 0, 50);
    }
    let before = table.counters();
    table.note_moved(Ino(9999), 0..1000, 60);
    assert_eq!(table.counters().evictions, before.evictions);
    let other = self::table(1 << 20, 3600);
    other.note_moved(Ino(7), 3..5, 60);
    read(&other, 7, 4, 80);
    assert_eq!(other.node(Ino(7), 3, 100).moved_seconds_ago, Some(40));
    assert_eq!((other.node(Ino(7), 3, 100).heat, other.node(Ino(7), 3, 100).idle_seconds), (0, 100));
    assert_eq!((other.node(Ino(7), 4, 100).heat > 0, other.node(Ino(7), 5, 100).moved_seconds_ago), (true, None));
}

#[test]
fn a_walk_in_pages_meets_every_node_once_also_while_the_table_grows() {
    let table = table(4 << 20, 3600);
    (1..3000).for_each(|ino| read(&table, ino, ino % 5, 50));
    let mut seen = HashMap::new();
    let (mut cursor, mut grown) = (Some(HeatCursor::default()), 10_000);
    while let Some(at) = cursor {
        cursor = table.for_each_after(at, 100, 50, |ino, node, heat| {
            assert_eq!(heat.heat, HEAT_ONE);
            *seen.entry((ino, node)).or_insert(0) += 1;
        });
        (grown..grown + 50).for_each(|ino| read(&table, ino, 0, 50));
        grown += 50;
    }
    assert!((1..3000).all(|ino| seen.get(&(Ino(ino), ino % 5)) == Some(&1)));
    assert!(seen.values().all(|count| *count == 1));
}

/// `cargo test --release -p polymux-fs --lib touch_cost -- --ignored --nocapture`
#[test]
#[ignore = "it measures, and proves nothing"]
fn touch_cost() {
    for (name, nodes, files) in [
        ("one node", 1_u64, 1_u64),
        ("a file of 2 GiB", 1000, 1),
        ("small files", 1, 100_000),
        ("a million nodes", 1_000_000, 1),
    ] {
        let (table, streams) = (table(32 << 20, 3600), StreamTable::default());
        let count = 4_000_000_u64;
        for is_timed in [false, true] {
            let began = Instant::now();
            for number in 0..count {
                let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                let (ino, node) = (Ino(1 + place % files), place % nodes);
                let pattern = streams.pattern(ino, node << 21, 4096);
                table.touch(ino, node, AccessKind::Read, 4096, pattern, 100 + number / 100_000);
            }
            if is_timed {
                println!("{name}: {} ns for pattern and touch", began.elapsed().as_nanos() / u128::from(count));
            }
        }
        println!("{name}: {:?}", table.counters());
    }
}
