//! Operations that wait for the second copy of the metadata store, and their behaviour where it lags behind.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{
    Full, HookedTier, StoreHook, Volume, bytes_on, close, create, finish_job, pattern, read_whole, write_all,
};
use polymux_fs::{Caller, HandleId, SyncKind};
use polymux_meta::{CopySync, Sequence};
use polymux_tier::Tier;
use polymux_types::Ino;

/// A copy that answers as set by the test, and looks at a tier on each request.
#[derive(Default)]
struct Copy {
    tier: Mutex<Option<Arc<dyn Tier>>>,
    /// Times that it still does not come along.
    late: AtomicU64,
    /// Times that it does not let itself be given up, because the new epoch is on its way.
    stubborn: AtomicU64,
    /// Bytes on the tier and epoch of its label at each waiting and at each giving up.
    waited: Mutex<Vec<(Sequence, u64)>>,
    given_up: Mutex<Vec<(u64, u64)>>,
}

impl Copy {
    fn used_and_epoch(&self) -> (u64, u64) {
        let tier = self.tier.lock().unwrap();
        let tier = tier.as_ref().expect("the tier is known");
        (tier.space().unwrap().used, tier.read_label().unwrap().epoch.0)
    }

    fn take(counter: &AtomicU64) -> bool {
        counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl StoreHook for Copy {
    fn sync_copy(&self, through: Sequence) -> CopySync {
        self.waited.lock().unwrap().push((through, self.used_and_epoch().0));
        if Self::take(&self.late) { CopySync::Late } else { CopySync::Safe }
    }

    fn abandon_copy(&self, _raised: Sequence) -> CopySync {
        self.given_up.lock().unwrap().push(self.used_and_epoch());
        if Self::take(&self.stubborn) {
            return CopySync::Late;
        }
        self.late.store(0, Ordering::SeqCst);
        CopySync::Safe
    }
}

const LENGTH: usize = 300_000;

/// A volume with a file, the copy, and bytes in use and epoch of the label.
fn volume_with_file() -> (Volume, Arc<Copy>, u64, u64) {
    let copy = Arc::new(Copy::default());
    let mut volume = Volume::wrapping(&[16 << 20], |_, tier| {
        *copy.tier.lock().unwrap() = Some(Arc::clone(&tier));
        tier
    });
    volume.hook_store(Arc::clone(&copy) as _);
    let (_, handle) = create(volume.fs(), "file");
    write_all(volume.fs(), handle, 0, &pattern(3, LENGTH)).expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.drain();
    let (used, epoch) = copy.used_and_epoch();
    assert!(used >= LENGTH as u64);
    copy.waited.lock().unwrap().clear();
    (volume, copy, used, epoch)
}

fn unlink(volume: &Volume) {
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"file").expect("unlinked");
}

#[test]
fn bytes_are_freed_only_after_the_copy_knows_of_it() {
    let (volume, copy, used, epoch) = volume_with_file();
    unlink(&volume);
    volume.drain();
    let waited = copy.waited.lock().unwrap().clone();
    assert!(!waited.is_empty() && waited.iter().all(|(_, seen)| *seen == used), "{waited:?} of {used}");
    assert!(copy.used_and_epoch().0 < used, "then they are freed");
    assert!(copy.given_up.lock().unwrap().is_empty());
    assert_eq!(copy.used_and_epoch().1, epoch, "a copy that comes along needs no new epoch");
}

#[test]
fn a_copy_that_does_not_answer_is_made_useless_before_anything_is_freed() {
    let (mut volume, copy, used, epoch) = volume_with_file();
    copy.late.store(u64::MAX, Ordering::SeqCst);
    // The first new epoch may be on its way into the copy, so it is waited for once more.
    copy.stubborn.store(1, Ordering::SeqCst);
    unlink(&volume);
    volume.drain();
    assert_eq!(*copy.given_up.lock().unwrap(), [(used, epoch + 1), (used, epoch + 2)], "labels first, then bytes");
    assert!(copy.used_and_epoch().0 < used, "work goes on without the copy");
    let notes = volume.fs().status().unwrap().recovery;
    assert!(notes.iter().any(|note| note.contains("second copy")), "{notes:?}");
    // The labels match the record of the store, however the mount ends.
    volume.crash();
    volume.remount();
    assert!(copy.used_and_epoch().1 > epoch + 2);
}

#[test]
fn an_epoch_is_raised_at_a_mount_only_after_the_copy_knows_of_it_or_is_given_up() {
    let (mut volume, copy, _, epoch) = volume_with_file();
    volume.unmount().expect("unmounted");
    copy.late.store(1, Ordering::SeqCst);
    volume.mount().expect("mounted");
    let given_up = copy.given_up.lock().unwrap().clone();
    assert_eq!(given_up.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>(), [epoch + 1]);
}

#[test]
fn numbers_are_used_only_after_the_copy_knows_of_their_range() {
    let (mut volume, copy, _, _) = volume_with_file();
    volume.remount();
    copy.waited.lock().unwrap().clear();
    let (_, handle) = create(volume.fs(), "another");
    assert_eq!(copy.waited.lock().unwrap().len(), 1, "for the range of inode numbers");
    write_all(volume.fs(), handle, 0, &pattern(4, LENGTH)).expect("written");
    assert_eq!(copy.waited.lock().unwrap().len(), 2, "for the range of object ids");
    for number in 0..200 {
        create(volume.fs(), &format!("one of many {number}"));
    }
    assert_eq!(copy.waited.lock().unwrap().len(), 2, "and not for each number");
}

/// A file that went on on the slow tier, and the switch that makes this tier full.
struct Switched {
    volume: Volume,
    copy: Arc<Copy>,
    slow_is_full: Arc<Full>,
    ino: Ino,
    handle: HandleId,
    data: Vec<u8>,
    /// Bytes in use on the fast tier.
    used: u64,
}

/// The first 100,000 bytes of the file are on the fast tier, which was its size authority until then.
fn file_that_went_on_elsewhere() -> Switched {
    let copy = Arc::new(Copy::default());
    let full = [Arc::new(Full::default()), Arc::new(Full::default())];
    let mut volume = Volume::wrapping(&[4 << 20, 16 << 20], |index, tier| {
        if index == 0 {
            *copy.tier.lock().unwrap() = Some(Arc::clone(&tier));
        }
        Arc::new(HookedTier::new(tier, Arc::clone(&full[index]) as _))
    });
    volume.hook_store(Arc::clone(&copy) as _);
    let (ino, handle) = create(volume.fs(), "file");
    let data = pattern(3, LENGTH);
    write_all(volume.fs(), handle, 0, &data[..100_000]).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    full[0].0.store(true, Ordering::Relaxed);
    write_all(volume.fs(), handle, 100_000, &data[100_000..]).expect("written");
    full[0].0.store(false, Ordering::Relaxed);
    assert!(bytes_on(volume.fs(), ino, "slow") >= 190_000);
    copy.waited.lock().unwrap().clear();
    let (used, _) = copy.used_and_epoch();
    let [_, slow_is_full] = full;
    Switched { volume, copy, slow_is_full, ino, handle, data, used }
}

impl Switched {
    /// The copy was waited for when nothing more was on the fast tier than before.
    fn assert_waited_before_the_first_byte(&self) {
        let waited = self.copy.waited.lock().unwrap();
        assert_eq!(waited.first().map(|(_, seen)| *seen), Some(self.used), "{waited:?}");
        assert!(self.copy.used_and_epoch().0 > self.used, "then something came");
        assert_eq!(read_whole(self.volume.fs(), self.ino).expect("read"), self.data);
    }
}

#[test]
fn blocks_are_moved_to_an_earlier_size_authority_only_after_the_copy_knows_of_the_switch() {
    let file = file_that_went_on_elsewhere();
    let fs = file.volume.fs();
    let job = fs.migrate(file.ino, "fast", None).expect("accepted");
    finish_job(fs, job);
    assert_eq!(bytes_on(fs, file.ino, "slow"), 0);
    file.assert_waited_before_the_first_byte();
}

#[test]
fn an_overwrite_that_goes_to_an_earlier_size_authority_waits_until_the_copy_knows_of_the_switch() {
    for (offset, length) in [(200_000, 5000), (LENGTH - 1000, 1000)] {
        let mut file = file_that_went_on_elsewhere();
        file.slow_is_full.0.store(true, Ordering::Relaxed);
        let change = pattern(7, length);
        write_all(file.volume.fs(), file.handle, offset as u64, &change).expect("there is space elsewhere");
        file.data[offset..offset + length].copy_from_slice(&change);
        file.assert_waited_before_the_first_byte();
    }
}
