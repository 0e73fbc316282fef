//! Heat in the store: the state that survives a stop, a crash, a deletion.

use std::sync::Arc;
use std::time::Duration;

use polymux_meta::{Batch, MetadataStore};
use polymux_records::store::{InodeBody, InodeRecord, Metadata, keys};
use polymux_sim::MemoryStore;
use polymux_types::{TierId, Timestamp};

use super::*;

fn store() -> (Arc<MemoryStore>, Metadata) {
    let store = Arc::new(MemoryStore::new());
    (store.clone(), Metadata::new(store))
}

fn put_inodes(metadata: &Metadata, inos: impl Iterator<Item = u64>) {
    let mut batch = Batch::new();
    for ino in inos {
        let time = Timestamp::default();
        let record = InodeRecord {
            permissions: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            generation: 1,
            has_access_acl: false,
            has_default_acl: false,
            lacks_xattrs: true,
            attribute_flags: 0,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
            body: InodeBody::Symlink { target: b"x".to_vec() },
        };
        let mut bytes = Vec::new();
        record.encode_into(&mut bytes);
        batch.put(keys::inode(Ino(ino)), bytes);
    }
    metadata.commit(batch).expect("the store takes records");
}

fn records(metadata: &Metadata) -> usize {
    metadata.heat_records(None, usize::MAX).expect("records can be read").len()
}

/// A clock that stands at a second.
fn at(seconds: u64) -> LogicalClock {
    LogicalClock::new(seconds, Duration::ZERO)
}

fn steps_until_restored(table: &HeatTable, metadata: &Metadata, clock: &LogicalClock, limit: usize) -> usize {
    let mut steps = 1;
    while table.step(metadata, clock, limit).expect("a step works").has_more {
        steps += 1;
    }
    steps
}

#[test]
fn heat_survives_saving_and_bringing_back_exactly() {
    let (_, metadata) = store();
    put_inodes(&metadata, 2..400);
    let before = table(1 << 20, 3600);
    for second in 0..5 {
        for ino in 2..400 {
            read(&before, ino, 0, 100 + second * 7);
            before.touch(Ino(ino), ino * 3, AccessKind::Write, 4096, Pattern::Sequential, 100 + second * 7);
        }
        before.note_synced(Ino(3));
    }
    before.note_moved(Ino(5), 0..16, 130);
    assert!(before.save_all(&metadata, 140).expect("heat is saved") > 398);
    let after = table(1 << 20, 3600);
    let steps = steps_until_restored(&after, &metadata, &at(5000), 50);
    assert!(steps > 10, "each step is bounded");
    for ino in 2..400 {
        assert_eq!(after.node(Ino(ino), 0, 5000), before.node(Ino(ino), 0, 5000));
        assert_eq!(after.node(Ino(ino), ino * 3, 5000), before.node(Ino(ino), ino * 3, 5000));
        assert_eq!(after.file(Ino(ino), 5000), before.file(Ino(ino), 5000));
    }
}

#[test]
fn touches_before_the_first_pass_is_over_are_added_to_what_was_saved() {
    let (_, metadata) = store();
    put_inodes(&metadata, 2..10);
    let before = table(1 << 20, 3600);
    (0..4).for_each(|second| read(&before, 5, 3, 100 + second));
    before.save_all(&metadata, 110).expect("heat is saved");
    let after = table(1 << 20, 3600);
    read(&after, 5, 3, 120);
    read(&after, 5, 4, 120);
    assert_eq!(after.save_all(&metadata, 121).expect("heat is saved"), 2);
    let found = after.node(Ino(5), 3, 121);
    assert_eq!(found.visits, 5);
    assert!(found.heat > 9 * HEAT_ONE / 2 && found.heat <= 5 * HEAT_ONE);
    let again = table(1 << 20, 3600);
    again.restore_all(&metadata, 121).expect("heat comes back");
    assert_eq!(again.node(Ino(5), 3, 121), found);
}

#[test]
fn files_used_once_get_no_record_and_unchanged_ones_no_second_one() {
    let (store, metadata) = store();
    put_inodes(&metadata, 2..3000);
    let table = table(1 << 20, 3600);
    (2..3000).for_each(|ino| read(&table, ino, 0, 100));
    assert_eq!(table.save_all(&metadata, 101).expect("heat is saved"), 0);
    (2..100).for_each(|ino| read(&table, ino, 0, 102));
    let committed = store.committed();
    assert_eq!(table.save_all(&metadata, 103).expect("heat is saved"), 98);
    assert!(store.committed() > committed);
    assert_eq!(table.save_all(&metadata, 103).expect("heat is saved"), 0);
    assert_eq!(records(&metadata), 98);
}

