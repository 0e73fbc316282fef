//! Metadata is answered without a request to any tier (docs/design/0029).

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{
    Hook, HookedTier, StoreHook, Verdict, Volume, close, create, create_in, find, make_directory, pattern, read_only,
    read_write, walk, write_all,
};
use polymux_fs::{AllocateKind, Caller, FileSystem, Progress, SetAttributes, SyncKind, XattrMode};
use polymux_meta::{Batch, StoreError};
use polymux_tier::ObjectRef;
use polymux_types::Ino;

const MIB: u64 = 1 << 20;
const FILES: usize = 1500;

/// Counts the requests to a tier.
#[derive(Default)]
struct Requests {
    looks: AtomicU64,
    others: AtomicU64,
}

impl Requests {
    fn take(&self) -> (u64, u64) {
        (self.looks.swap(0, Ordering::Relaxed), self.others.swap(0, Ordering::Relaxed))
    }

    fn count_other(&self) -> Verdict {
        self.others.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }
}

impl Hook for Requests {
    fn before_stat(&self, _object: ObjectRef) -> Verdict {
        self.looks.fetch_add(1, Ordering::Relaxed);
        Verdict::Pass
    }

    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.count_other()
    }

    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.count_other()
    }

    fn before_sync(&self) -> Verdict {
        self.count_other()
    }
}

/// Counts commits of the store.
#[derive(Default)]
struct Commits(AtomicU64);

impl StoreHook for Commits {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A volume with two tiers, and the requests to them.
fn counted() -> (Volume, Arc<Requests>) {
    let requests = Arc::new(Requests::default());
    let volume = Volume::wrapping(&[256 * MIB, 256 * MIB], |_, tier| {
        Arc::new(HookedTier::new(tier, Arc::clone(&requests) as _))
    });
    (volume, requests)
}

/// The requests of `find`, `ls -lR`, `du`, and a backup program that looks at extended attributes. Returns the space that files take.
fn look_at_everything(fs: &FileSystem) -> u64 {
    let root = Caller::root();
    let found = walk(fs).expect("all directories can be listed");
    let mut blocks = 0;
    for (path, ino) in &found {
        if let Some(place) = path.iter().rposition(|byte| *byte == b'/') {
            let name = fs.lookup(&root, found[&path[..place]], &path[place + 1..]).expect("the name exists");
            assert_eq!(name.ino, *ino);
        }
        blocks += fs.attributes(&root, *ino).expect("attributes").blocks;
        for name in fs.list_xattrs(&root, *ino).expect("attributes are listed") {
            fs.xattr(&root, *ino, &name).expect("an attribute can be read");
        }
        fs.access(&root, *ino, 4).expect("everything may be read");
    }
    blocks
}

/// Moves and background work until nothing is left to do.
fn settle(volume: &Volume) {
    while (volume.fs().move_step(), volume.step()) != (Progress::Idle, Progress::Idle) {}
}

fn write_file(fs: &FileSystem, directory: Ino, index: usize) -> Ino {
    let (ino, handle) = create_in(fs, directory, &format!("f{index}"));
    let data = pattern(3, 5_000 + index % 7 * 4096);
    // Some are sparse.
    let offset = if index.is_multiple_of(5) { MIB } else { 0 };
    write_all(fs, handle, offset, &data).expect("written");
    if index.is_multiple_of(3) {
        fs.set_xattr(&Caller::root(), ino, b"user.origin", b"camera", XattrMode::CreateOrReplace)
            .expect("an attribute is set");
    }
    close(fs, handle).expect("closed");
    ino
}

#[test]
fn idle_tiers_are_asked_nothing_by_walks_over_their_files_also_after_a_remount() {
    let (mut volume, requests) = counted();
    let mut inos = Vec::new();
    for directory in 0..15 {
        let directory = make_directory(volume.fs(), &format!("d{directory}"));
        inos.extend((0..FILES / 15).map(|index| write_file(volume.fs(), directory, index)));
    }
    for ino in inos.iter().step_by(2) {
        volume.fs().migrate(*ino, "slow", None).expect("the move is accepted");
    }
    settle(&volume);
    for mounts in 0..3 {
        volume.remount();
        requests.take();
        let blocks = look_at_everything(volume.fs());
        assert_eq!(requests.take(), (0, 0), "after {mounts} more mounts");
        assert_eq!(blocks, (volume.used(0) + volume.used(1)) / 512, "the room is what the tiers say");
    }
}

#[test]
fn idle_tiers_are_asked_nothing_for_files_that_were_closed_a_while_ago() {
    let (volume, requests) = counted();
    for index in 0..300 {
        write_file(volume.fs(), Ino::ROOT, index);
    }
    volume.clock.advance(Duration::from_secs(61));
    volume.drain();
    requests.take();
    let blocks = look_at_everything(volume.fs());
    assert_eq!((requests.take(), blocks), ((0, 0), volume.used(0) / 512));
}

#[test]
fn idle_tiers_are_asked_once_for_each_object_after_a_crash_and_never_again() {
    let (mut volume, requests) = counted();
    for index in 0..FILES {
        write_file(volume.fs(), Ino::ROOT, index);
    }
    volume.fs().sync_volume().expect("synced");
    volume.crash();
    volume.drain();
    let used = volume.used(0) / 512;
    requests.take();
    assert_eq!((look_at_everything(volume.fs()), requests.take()), (used, (0, 0)));
    volume.remount();
    requests.take();
    assert_eq!((look_at_everything(volume.fs()), requests.take()), (used, (0, 0)));
}

#[test]
fn numbers_that_a_crash_left_too_old_are_not_believed() {
    let (mut volume, _) = counted();
    let ino = write_file(volume.fs(), Ino::ROOT, 1);
    volume.remount();
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, MIB, &pattern(1, 100_000)).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    volume.crash();
    assert_eq!(find(volume.fs(), "f1").blocks, volume.used(0) / 512);
    volume.remount();
    assert_eq!(find(volume.fs(), "f1").blocks, volume.used(0) / 512);
}

