//! Damage to records of the volume as a whole, to labels, and records that cannot be read.

use std::collections::BTreeSet;

use polymux_fs::{CheckMode, FileSystem, RECORD_KINDS};
use polymux_records::parts::BootId;
use polymux_records::store::{Unreadable, boot_format, unreadable_record};
use polymux_types::Ino;

use super::cases::{left, noted, repaired};
use super::raw;
use super::world::{FAST, SLOW, World, content, cookie, errors, get, ino};

pub const KINDS: [&str; 15] = [
    "volume-record",
    "epoch-record",
    "tier-record",
    "tier-stale",
    "tier-newer",
    "tier-missing",
    "tier-standing",
    "tier-name",
    "record-unreadable",
    "key-unknown",
    "value-stray",
    "number-range",
    "inode-number",
    "object-number",
    "object-mark",
];

fn number(letter: u8) -> Vec<u8> {
    raw::key(b'n', &[], &[letter])
}

#[test]
fn the_volume_record_is_written_anew_from_the_labels() {
    repaired("volume-record", None, |world: &World| {
        world.plant(|_, batch| batch.delete(raw::key(b'V', &[], &[])));
    });
    repaired("volume-record", None, |world| {
        world.plant(|_, batch| batch.put(raw::key(b'V', &[], &[]), b"garbage"));
    });
}

#[test]
fn the_epoch_record_is_written_anew_from_the_labels() {
    repaired("epoch-record", None, |world| world.plant(|_, batch| batch.delete(raw::key(b'E', &[], &[]))));
}

#[test]
fn the_record_of_a_tier_is_written_anew_from_its_label() {
    let contents = repaired("tier-record", None, |world| {
        world.plant(|_, batch| batch.put(raw::tier(SLOW), b"garbage"));
    });
    assert!(contents["/split"].is_ok());
}

/// The epoch in the record of a tier, which has a name of four letters.
const TIER_EPOCH: usize = 1 + 4 + 4 + 8;

fn with_tier_epoch(world: &World, change: impl Fn(u64) -> u64) {
    world.plant(|store, batch| {
        let record = get(store, &raw::tier(SLOW));
        let epoch = change(raw::number(&record, TIER_EPOCH));
        batch.put(raw::tier(SLOW), raw::edited(&record, TIER_EPOCH, &epoch.to_le_bytes()));
    });
}

#[test]
fn a_tier_with_an_old_label_is_not_used() {
    left("tier-stale", None, |world| with_tier_epoch(world, |epoch| epoch + 5));
}

#[test]
fn metadata_older_than_a_tier_is_not_repaired() {
    let world = World::new();
    with_tier_epoch(&world, |epoch| epoch - 1);
    world.plant(|store, batch| batch.delete(raw::inode(ino(store, "/empty"))));
    let before = world.records();
    let report = world.check(CheckMode::Repair);
    assert_eq!(report.counts["tier-newer"], 1);
    assert_eq!((report.corrected, report.left), (0, 1), "{:?}", errors(&report));
    assert!(report.correctable > 0);
    assert_eq!(world.records(), before);
}

#[test]
fn a_tier_that_is_not_there_is_noted_and_its_objects_are_no_findings() {
    noted("tier-missing", None, |world| {
        let path = world.tier_path("slow");
        std::fs::rename(&path, path.with_extension("away")).expect("it is moved");
    });
}

#[test]
fn a_tier_that_holds_files_does_not_join() {
    repaired("tier-standing", None, |world| {
        world.plant(|store, batch| {
            let record = get(store, &raw::tier(SLOW));
            let mut body = record[..record.len() - 4].to_vec();
            body[0] = 2;
            body.push(2);
            batch.put(raw::tier(SLOW), raw::seal(body));
        });
    });
}

#[test]
fn a_tier_under_another_name_is_reported() {
    left("tier-name", None, |world| {
        world.plant(|store, batch| {
            let record = get(store, &raw::tier(FAST));
            batch.put(raw::tier(FAST), raw::edited(&record, 5, b"last"));
        });
    });
}

