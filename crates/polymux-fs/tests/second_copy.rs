//! Operations that wait for the second copy of the metadata store, and their behaviour where it lags behind.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{StoreHook, Volume, close, create, pattern, write_all};
use polymux_fs::Caller;
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