#[test]
fn what_a_file_takes_follows_every_change_at_once() {
    let (mut volume, _) = counted();
    let root = Caller::root();
    let ino = write_file(volume.fs(), Ino::ROOT, 1);
    let check = |volume: &Volume, what: &str| {
        let blocks = volume.fs().attributes(&root, ino).expect("attributes").blocks;
        assert_eq!(blocks, (volume.used(0) + volume.used(1)) / 512, "{what}");
    };
    for _ in 0..2 {
        volume.remount();
        let handle = volume.fs().open(&root, ino, read_write()).expect("opened");
        check(&volume, "opened");
        write_all(volume.fs(), handle, 3 * MIB, &pattern(1, 100_000)).expect("written");
        check(&volume, "written");
        volume.fs().allocate(&root, handle, 4 * MIB, MIB, AllocateKind::Extend).expect("allocated");
        check(&volume, "allocated");
        volume.fs().allocate(&root, handle, 3 * MIB, MIB / 2, AllocateKind::PunchHole).expect("punched");
        check(&volume, "punched");
        let change = SetAttributes { size: Some(3 * MIB + 5000), ..SetAttributes::default() };
        volume.fs().set_attributes(&root, ino, &change).expect("truncated");
        check(&volume, "truncated");
        close(volume.fs(), handle).expect("closed");
        for (tier, range) in [("slow", Some(0..MIB)), ("slow", None), ("fast", None)] {
            volume.fs().migrate(ino, tier, range).expect("the move is accepted");
            settle(&volume);
            check(&volume, "moved");
        }
    }
    volume.remount();
    check(&volume, "mounted again");
}

#[test]
fn what_was_freed_after_a_move_of_a_part_goes_into_the_record() {
    let (mut volume, requests) = counted();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(3, 8 << 20)).expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.fs().migrate(ino, "slow", Some(2 * MIB..4 * MIB)).expect("the move is accepted");
    settle(&volume);
    volume.remount();
    requests.take();
    assert_eq!(find(volume.fs(), "f").blocks, 8 * MIB / 512);
    assert_eq!(requests.take(), (0, 0));
}

#[test]
fn looking_at_files_and_closing_what_did_not_change_logs_nothing() {
    let (mut volume, requests) = counted();
    volume.options.access_times = polymux_fs::AccessTimes::Never;
    for index in 0..50 {
        write_file(volume.fs(), Ino::ROOT, index);
    }
    let commits = Arc::new(Commits::default());
    volume.hook_store(Arc::clone(&commits) as _);
    volume.drain();
    commits.0.store(0, Ordering::Relaxed);
    requests.take();
    for (_, ino) in walk(volume.fs()).expect("all directories can be listed").into_iter().skip(1) {
        for options in [read_only(), read_write()] {
            let handle = volume.fs().open(&Caller::root(), ino, options).expect("opened");
            volume.fs().attributes(&Caller::root(), ino).expect("attributes");
            close(volume.fs(), handle).expect("closed");
        }
    }
    let records = |volume: &Volume| {
        // Records of the clock and of heat are not records of files.
        volume.fs().volume_step();
        volume.fs().upkeep_step();
        commits.0.swap(0, Ordering::Relaxed)
    };
    assert_eq!((records(&volume), requests.take()), (0, (0, 0)));
}

#[test]
fn a_file_that_was_synced_before_its_close_needs_no_record_more() {
    let (mut volume, requests) = counted();
    let commits = Arc::new(Commits::default());
    volume.hook_store(Arc::clone(&commits) as _);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(3, 100_000)).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    commits.0.store(0, Ordering::Relaxed);
    requests.take();
    close(volume.fs(), handle).expect("closed");
    assert_eq!(
        (commits.0.swap(0, Ordering::Relaxed), requests.take()),
        (1, (1, 0)),
        "its times are logged with the room"
    );
    let blocks = volume.fs().attributes(&Caller::root(), ino).expect("attributes").blocks;
    volume.clock.advance(Duration::from_secs(10));
    volume.fs().upkeep_step();
    assert_eq!((blocks, commits.0.load(Ordering::Relaxed), requests.take()), (volume.used(0) / 512, 0, (0, 0)));
}
