//! A metadata store that is short of space: small files go to a tier instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polymux_fs::{Caller, Progress, Wait};
use polymux_meta::{Batch, ChangeRef, StoreError};
use polymux_types::Errno;

use super::common::{StoreHook, Volume, close, create, errno, find, pattern, read_whole, read_write, write_all};
use super::{KIB, MIB, is_inline, sync};

/// A volume whose fast tier also holds the metadata; data leaves 20 MiB free there.
fn volume() -> Volume {
    let mut volume = Volume::new(&[64 * MIB, 16 * MIB]);
    volume.metadata_tier = Some("fast".to_owned());
    volume.set_reserve(0, 20 * MIB);
    volume.remount();
    volume
}

/// Fills the file system of the fast tier from outside of the volume, all but this many bytes.
fn leave_free(volume: &Volume, bytes: u64) {
    volume.memory(0).set_capacity(volume.used(0) + bytes);
    // The free space known of a tier is a moment old at the most.
    volume.clock.advance(Duration::from_secs(1));
}

fn small_file(volume: &Volume, name: &str) -> polymux_types::Ino {
    let (ino, handle) = create(volume.fs(), name);
    write_all(volume.fs(), handle, 0, &pattern(1, 3000)).expect("written");
    sync(volume, handle);
    close(volume.fs(), handle).expect("closed");
    ino
}

#[test]
fn without_room_for_metadata_new_small_files_go_to_a_tier() {
    let volume = volume();
    assert!(is_inline(&volume, small_file(&volume, "with room")));
    // Files may take half of the space that data leaves free.
    leave_free(&volume, 11 * MIB);
    assert!(is_inline(&volume, small_file(&volume, "with little room")));
    leave_free(&volume, 9 * MIB);
    let ino = small_file(&volume, "without room");
    assert_eq!(volume.fs().locate(ino).expect("located").home.as_deref(), Some("slow"));
    // A file that is inline already may shrink and change.
    let handle = volume.fs().open(&Caller::root(), find(volume.fs(), "with room").ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 0, b"changed").expect("written");
    sync(&volume, handle);
    assert!(is_inline(&volume, find(volume.fs(), "with room").ino));
}

/// While set, refuses batches that put inline data; everything else passes.
#[derive(Default)]
struct NoRoomForContent(AtomicBool);

impl StoreHook for NoRoomForContent {
    fn before_commit(&self, batch: &Batch) -> Result<(), StoreError> {
        let puts_content = |change: ChangeRef<'_>| change.key.get(4) == Some(&b'b') && change.value.is_some();
        if self.0.load(Ordering::Relaxed) && batch.iter().any(puts_content) { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

#[test]
fn bytes_that_the_log_has_no_room_for_go_to_an_object() {
    for by_close in [false, true] {
        let mut volume = Volume::new(&[64 * KIB, 16 * MIB]);
        let hook = Arc::new(NoRoomForContent::default());
        volume.hook_store(Arc::clone(&hook) as _);
        let (ino, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, &pattern(1, 2000)).expect("written");
        sync(&volume, handle);
        assert!(is_inline(&volume, ino));
        hook.0.store(true, Ordering::Relaxed);
        write_all(volume.fs(), handle, 1000, &pattern(3, 2000)).expect("written");
        if by_close {
            close(volume.fs(), handle).expect("closed");
            volume.flush_log();
        } else {
            sync(&volume, handle);
        }
        assert!(!is_inline(&volume, ino));
        assert_eq!(volume.inline_records(), 0);
        volume.crash();
        let expected = [&pattern(1, 2000)[..1000], &pattern(3, 2000)].concat();
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
    }
}

#[test]
fn whoever_must_not_wait_moves_no_bytes_to_a_tier_and_what_was_refused_can_be_done_again() {
    let mut volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let hook = Arc::new(NoRoomForContent::default());
    volume.hook_store(Arc::clone(&hook) as _);
    let hasty = Caller { wait: Wait::Never, ..Caller::root() };
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 2000)).expect("written");
    hook.0.store(true, Ordering::Relaxed);
    assert_eq!(errno(volume.fs().flush(&hasty, handle)), Errno::EAGAIN);
    assert_eq!(errno(volume.fs().release_at_once(handle)), Errno::EAGAIN);
    assert!(is_inline(&volume, ino), "its bytes went to a tier");
    // The handle still exists, and a caller that may block moves the bytes.
    volume.fs().release(handle).expect("released");
    assert!(!is_inline(&volume, ino));
    hook.0.store(false, Ordering::Relaxed);
    let (_, handle) = create(volume.fs(), "g");
    write_all(volume.fs(), handle, 0, &pattern(2, 2000)).expect("written");
    volume.fs().release_at_once(handle).expect("released with room");
    assert_eq!(errno(volume.fs().release(handle)), Errno::EBADF, "the handle is still there");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(1, 2000));
}

#[test]
fn idle_small_files_leave_a_metadata_tier_that_is_short_of_room_and_others_stay() {
    let mut volume = volume();
    let idle: Vec<_> = (0..100).map(|index| small_file(&volume, &format!("f{index}"))).collect();
    volume.clock.advance(Duration::from_secs(3600));
    while volume.step() == Progress::Worked {}
    assert!(is_inline(&volume, idle[0]), "with room it stays, however idle it is");
    let open = small_file(&volume, "open");
    let handle = volume.fs().open(&Caller::root(), open, read_write()).expect("opened");
    leave_free(&volume, 11 * MIB);
    volume.clock.advance(Duration::from_secs(3600));
    let recent = small_file(&volume, "recent");
    for _ in 0..10 {
        volume.step();
    }
    assert!(is_inline(&volume, open), "it is open");
    assert!(is_inline(&volume, recent), "it was just closed");
    for ino in &idle {
        assert_eq!(volume.fs().locate(*ino).expect("located").home.as_deref(), Some("slow"));
    }
    assert_eq!(volume.inline_records(), 2);
    close(volume.fs(), handle).expect("closed");
    volume.flush_log();
    volume.crash();
    for ino in &idle {
        assert_eq!(read_whole(volume.fs(), *ino).expect("read"), pattern(1, 3000));
    }
    volume.clock.advance(Duration::from_secs(601));
    for _ in 0..10 {
        volume.step();
    }
    assert_eq!(volume.inline_records(), 0, "ten minutes after its last use it moves");
}
