//! The metadata store has no space for a change of the block map. Invariants: the operation fails as a whole or in part,
//! memory agrees with the store, and data that is written and synced afterwards survives a remount.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use common::{StoreHook, Volume, create, errno, pattern, read_whole, read_write, write_all};
use polymux_fs::{Caller, FileSystem, SetAttributes, SyncKind, WriteOrigin, check_records};
use polymux_meta::{Batch, StoreError};
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// More commits than any of the operations takes.
const COMMITS: i64 = 12;

/// Refuses one commit, the given number of commits after it was armed.
struct RefuseOne(AtomicI64);

impl StoreHook for RefuseOne {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

/// A file over both tiers, and the operation with each of its commits refused in turn. Returns how many were refused.
fn with_each_commit_refused(operation: impl Fn(&FileSystem, Ino, &mut Vec<u8>) -> polymux_fs::Result<()>) -> usize {
    let mut refused = 0;
    for commit in 0..COMMITS {
        let mut volume = Volume::new(&[64 * KIB, 16 * MIB]);
        let hook = Arc::new(RefuseOne(AtomicI64::new(-1)));
        volume.hook_store(Arc::clone(&hook) as _);
        volume.remount();
        let (ino, handle) = create(volume.fs(), "f");
        let mut data = pattern(1, 40_000);
        write_all(volume.fs(), handle, 0, &data).expect("written");
        let more = pattern(2, 100_000);
        write_all(volume.fs(), handle, 40_000, &more).expect("spilled");
        data.extend_from_slice(&more);
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        hook.0.store(commit, Ordering::SeqCst);
        let mut changed = data.clone();
        let result = operation(volume.fs(), ino, &mut changed);
        let done = if result.is_ok() {
            data = changed;
            None
        } else {
            Some(changed)
        };
        let was_refused = hook.0.swap(-1, Ordering::SeqCst) < 0;
        refused += usize::from(was_refused);
        assert!(was_refused || result.is_ok(), "{result:?}");
        if read_whole(volume.fs(), ino).expect("read") != data {
            // Refused after the change itself, as the freeing of the cut range is.
            let done = done.expect("an operation that reports success is done");
            assert!(read_whole(volume.fs(), ino).expect("read") == done, "commit {commit}: {result:?}");
            data = done;
        }
        // New data must lie where the store says that it lies.
        let over = pattern(3, 30_000);
        write_all(volume.fs(), handle, 1000, &over).expect("written");
        data.resize(data.len().max(31_000), 0);
        data[1000..31_000].copy_from_slice(&over);
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        volume.crash();
        assert!(read_whole(volume.fs(), ino).expect("read") == data, "commit {commit}: after a crash");
        let report = check_records(&*volume.store()).expect("checked");
        assert!(report.violations.is_empty(), "commit {commit}: {:?}", report.violations);
    }
    refused
}

fn cut(fs: &FileSystem, ino: Ino, data: &mut Vec<u8>, size: usize) -> polymux_fs::Result<()> {
    let change = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
    data.truncate(size);
    fs.set_attributes(&Caller::root(), ino, &change).map(|_| ())
}

#[test]
fn a_cut_that_the_store_refuses_leaves_the_file_as_it_was() {
    assert!(with_each_commit_refused(|fs, ino, data| cut(fs, ino, data, 10_000)) > 0);
    assert!(with_each_commit_refused(|fs, ino, data| cut(fs, ino, data, 0)) > 0);
}

/// A hole in front is written, for which the first tier has no space: those blocks are relocated.
#[test]
fn a_relocation_that_the_store_refuses_leaves_the_old_bytes_where_they_were() {
    let refused = with_each_commit_refused(|fs, ino, data| {
        let handle = fs.open(&Caller::root(), ino, read_write()).expect("opened");
        let (_, filler) = fs.create(&Caller::root(), Ino::ROOT, b"filler", 0o644, read_write())?;
        // It takes the rest of the first tier; where it cannot, there is nothing to relocate, and another round does.
        let filled = fs.write(&Caller::root(), filler, 0, &pattern(5, 64 << 10), WriteOrigin::Call);
        filled?;
        fs.allocate(&Caller::root(), handle, 8192, 16_384, polymux_fs::AllocateKind::PunchHole)?;
        data[8192..24_576].fill(0);
        fs.write(&Caller::root(), filler, 64 << 10, &pattern(6, 64 << 10), WriteOrigin::Call)?;
        let over = pattern(4, 16_384);
        let written = fs.write(&Caller::root(), handle, 8192, &over, WriteOrigin::Call)?;
        data[8192..8192 + written].copy_from_slice(&over[..written]);
        Ok(())
    });
    assert!(refused > 0);
}

#[test]
fn a_file_that_moves_on_to_the_next_tier_stays_whole_where_the_store_refuses() {
    for commit in 0..COMMITS {
        let mut volume = Volume::new(&[64 * KIB, 16 * MIB]);
        let hook = Arc::new(RefuseOne(AtomicI64::new(-1)));
        volume.hook_store(Arc::clone(&hook) as _);
        volume.remount();
        let (ino, handle) = create(volume.fs(), "f");
        let mut data = pattern(1, 40_000);
        write_all(volume.fs(), handle, 0, &data).expect("written");
        let more = pattern(2, 100_000);
        hook.0.store(commit, Ordering::SeqCst);
        let written = volume.fs().write(&Caller::root(), handle, 40_000, &more, WriteOrigin::Call);
        hook.0.store(-1, Ordering::SeqCst);
        let written = match written {
            Ok(count) => count,
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENOSPC);
                0
            }
        };
        write_all(volume.fs(), handle, 40_000 + written as u64, &more[written..]).expect("written");
        data.extend_from_slice(&more);
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        volume.crash();
        assert!(read_whole(volume.fs(), ino).expect("read") == data, "commit {commit}: after a crash");
    }
}