#[test]
fn records_that_others_can_replace_are_replaced() {
    type KeyOf = fn(&dyn polymux_meta::MetadataStore) -> Vec<u8>;
    let plants: [(char, KeyOf); 10] = [
        ('d', |_| raw::dirent(Ino::ROOT, "large")),
        ('c', |store| raw::position(Ino::ROOT, cookie(store, Ino::ROOT, "large"))),
        ('g', |_| raw::disowned(SLOW, 3, 0)),
        ('h', |_| raw::key(b'h', &[17], &[0, 0, 0, 0])),
        ('L', |_| raw::key(b'L', &[], &[])),
        ('P', |_| raw::key(b'P', &[], &[0, 1])),
        ('S', |_| raw::key(b'S', &[], &[])),
        ('s', |store| raw::key(b's', &[ino(store, "/outer").0], &[])),
        ('x', |store| raw::key(b'x', &[ino(store, "/guarded").0], b"user.colour")),
        ('K', |_| raw::key(b'K', &[], &[])),
    ];
    for (_, key) in plants {
        let contents = repaired("record-unreadable", None, |world| {
            world.plant(|store, batch| batch.put(key(store), b"garbage"));
        });
        assert_eq!(contents["/large"], Ok(content(1, 65_536)));
    }
    let is_replaced =
        |letter: &char| matches!(unreadable_record(*letter), Some(Unreadable::Removed | Unreadable::Replaced(_)));
    let replaced: BTreeSet<char> = RECORD_KINDS.map(|(letter, _)| letter).into_iter().filter(is_replaced).collect();
    // A value of one that is only a key is stray: `a_record_that_is_only_a_key_loses_its_value`.
    let planted =
        BTreeSet::from(plants.map(|(letter, _)| letter)).union(&BTreeSet::from(['o', 'p'])).copied().collect();
    assert_eq!(replaced, planted, "each kind that is removed or replaced is planted");
}

#[test]
fn where_the_kernel_that_uses_objects_cannot_be_read_it_may_have_been_any() {
    let world = World::new();
    let key = raw::key(b'K', &[], &[]);
    world.plant(|_, batch| batch.put(&key, b"garbage"));
    assert_eq!(world.check(CheckMode::Repair).left, 0);
    assert_eq!(world.records().remove(&key), Some(boot_format::encode(BootId::UNKNOWN)), "it is not only removed");
}

#[test]
fn files_whose_only_record_cannot_be_read_are_named() {
    left("record-unreadable", Some("/outer/linked"), |world| {
        world.plant(|store, batch| batch.put(raw::inode(ino(store, "/outer/linked")), b"garbage"));
    });
    left("record-unreadable", Some("/small"), |world| {
        world.plant(|store, batch| batch.put(raw::key(b'b', &[ino(store, "/small").0], &[]), b"garbage"));
    });
    left("record-unreadable", Some("/split"), |world| {
        world.plant(|store, batch| batch.put(raw::key(b'e', &[ino(store, "/split").0, 5], &[]), b"garbage"));
    });
}

#[test]
fn every_flipped_byte_of_every_record_is_found() {
    let world = World::new();
    let records = world.records();
    for (key, value) in records.iter().filter(|(_, value)| !value.is_empty()) {
        let mut bad = value.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 0x10;
        world.plant(|_, batch| batch.put(key, &bad));
        let report = world.check(CheckMode::Report);
        assert!(report.correctable + report.left > 0, "{}", key.escape_ascii());
        world.plant(|_, batch| batch.put(key, value));
    }
    assert_eq!(errors(&world.check(CheckMode::Report)), []);
}

#[test]
fn a_record_of_an_unknown_kind_is_left() {
    left("key-unknown", None, |world| world.plant(|_, batch| batch.put(raw::key(b'?', &[1], &[]), b"what is it")));
}

#[test]
fn a_record_that_is_only_a_key_loses_its_value() {
    repaired("value-stray", Some("/small"), |world| {
        world.plant(|store, batch| batch.put(raw::listed(ino(store, "/small"), Ino::ROOT, "small"), b"value"));
    });
}

#[test]
fn number_ranges_are_written_anew_above_all_numbers_in_use() {
    for letter in [b'i', b'o', b'm'] {
        repaired("number-range", None, |world| world.plant(|_, batch| batch.delete(number(letter))));
    }
}

#[test]
fn no_number_is_given_twice() {
    repaired("inode-number", None, |world| world.plant(|_, batch| batch.put(number(b'i'), raw::number_value(17))));
    repaired("object-number", None, |world| {
        world.plant(|_, batch| {
            batch.put(number(b'o'), raw::number_value(1));
            batch.put(number(b'm'), raw::number_value(1));
        });
    });
    repaired("object-mark", None, |world| world.plant(|_, batch| batch.put(number(b'm'), raw::number_value(1 << 40))));
}

#[test]
fn a_volume_that_was_not_unmounted_in_order_is_recovered_and_has_no_findings() {
    let world = World::new();
    let fs: FileSystem = world.mount();
    drop(fs);
    let report = world.check(CheckMode::Report);
    assert!(report.unclean);
    assert_eq!(errors(&report), []);
    let report = world.check(CheckMode::Repair);
    assert!(report.unclean && !report.recovery.is_empty());
    assert_eq!(errors(&report), []);
    assert!(!world.check(CheckMode::Report).unclean);
}
