//! `FileSystem::check` on volumes on disk, each with one thing planted that should not be so.
//!
//! Invariants: a case is found by the name of its kind and with the path of the file, it is found again by a check that
//! may not repair, which changes no record, and after the repair a second check finds nothing, and the volume mounts.

#[path = "fsck/cases.rs"]
mod cases;
#[path = "fsck/files.rs"]
mod files;
#[path = "fsck/names.rs"]
mod names;
#[path = "fsck/objects.rs"]
mod objects;
#[path = "fsck/raw.rs"]
mod raw;
#[path = "fsck/volumes.rs"]
mod volumes;
#[path = "fsck/world.rs"]
mod world;

use polymux_fs::{CheckMode, FINDING_KINDS};

use world::{World, errors};

#[test]
fn a_volume_that_was_unmounted_in_order_has_nothing_to_report() {
    let world = World::new();
    let before = world.records();
    let report = world.check(CheckMode::Report);
    assert_eq!(errors(&report), []);
    assert!(!report.unclean && report.recovery.is_empty());
    assert_eq!(world.records(), before, "a check that may not repair changes nothing");
    assert_eq!(errors(&world.check(CheckMode::Repair)), []);
    let contents = world.contents();
    assert_eq!(contents["/small"].as_deref(), Ok(b"a few bytes in the store".as_slice()));
    assert_eq!(contents["/split"].as_deref(), Ok(world::content(4, world::SPLIT_BYTES).as_slice()));
}

#[test]
fn at_least_25_kinds_of_damage_are_planted() {
    let planted: std::collections::BTreeSet<&str> =
        names::KINDS.iter().chain(&files::KINDS).chain(&objects::KINDS).chain(&volumes::KINDS).copied().collect();
    assert!(planted.len() >= 25);
    let unknown: Vec<&&str> =
        planted.iter().filter(|name| !FINDING_KINDS.iter().any(|kind| kind.name == **name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_document_lists_every_kind_of_finding() {
    let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/FSCK.md");
    let text = std::fs::read_to_string(document).expect("the document is there");
    for kind in FINDING_KINDS {
        assert!(text.contains(&format!("| `{}`", kind.name)), "{}", kind.name);
        assert!(text.contains(kind.meaning) && text.contains(kind.repair), "{}", kind.name);
    }
}

#[test]
fn a_check_that_is_ended_says_so_and_leaves_a_volume_that_can_be_checked_again() {
    let world = World::new();
    let mut seen = 0;
    let error = world.check_until(CheckMode::Repair, &mut |_| {
        seen += 1;
        if seen == 5 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    });
    let polymux_fs::VolumeError::FileSystem(error) = error.expect_err("it was ended") else { panic!("it was ended") };
    assert_eq!(error.errno(), polymux_types::Errno::EINTR);
    assert_eq!(errors(&world.check(CheckMode::Report)), []);
}
