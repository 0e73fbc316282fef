//! Damage to the contents of files, as far as records show it.

use super::cases::{left, noted, repaired};
use super::raw::{self, FILE_EXTENDERS, FILE_FLOOR, FILE_HOME, INODE_FLAGS};
use super::world::{FAST, SLOW, SPLIT_BYTES, World, content, edit_inode, errors, get, ino, objects};
use polymux_fs::{Caller, CheckMode, OpenOptions, WriteOrigin};

pub const KINDS: [&str; 22] = [
    "extent-alone",
    "extent-stray",
    "extent-empty",
    "extent-bounds",
    "extent-slot",
    "extent-overlap",
    "extent-redundant",
    "home-missing",
    "inline-missing",
    "inline-size",
    "inline-stray",
    "damaged-beyond",
    "data-damaged",
    "disowned-empty",
    "disowned-tier",
    "disowned-object-live",
    "disowned-live",
    "xattr-stray",
    "xattr-flag",
    "acl-invalid",
    "pin-tier",
    "object-tier",
];

fn extent(ino: polymux_types::Ino, end: u64) -> Vec<u8> {
    raw::key(b'e', &[ino.0, end], &[])
}

/// The extents of the file that lies on both tiers: ends and starts.
fn extents(world: &World) -> Vec<(u64, u64)> {
    let records = world.records();
    let of_kind = records.iter().filter(|(key, _)| key[4] == b'e');
    of_kind
        .map(|(key, value)| (u64::from_be_bytes(key[13..21].try_into().expect("a number")), raw::number(value, 1)))
        .collect()
}

#[test]
fn an_extent_of_nobody_is_removed() {
    repaired("extent-stray", None, |world| {
        world.plant(|_, batch| batch.put(extent(polymux_types::Ino(60_000), 10), raw::extent_value(0, 0)));
    });
    repaired("extent-stray", Some("/outer"), |world| {
        world.plant(|store, batch| batch.put(extent(ino(store, "/outer"), 10), raw::extent_value(0, 0)));
    });
}

#[test]
fn an_extent_without_blocks_is_removed_and_the_file_is_as_it_was() {
    let contents = repaired("extent-empty", Some("/split"), |world| {
        world.plant(|store, batch| batch.put(extent(ino(store, "/split"), 3), raw::extent_value(3, 1)));
    });
    assert_eq!(contents["/split"], Ok(content(4, SPLIT_BYTES)));
}

#[test]
fn an_extent_that_says_what_holds_without_it_is_removed() {
    let contents = repaired("extent-redundant", Some("/split"), |world| {
        world.plant(|store, batch| batch.put(extent(ino(store, "/split"), 3), raw::extent_value(0, 0)));
    });
    assert_eq!(contents["/split"], Ok(content(4, SPLIT_BYTES)));
}

/// Whatever they say: the file has been read and written without them.
#[test]
fn extents_of_a_file_with_one_object_are_removed() {
    for value in [raw::extent_value(0, 0), raw::extent_value(0, 9), raw::hole_value(0)] {
        let contents = repaired("extent-alone", Some("/large"), |world| {
            world.plant(|store, batch| batch.put(extent(ino(store, "/large"), 3), value));
        });
        assert_eq!(contents["/large"], Ok(content(1, 65_536)));
    }
}

/// A file with one object is read and written as if it had no extents. Extents left by older programs must not come back
/// with its second object.
#[test]
fn extents_that_were_left_on_record_never_come_back_over_newer_bytes() {
    let root = Caller::root();
    let world = World::new();
    world.plant(|store, batch| {
        let at = ino(store, "/large");
        batch.put(extent(at, 3), raw::hole_value(1));
        batch.put(extent(at, 9), raw::extent_value(5, 1));
    });
    let at = ino(&world.store(), "/large");
    let fs = world.mount();
    let open = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let handle = fs.open(&root, at, open).expect("opened");
    let newer = content(7, 40_000);
    fs.write(&root, handle, 0, &newer, WriteOrigin::Call).expect("written");
    // More than the fast tier holds.
    let more = content(8, SPLIT_BYTES);
    for (index, piece) in more.chunks(65_536).enumerate() {
        let offset = 65_536 * (index as u64 + 1);
        assert_eq!(fs.write(&root, handle, offset, piece, WriteOrigin::Call).expect("written"), piece.len());
    }
    fs.release(handle).expect("closed");
    fs.unmount().expect("unmounted");
    drop(fs);
    assert_eq!(objects(&world.store(), at).len(), 2);
    let expected = [newer.as_slice(), &content(1, 65_536)[newer.len()..], &more].concat();
    assert!(world.contents()["/large"] == Ok(expected), "older extents came back");
    assert_eq!(errors(&world.check(CheckMode::Report)), []);
}

