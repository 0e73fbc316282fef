//! Rebuilds that are refused, rebuilds that are ended, and that nothing is put into place then.

use std::ops::ControlFlow;

use polymux_fs::{FileSystem, VolumeError};
use polymux_meta::MetadataStore;
use polymux_sim::MemoryStore;
use polymux_types::{Errno, Ino};

use crate::common::{Volume, pattern};
use crate::truth::{MEBIBYTE, files, settle, write_file};

/// A volume with a file, stopped in a crash.
fn stopped() -> Volume {
    let mut volume = Volume::new(&[16 * MEBIBYTE, 16 * MEBIBYTE]);
    write_file(&volume, Ino::ROOT, "file", &pattern(2, 9000));
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    volume.stop_uncleanly();
    volume
}

#[test]
fn a_volume_with_a_missing_tier_is_not_rebuilt() {
    let mut volume = stopped();
    volume.set_missing(1, true);
    assert!(matches!(volume.rebuild(), Err(VolumeError::TierMissing { name, .. }) if name == "slow"));
    volume.set_missing(1, false);
    volume.memory(1).remove_label();
    assert!(matches!(volume.rebuild(), Err(VolumeError::TierMissing { name, .. }) if name == "slow"));
}

#[test]
fn a_tier_of_another_volume_or_in_the_place_of_another_is_refused() {
    let mut volume = stopped();
    let label = volume.tier(1).read_label().expect("it has a label");
    let mut foreign = label.clone();
    foreign.volume = polymux_types::VolumeId::from_random([42; 16]);
    volume.tier(1).write_label(&foreign).expect("it is labelled");
    assert!(matches!(volume.rebuild(), Err(VolumeError::OtherVolume { name, .. }) if name == "slow"));
    volume.tier(1).write_label(&volume.tier(0).read_label().expect("it has a label")).expect("it is labelled");
    assert!(matches!(volume.rebuild(), Err(VolumeError::OtherTier { name, .. }) if name == "slow"));
    volume.tier(1).write_label(&label).expect("it is labelled");
    volume.rebuild().expect("the volume is rebuilt");
}

#[test]
fn a_store_that_holds_a_volume_is_left_alone() {
    let volume = stopped();
    let source = volume.rebuild_source();
    let store = volume.store();
    let before = store.committed();
    let refused = FileSystem::rebuild(&source, Some(&*store), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(VolumeError::Store(_))));
    assert_eq!(store.committed(), before);
}

#[test]
fn a_rebuild_that_is_ended_leaves_a_store_that_holds_no_volume() {
    let volume = stopped();
    let source = volume.rebuild_source();
    for phase in ["reading objects", "comparing", "writing records"] {
        let store = MemoryStore::new();
        let ended = FileSystem::rebuild(&source, Some(&store), &mut |progress| {
            if progress.phase == phase { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let Err(VolumeError::FileSystem(error)) = ended else { panic!("{phase}: {ended:?}") };
        assert_eq!(error.errno(), Errno::EINTR);
        assert_eq!(store.get(&[0, 0, 0, 0, b'V']).expect("a simulated store answers"), None);
    }
}

#[test]
fn a_rebuild_without_a_store_changes_nothing_and_tells_the_same() {
    let mut volume = stopped();
    let counters = |volume: &Volume| [0, 1].map(|tier| format!("{:?}", volume.tier(tier).read_label()));
    let before = counters(&volume);
    let foreseen = volume.try_rebuild().expect("it can be told what would come back");
    let report = volume.rebuild().expect("the volume is rebuilt");
    assert_eq!(foreseen, report);
    assert_eq!(counters(&volume), before, "no label changes before the first mount");
    volume.mount().expect("a rebuilt volume mounts");
    assert_eq!(files(&volume).len(), 1);
}
