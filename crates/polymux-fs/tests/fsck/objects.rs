//! Damage to objects on the tiers.

use polymux_fs::CheckMode;

use super::cases::{left, repaired};
use super::raw::{self, FILE_FLOOR};
use super::world::{Object, SLOW, World, content, edit_inode, errors, ino, objects};

pub const KINDS: [&str; 8] = [
    "object-bucket",
    "object-missing",
    "object-empty-missing",
    "object-unnamed",
    "object-leaked",
    "object-long",
    "object-short",
    "object-shared",
];

fn object_of(world: &World, path: &str) -> Object {
    let store = world.store();
    objects(&store, ino(&store, path))[0]
}

#[test]
fn an_object_in_another_bucket_is_found_there() {
    let contents = repaired("object-bucket", Some("/large"), |world| {
        let object = object_of(world, "/large");
        let moved = Object { bucket: (object.bucket + 1) % 4096, ..object };
        std::fs::rename(world.object_path(object), world.object_path(moved)).expect("it is moved");
    });
    assert_eq!(contents["/large"], Ok(content(1, 65_536)));
}

#[test]
fn a_file_whose_object_is_gone_is_named() {
    left("object-missing", Some("/large"), |world| {
        std::fs::remove_file(world.object_path(object_of(world, "/large"))).expect("it is removed");
    });
}

#[test]
fn a_file_is_named_by_its_path_in_a_directory() {
    left("object-missing", Some("/outer/linked"), |world| {
        std::fs::remove_file(world.object_path(object_of(world, "/outer/linked"))).expect("it is removed");
    });
}

#[test]
fn an_empty_file_does_not_need_the_object_that_is_gone() {
    let contents = repaired("object-empty-missing", Some("/large"), |world| {
        std::fs::remove_file(world.object_path(object_of(world, "/large"))).expect("it is removed");
        world.plant(|store, batch| {
            edit_inode(store, batch, ino(store, "/large"), FILE_FLOOR, &0_u64.to_le_bytes());
        });
    });
    assert_eq!(contents["/large"], Ok(Vec::new()));
}

#[test]
fn an_object_of_nobody_becomes_a_file_in_lost_and_found() {
    let contents = repaired("object-unnamed", None, |world| {
        let stray = Object { tier: SLOW, number: 0x7777, bucket: 12 };
        std::fs::write(world.object_path(stray), content(8, 12_345)).expect("it is written");
    });
    assert_eq!(contents["/lost+found/slow-0000000000007777"], Ok(content(8, 12_345)));
}

#[test]
fn an_object_of_nobody_without_bytes_is_removed() {
    let stray = Object { tier: SLOW, number: 0x7778, bucket: 13 };
    let world = World::new();
    let path = world.object_path(stray);
    std::fs::write(&path, b"").expect("it is made");
    world.check(CheckMode::Report);
    assert!(path.exists(), "a check that may not repair touches no tier");
    world.check(CheckMode::Repair);
    assert!(!path.exists());
    repaired("object-leaked", None, |world| {
        std::fs::write(world.object_path(stray), b"").expect("it is made");
    });
}

#[test]
fn what_is_beyond_the_end_of_a_file_is_cut_off() {
    let world = World::new();
    let path = world.object_path(object_of(&world, "/outer/linked"));
    let file = std::fs::File::options().append(true).open(&path).expect("it opens");
    std::io::Write::write_all(&mut &file, b"ghost").expect("it is written");
    assert_eq!(world.check(CheckMode::Repair).counts["object-long"], 1);
    assert_eq!(path.metadata().expect("it is there").len(), 20_000);
    let contents = repaired("object-long", Some("/outer/linked"), |world| {
        let path = world.object_path(object_of(world, "/outer/linked"));
        let file = std::fs::File::options().append(true).open(path).expect("it opens");
        std::io::Write::write_all(&mut &file, b"ghost").expect("it is written");
    });
    assert_eq!(contents["/outer/linked"], Ok(content(2, 20_000)));
}

fn cut(world: &World, object: Object, size: u64) {
    let file = std::fs::File::options().write(true).open(world.object_path(object)).expect("it opens");
    file.set_len(size).expect("it is cut");
}

#[test]
fn what_an_object_lost_at_its_end_is_marked_damaged() {
    let contents = repaired("object-short", Some("/large"), |world| cut(world, object_of(world, "/large"), 30_000));
    assert!(contents["/large"].as_ref().is_err_and(|error| error.contains("data was lost")), "{contents:?}");
}

#[test]
fn of_a_file_on_two_tiers_only_what_the_short_object_had_is_marked_damaged() {
    for slot in 0..2 {
        let world = World::new();
        let split = {
            let store = world.store();
            objects(&store, ino(&store, "/split"))[slot]
        };
        let length = world.object_path(split).metadata().expect("it is there").len();
        cut(&world, split, length - 100);
        let report = world.check(CheckMode::Report);
        let found: Vec<String> =
            errors(&report).into_iter().map(|(kind, _, detail)| format!("{kind} {detail}")).collect();
        let lost = format!("lost are {}..{length}", length - 100);
        assert!(matches!(&found[..], [one] if one.starts_with("object-short") && one.ends_with(&lost)), "{found:?}");
    }
}

#[test]
fn an_object_that_ends_before_a_hole_has_lost_nothing() {
    let world = World::new();
    world.plant(|store, batch| {
        let large = ino(store, "/large");
        let record = store.get(&raw::inode(large)).expect("the store answers").expect("it is there");
        let flags = raw::FILE_OBJECTS + 1 + raw::OBJECT_LENGTH + 4 + 4 + 4 + 8;
        assert_eq!(record[flags], 1, "the record says that the object covers what the map gives to it");
        edit_inode(store, batch, large, flags, &[0]);
    });
    cut(&world, object_of(&world, "/large"), 30_000);
    assert_eq!(errors(&world.check(CheckMode::Report)), []);
}

#[test]
fn two_files_with_one_object_are_named() {
    left("object-shared", Some("/guarded"), |world| {
        world.plant(|store, batch| {
            let (guarded, large) = (ino(store, "/guarded"), ino(store, "/large"));
            let record = store.get(&raw::inode(guarded)).expect("the store answers").expect("it is there");
            let object = &record[raw::FILE_OBJECTS + 1..][..raw::OBJECT_LENGTH];
            edit_inode(store, batch, large, raw::FILE_OBJECTS + 1, object);
        });
    });
}

#[test]
fn an_object_that_may_belong_to_an_unreadable_file_is_kept() {
    let world = World::new();
    let path = world.object_path(object_of(&world, "/large"));
    world.plant(|store, batch| batch.put(raw::inode(ino(store, "/large")), b"garbage"));
    let report = world.check(CheckMode::Repair);
    let kinds: Vec<&str> = errors(&report).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["record-unreadable", "object-unnamed"]);
    assert_eq!(report.left, 2);
    assert!(path.exists());
}
