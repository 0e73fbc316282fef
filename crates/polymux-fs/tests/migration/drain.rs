//! Emptying a tier.

use polymux_fs::Progress;
use polymux_types::Ino;

use crate::common::{Volume, close, create, pattern, read_whole, write_all};
use crate::{MIB, mebibytes, settle, shares};

fn fill(volume: &Volume, files: u8) -> Vec<(Ino, Vec<u8>)> {
    (0..files)
        .map(|index| {
            let (ino, handle) = create(volume.fs(), &format!("f{index}"));
            let data = pattern(index, 50_000 + usize::from(index) * 50_000);
            write_all(volume.fs(), handle, 0, &data).expect("written");
            close(volume.fs(), handle).expect("closed");
            (ino, data)
        })
        .collect()
}

fn is_empty(volume: &Volume) -> bool {
    volume.fs().drains().iter().all(|drain| drain.is_empty)
}

#[test]
fn a_drained_tier_ends_empty_gets_nothing_new_and_can_be_removed() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let files = fill(&volume, 40);
    volume.fs().start_drain("fast").expect("the drain begins");
    settle(&volume);
    let drain = &volume.fs().drains()[0];
    assert!(drain.is_empty, "{drain:?}");
    assert_eq!((drain.files_total, drain.files_done), (Some(40), 40));
    assert_eq!(volume.used(0), 0);
    for (ino, data) in &files {
        assert_eq!(&read_whole(volume.fs(), *ino).expect("read"), data);
        assert_eq!(shares(volume.fs(), *ino)[0].0, "middle");
    }
    let (ino, handle) = create(volume.fs(), "new");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    assert_eq!(shares(volume.fs(), ino)[0].0, "middle");
    volume.fs().remove_tier("fast", || Ok(())).expect("the tier leaves");
}

#[test]
fn a_drain_goes_on_after_a_crash_at_any_batch() {
    for batches in 0..6 {
        let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
        let files = fill(&volume, 30);
        volume.fs().sync_volume().expect("synced");
        volume.fs().start_drain("fast").expect("the drain begins");
        assert!(volume.step() == Progress::Worked || !volume.fs().drains().is_empty());
        for _ in 0..batches {
            volume.fs().move_step();
            volume.step();
        }
        volume.crash();
        for (ino, data) in &files {
            assert_eq!(&read_whole(volume.fs(), *ino).expect("read"), data);
        }
        settle(&volume);
        assert!(is_empty(&volume), "{:?} {:?}", volume.fs().drains(), volume.fs().moves());
        assert_eq!(volume.used(0), 0);
        for (ino, data) in &files {
            assert_eq!(&read_whole(volume.fs(), *ino).expect("read"), data);
        }
    }
}

#[test]
fn a_drain_without_room_elsewhere_says_how_much_is_missing() {
    let volume = Volume::new(&[64 * MIB, 8 * MIB]);
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(20))).expect("written");
    volume.fs().sync_volume().expect("synced");
    let refusal = volume.fs().start_drain("fast").expect_err("refused");
    let text = refusal.to_string();
    assert!(text.contains("it holds 20 MiB") && text.contains("12 MiB are missing"), "{text}");
    assert!(volume.fs().drains().is_empty());
}

#[test]
fn a_cancelled_drain_leaves_files_where_they_are() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let files = fill(&volume, 40);
    volume.fs().start_drain("fast").expect("the drain begins");
    volume.step();
    volume.fs().move_step();
    volume.fs().cancel_drain("fast").expect("cancelled");
    settle(&volume);
    assert!(volume.used(0) > 0 && volume.fs().drains().is_empty());
    assert_eq!(volume.fs().moves().queued_count, 0);
    for (ino, data) in &files {
        assert_eq!(&read_whole(volume.fs(), *ino).expect("read"), data);
    }
}

#[test]
fn a_file_that_grows_while_it_is_drained_ends_elsewhere_too() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(1, mebibytes(3));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().start_drain("fast").expect("the drain begins");
    for round in 0..20 {
        let more = pattern(round, 300_000);
        write_all(volume.fs(), handle, data.len() as u64, &more).expect("appended");
        data.extend_from_slice(&more);
        volume.step();
        volume.fs().move_step();
    }
    settle(&volume);
    assert!(is_empty(&volume));
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    assert_eq!(volume.used(0), 0);
}