#[test]
fn steps_save_what_changed_a_bounded_number_at_a_time() {
    let (_, metadata) = store();
    put_inodes(&metadata, 2..1000);
    let (table, clock) = (table(1 << 20, 3600), at(200));
    steps_until_restored(&table, &metadata, &clock, 50);
    for second in 0..2 {
        (2..1000).for_each(|ino| read(&table, ino, 0, 200 + second));
    }
    let mut saved = 0;
    for _ in 0..1000 {
        let step = table.step(&metadata, &clock, 50).expect("a step works");
        assert!(step.saved <= 50 + 8, "{step:?}");
        saved += step.saved;
    }
    assert_eq!((saved, records(&metadata)), (998, 998));
}

/// It was a transaction for nearly every read that a device served.
#[test]
fn nodes_that_are_read_on_and_on_are_saved_every_five_minutes() {
    let (_, metadata) = store();
    put_inodes(&metadata, 2..100);
    let table = table(1 << 20, 3600);
    steps_until_restored(&table, &metadata, &at(1000), 50);
    let saved = |from: u64, to: u64| -> usize {
        let of_second = |second| {
            (2..100).for_each(|ino| read(&table, ino, 0, second));
            (0..5).map(|_| table.step(&metadata, &at(second), 50).expect("a step works").saved).sum::<usize>()
        };
        (from..to).map(of_second).sum()
    };
    assert!(saved(1000, 1290) <= 98, "each node once at the most");
    assert_eq!(saved(1290, 1299), 0);
    assert_eq!(saved(1299, 1590), 98, "a sweep of several steps comes to its end");
    assert_eq!(table.save_all(&metadata, 1590).expect("heat is saved"), 98, "at the end of the mount all are saved");
}

#[test]
fn records_of_cold_nodes_and_of_files_that_are_gone_go() {
    let (_, metadata) = store();
    put_inodes(&metadata, 2..100);
    let before = table(1 << 20, 600);
    for second in 0..3 {
        (2..100).for_each(|ino| read(&before, ino, 0, 100 + second));
    }
    before.save_all(&metadata, 103).expect("heat is saved");
    let mut batch = Batch::new();
    (2..50).for_each(|ino| batch.delete(keys::inode(Ino(ino))));
    batch.put(keys::heat(Ino(60), 0), b"damaged");
    metadata.commit(batch).expect("the store takes it");
    let after = table(1 << 20, 600);
    steps_until_restored(&after, &metadata, &at(110), 20);
    assert_eq!(records(&metadata), 49);
    assert_eq!(after.node(Ino(10), 0, 110).heat, 0);
    assert!(after.node(Ino(70), 0, 110).heat > 2 * HEAT_ONE);
    for _ in 0..100 {
        after.step(&metadata, &at(110 + 6000), 20).expect("a step works");
    }
    assert_eq!(records(&metadata), 0);
}

#[test]
fn a_deleted_file_gets_no_new_record() {
    let (_, metadata) = store();
    let table = table(1 << 20, 600);
    (0..3).for_each(|second| read(&table, 8, 0, 100 + second));
    assert_eq!(table.save_all(&metadata, 103).expect("heat is saved"), 0);
    assert_eq!(records(&metadata), 0);
}

#[test]
fn the_logical_clock_goes_on_where_it_was_saved() {
    let (_, metadata) = store();
    let (clock, promoted) = LogicalClock::resume(&metadata, Duration::from_secs(1000)).expect("a clock");
    assert_eq!((clock.now(), promoted), (0, vec![]));
    clock.advance(Duration::from_millis(1_090_900));
    clock.advance(Duration::from_secs(1050));
    assert_eq!((clock.now(), clock.is_save_due()), (90, true));
    clock.save(&metadata, &[(TierId(1), 5)]).expect("the clock is saved");
    assert!(!clock.is_save_due());
    let (clock, promoted) = LogicalClock::resume(&metadata, Duration::from_secs(1 << 30)).expect("a clock");
    assert_eq!((clock.now(), promoted), (90, vec![(TierId(1), 5)]), "what passed meanwhile does not count");
    clock.advance(Duration::from_secs((1 << 30) + 5));
    assert_eq!(clock.now(), 95);
}
