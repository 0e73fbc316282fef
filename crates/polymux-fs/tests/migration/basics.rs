//! One migration at a time, without other activity.

use polymux_fs::{AllocateKind, Caller, MoveRefusal, MoversState, Progress, SetAttributes, SyncKind};
use polymux_types::Ino;

use crate::common::{Volume, close, create, find, make_directory, pattern, read_at, read_whole, write_all};
use crate::{MIB, location, mebibytes, migrate, settle, shares};

#[test]
fn a_file_goes_to_every_tier_and_back_and_has_one_object_and_no_map_wherever_it_is() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, 5_000_000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let before = volume.fs().attributes(&Caller::root(), ino).expect("attributes");
    for tier in ["slow", "middle", "fast", "middle", "slow", "fast"] {
        migrate(&volume, ino, tier);
        let location = location(volume.fs(), ino);
        assert_eq!(location.home.as_deref(), Some(tier));
        assert_eq!((location.shares.len(), location.extent_records), (1, 0));
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
        let after = volume.fs().attributes(&Caller::root(), ino).expect("attributes");
        assert_eq!(
            (after.ino, after.size, after.modified, after.changed),
            (before.ino, before.size, before.modified, before.changed)
        );
    }
    assert_eq!((volume.used(1), volume.used(2)), (0, 0), "what was left behind is freed");
    close(volume.fs(), handle).expect("closed");
}

#[test]
fn holes_stay_holes_and_a_trailing_one_keeps_the_size() {
    let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    write_all(volume.fs(), handle, 9 * MIB + 123, &pattern(2, 10_000)).expect("written");
    let change = SetAttributes { size: Some(17 * MIB + 5), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("truncated up");
    let data = read_whole(volume.fs(), ino).expect("read");
    let used = volume.used(0);
    migrate(&volume, ino, "slow");
    assert_eq!((volume.used(0), volume.used(1)), (0, used), "no hole was filled");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    assert_eq!(find(volume.fs(), "f").size, 17 * MIB + 5);
}

#[test]
fn a_range_moves_by_whole_nodes_and_the_rest_stays() {
    let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(3, mebibytes(12));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().migrate(ino, "slow", Some(5 * MIB..5 * MIB + 1)).expect("accepted");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [("fast".to_owned(), 10 * MIB), ("slow".to_owned(), 2 * MIB)]);
    assert_eq!(volume.used(0), 10 * MIB);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    volume.remount();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    // Back again, onto the object that is there.
    volume.fs().migrate(ino, "fast", Some(0..6 * MIB)).expect("accepted");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [("fast".to_owned(), 12 * MIB)]);
    assert_eq!((volume.used(1), location(volume.fs(), ino).extent_records), (0, 0));
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
}

#[test]
fn an_append_after_the_end_moved_goes_on_there_and_survives_a_crash() {
    let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(4, mebibytes(3) + 77);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    migrate(&volume, ino, "slow");
    let more = pattern(5, 200_000);
    write_all(volume.fs(), handle, data.len() as u64, &more).expect("appended");
    data.extend_from_slice(&more);
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    assert_eq!(shares(volume.fs(), ino), [("slow".to_owned(), data.len() as u64)]);
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
}

#[test]
fn a_move_that_no_sync_followed_survives_a_crash_either_way() {
    for kept in 0..6 {
        let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
        let (ino, handle) = create(volume.fs(), "f");
        let data = pattern(6, mebibytes(5));
        write_all(volume.fs(), handle, 0, &data).expect("written");
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        volume.fs().migrate(ino, "slow", None).expect("accepted");
        while volume.fs().move_step() == Progress::Worked {}
        volume.crash_keeping_transactions(kept);
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), data, "{kept} transactions kept");
        volume.drain();
        assert_eq!(volume.used(0) + volume.used(1), 5 * MIB, "nothing leaks: {kept} transactions kept");
    }
}