#[test]
fn an_extent_beyond_the_largest_file_covers_the_tail() {
    let contents = repaired("extent-bounds", Some("/split"), |world| {
        let (end, start) = *extents(world).last().expect("the file is split");
        world.plant(|store, batch| {
            let at = ino(store, "/split");
            let value = get(store, &extent(at, end));
            assert_eq!(raw::number(&value, 1), start);
            batch.delete(extent(at, end));
            batch.put(extent(at, 1 << 60), value);
        });
    });
    assert_eq!(contents["/split"], Ok(content(4, SPLIT_BYTES)));
}

#[test]
fn blocks_of_an_object_that_is_not_there_read_as_an_error() {
    let contents = repaired("extent-slot", Some("/split"), |world| {
        world.plant(|store, batch| batch.put(extent(ino(store, "/split"), 2), raw::extent_value(1, 9)));
    });
    let error = contents["/split"].as_ref().expect_err("a block is lost, and nobody may take zeros for it");
    assert!(error.contains("data was lost"), "{error}");
}

#[test]
fn blocks_that_two_extents_claim_read_as_an_error() {
    let contents = repaired("extent-overlap", Some("/split"), |world| {
        let (end, start) = *extents(world).last().expect("the file is split");
        assert!(end > start + 2);
        world.plant(|store, batch| batch.put(extent(ino(store, "/split"), start + 2), raw::extent_value(start - 1, 1)));
    });
    assert!(contents["/split"].is_err());
    assert!(contents["/large"].is_ok());
}

#[test]
fn the_only_object_of_a_file_is_its_home() {
    let contents = repaired("home-missing", Some("/large"), |world| {
        world.plant(|store, batch| edit_inode(store, batch, ino(store, "/large"), FILE_HOME, &[0xff]));
    });
    assert_eq!(contents["/large"], Ok(content(1, 65_536)));
}

#[test]
fn a_small_file_whose_content_is_gone_is_reported() {
    left("inline-missing", Some("/small"), |world| {
        world.plant(|store, batch| batch.delete(raw::key(b'b', &[ino(store, "/small").0], &[])));
    });
}

#[test]
fn the_length_of_a_small_file_is_that_of_its_content() {
    let contents = repaired("inline-size", Some("/small"), |world| {
        world.plant(|store, batch| {
            edit_inode(store, batch, ino(store, "/small"), FILE_FLOOR, &7_u64.to_le_bytes());
        });
    });
    assert_eq!(contents["/small"].as_deref(), Ok(b"a few bytes in the store".as_slice()));
}

#[test]
fn a_content_of_nobody_is_removed() {
    repaired("inline-stray", None, |world| {
        world.plant(|_, batch| batch.put(raw::key(b'b', &[61_000], &[]), raw::bytes_value(b"of nobody")));
    });
}

/// An inode record with damaged ranges.
fn with_damage(store: &dyn polymux_meta::MetadataStore, path: &str, range: (u64, u64)) -> (Vec<u8>, Vec<u8>) {
    let key = raw::inode(ino(store, path));
    let record = get(store, &key);
    let objects = usize::from(record[raw::FILE_OBJECTS]);
    // Behind the objects and the error sequence: how many damaged ranges there are.
    let at = raw::FILE_OBJECTS + 1 + objects * raw::OBJECT_LENGTH + 4;
    let mut body = record[..at].to_vec();
    body.extend_from_slice(&1_u32.to_le_bytes());
    body.extend_from_slice(&range.0.to_le_bytes());
    body.extend_from_slice(&range.1.to_le_bytes());
    body.extend_from_slice(&record[at + 4..record.len() - 4]);
    (key, raw::seal(body))
}

#[test]
fn damaged_bytes_beyond_all_files_are_cut_off() {
    repaired("damaged-beyond", Some("/large"), |world| {
        world.plant(|store, batch| {
            let (key, value) = with_damage(store, "/large", (1 << 20, u64::MAX - 1));
            batch.put(key, value);
        });
    });
}