/// A store whose file system turns read-only.
struct TurnsReadOnly(AtomicBool);

impl StoreHook for TurnsReadOnly {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        self.stopped().map_or(Ok(()), Err)
    }

    fn stopped(&self) -> Option<StoreError> {
        self.0.load(Ordering::Acquire).then(|| StoreError::ReadOnly("a test".to_owned()))
    }
}

#[test]
fn with_a_read_only_store_everything_is_read_and_each_change_is_refused_as_one() {
    let mut volume = Volume::new(&[16 << 20, 16 << 20]);
    let hook = Arc::new(TurnsReadOnly(AtomicBool::new(false)));
    volume.metadata_tier = Some("fast".to_owned());
    volume.hook_store(Arc::clone(&hook) as _);
    let fs = volume.fs();
    let (small, handle) = create(fs, "inline");
    write_all(fs, handle, 0, b"a few bytes").expect("there is room");
    let (large, other) = create(fs, "large");
    write_all(fs, other, 0, &pattern(3, 200_000)).expect("there is room");
    hook.0.store(true, Ordering::Release);
    assert_eq!(read_whole(fs, small).expect("what is in memory is read"), b"a few bytes");
    assert_eq!(read_whole(fs, large).expect("bytes of tiers are read"), pattern(3, 200_000));
    let root = Caller::root();
    let changes = [
        errno(fs.write(&root, handle, 0, b"x", WriteOrigin::Call)),
        errno(fs.write(&root, other, 0, b"x", WriteOrigin::Call)),
        errno(fs.unlink(&root, Ino::ROOT, b"inline")),
        errno(fs.make_directory(&root, Ino::ROOT, b"new", 0o755)),
    ];
    assert_eq!(changes, [Errno::EROFS; 4]);
    let tiers = fs.status().expect("status answers").tiers;
    let why = tiers[0].shortage.clone().expect("it is told");
    assert!(why.contains("read-only") && why.contains("mounted again"), "{why}");
    assert_eq!(tiers[1].shortage, None);
}