#[test]
fn many_small_files_go_together() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let files: Vec<(Ino, Vec<u8>)> = (0..40_u8)
        .map(|index| {
            let (ino, handle) = create(volume.fs(), &format!("f{index}"));
            let data = pattern(index, 10_000 + usize::from(index) * 997);
            write_all(volume.fs(), handle, 0, &data).expect("written");
            close(volume.fs(), handle).expect("closed");
            (ino, data)
        })
        .collect();
    for (ino, _) in &files {
        volume.fs().migrate(*ino, "slow", None).expect("accepted");
    }
    settle(&volume);
    assert_eq!(volume.used(0), 0);
    for (ino, data) in &files {
        assert_eq!(&read_whole(volume.fs(), *ino).expect("read"), data);
    }
    assert_eq!(volume.counter("moves_committed"), 40);
}

#[test]
fn a_hard_link_an_open_file_and_one_without_a_name_move_like_any_other() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(7, 100_000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().link(&Caller::root(), ino, Ino::ROOT, b"g").expect("linked");
    migrate(&volume, ino, "slow");
    assert_eq!(find(volume.fs(), "g").ino, ino);
    for name in [b"f", b"g"] {
        volume.fs().unlink(&Caller::root(), Ino::ROOT, name).expect("unlinked");
    }
    migrate(&volume, ino, "fast");
    assert_eq!(read_at(volume.fs(), handle, 0, 200_000).expect("read"), data);
    close(volume.fs(), handle).expect("closed");
    settle(&volume);
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn a_file_unlinked_before_its_turn_is_no_error() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(7, 100_000)).expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    settle(&volume);
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn reserved_room_and_an_empty_file_move() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    volume.fs().allocate(&Caller::root(), handle, 0, 3 * MIB, AllocateKind::KeepSize).expect("allocated");
    migrate(&volume, ino, "slow");
    assert_eq!(volume.used(0), 0);
    assert_eq!(find(volume.fs(), "f").size, 0);
    write_all(volume.fs(), handle, 0, b"hello").expect("written");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"hello");
}

#[test]
fn impossible_requests_say_why_and_change_nothing() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    let directory = make_directory(volume.fs(), "d");
    let refusal = |ino, tier: &str, range| volume.fs().migrate(ino, tier, range).expect_err("refused");
    assert_eq!(refusal(ino, "tape", None).to_string(), "the volume has no tier `tape`");
    assert_eq!(refusal(directory, "slow", None).to_string(), "only regular files are moved; this is a directory");
    assert_eq!(refusal(ino, "slow", Some(10_000..20_000)), MoveRefusal::BeyondEnd { start: 10_000, size: 10_000 });
    assert_eq!(volume.fs().moves().queued_count, 0);
}

#[test]
fn paused_movers_do_nothing_until_they_are_resumed() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    volume.fs().set_movers(MoversState::Paused);
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    settle(&volume);
    assert_eq!(volume.used(1), 0);
    assert_eq!((volume.fs().moves().is_paused, volume.fs().moves().queued_count), (true, 1));
    volume.fs().set_movers(MoversState::Working);
    settle(&volume);
    assert_eq!(volume.used(0), 0);
}

#[test]
fn tiers_on_one_file_system_copy_without_bringing_the_bytes_here_and_lose_nothing() {
    use crate::common::PosixVolume;
    let volume = PosixVolume::new(&[None, None]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(1, mebibytes(5) + 777);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    write_all(volume.fs(), handle, 9 * MIB, &data[..5000]).expect("written behind a hole");
    data.resize(mebibytes(9), 0);
    data.extend_from_within(..5000);
    for tier in ["slow", "fast"] {
        volume.fs().migrate(ino, tier, None).expect("accepted");
        while volume.fs().move_step() == Progress::Worked {}
        volume.fs().step();
        assert_eq!(shares(volume.fs(), ino)[0].0, tier);
        assert!(read_whole(volume.fs(), ino).expect("read") == data);
    }
    let status = volume.fs().status().expect("status answers");
    let offloaded = status.counters.iter().find(|(name, _)| *name == "bytes_offloaded").expect("it is counted").1;
    assert!(offloaded > 0, "the file system of temporary files copies itself");
}