#[test]
fn a_file_with_damaged_bytes_is_named() {
    noted("data-damaged", Some("/large"), |world| {
        world.plant(|store, batch| {
            let (key, value) = with_damage(store, "/large", (4096, 8192));
            batch.put(key, value);
        });
    });
}

#[test]
fn an_empty_disowned_range_of_an_older_build_is_removed() {
    repaired("disowned-empty", None, |world| {
        world.plant(|_, batch| batch.put(raw::disowned(SLOW, 3, 8192), raw::disowned_value(5, 3, 8192)));
    });
}

#[test]
fn an_empty_disowned_range_does_not_keep_a_volume_from_being_mounted() {
    let world = World::new();
    world.plant(|_, batch| batch.put(raw::disowned(SLOW, 3, 8192), raw::disowned_value(5, 3, 4096)));
    assert!(world.contents().contains_key("/large"));
    assert!(!world.records().contains_key(&raw::disowned(SLOW, 3, 8192)), "it is treated as done");
}

#[test]
fn a_disowned_range_on_no_tier_is_removed() {
    repaired("disowned-tier", None, |world| {
        world.plant(|_, batch| batch.put(raw::disowned(7, 3, 0), raw::disowned_value(5, 3, 4096)));
    });
}

#[test]
fn an_object_in_use_is_not_removed() {
    let contents = repaired("disowned-object-live", Some("/large"), |world| {
        world.plant(|store, batch| {
            let object = objects(store, ino(store, "/large"))[0];
            let key = raw::disowned(object.tier, object.number, u64::MAX);
            batch.put(key, raw::disowned_value(object.bucket, 1, 0));
        });
    });
    assert_eq!(contents["/large"], Ok(content(1, 65_536)));
}

#[test]
fn bytes_in_use_are_not_freed() {
    for (start, kind, end) in [(8192, 3, 16_384), (4096, 2, 0)] {
        let contents = repaired("disowned-live", Some("/large"), |world| {
            world.plant(|store, batch| {
                let object = objects(store, ino(store, "/large"))[0];
                let key = raw::disowned(object.tier, object.number, start);
                batch.put(key, raw::disowned_value(object.bucket, kind, end));
            });
        });
        assert_eq!(contents["/large"], Ok(content(1, 65_536)));
    }
}

#[test]
fn a_file_on_a_tier_that_is_none_is_reported() {
    left("object-tier", Some("/large"), |world| {
        world.plant(|store, batch| {
            let at = ino(store, "/large");
            edit_inode(store, batch, at, raw::FILE_OBJECTS + 1, &9_u16.to_le_bytes());
            let record = get(store, &raw::inode(at));
            assert_eq!(raw::number(&record, FILE_EXTENDERS), 0, "nothing extends it after an unmount in order");
        });
    });
    assert_ne!(FAST, 9);
}

fn attribute(ino: polymux_types::Ino, name: &str) -> Vec<u8> {
    raw::key(b'x', &[ino.0], name.as_bytes())
}

#[test]
fn an_attribute_of_nobody_is_removed() {
    repaired("xattr-stray", None, |world| {
        world.plant(|_, batch| {
            batch.put(attribute(polymux_types::Ino(62_000), "user.x"), raw::bytes_value(b"of nobody"));
        });
    });
}

#[test]
fn an_inode_says_rightly_which_attributes_it_has() {
    repaired("xattr-flag", Some("/guarded"), |world| {
        // It certainly has none, it says.
        world.plant(|store, batch| edit_inode(store, batch, ino(store, "/guarded"), INODE_FLAGS, &[4]));
    });
    repaired("xattr-flag", Some("/large"), |world| {
        // It has a list for access, it says.
        world.plant(|store, batch| edit_inode(store, batch, ino(store, "/large"), INODE_FLAGS, &[1]));
    });
}

#[test]
fn an_access_control_list_that_cannot_be_read_goes_with_the_rights_of_the_group() {
    repaired("acl-invalid", Some("/guarded"), |world| {
        world.plant(|store, batch| {
            let key = attribute(ino(store, "/guarded"), "system.posix_acl_access");
            batch.put(key, raw::bytes_value(&[2, 0, 0, 0, 1, 0, 99, 0, 0, 0, 0, 0]));
        });
    });
}

#[test]
fn a_pin_to_a_tier_that_is_none_is_noted() {
    noted("pin-tier", Some("/guarded"), |world| {
        world.plant(|store, batch| {
            batch.put(attribute(ino(store, "/guarded"), "trusted.polymux.pin"), raw::bytes_value(b"gone"));
        });
    });
}
