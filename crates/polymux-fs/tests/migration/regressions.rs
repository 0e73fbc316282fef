//! Each test is a mistake that was made once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use polymux_fs::{Caller, Progress, WriteOrigin};

use crate::common::{Hook, HookedTier, Verdict, Volume, create, pattern, read_whole, write_all};
use crate::{MIB, shares};

/// Tells somebody of a sync of the source, and gives him time to do something meanwhile.
struct AtSync {
    /// Syncs before the one that is told of; the first is before the writers are kept out, the second in the switch.
    before: AtomicU32,
    tell: Mutex<Option<mpsc::Sender<()>>>,
}

impl Hook for AtSync {
    fn before_sync(&self) -> Verdict {
        let passed = self.before.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if !passed && let Some(tell) = self.tell.lock().expect("no test panicked").as_ref() {
            // A receiver that is gone has done its part.
            let _ = tell.send(());
            std::thread::sleep(Duration::from_millis(100));
        }
        Verdict::Pass
    }
}

/// The append lock was not taken for a file that ends exactly where the moved range ends: the append went to the old tier
/// while the tail was given to the new one, and its bytes were cut off with the old object's tail.
#[test]
fn an_append_to_a_file_that_ends_with_the_moved_node_is_not_lost() {
    for size in [2 * MIB, 2 * MIB - 4096] {
        let hook = Arc::new(AtSync { before: AtomicU32::new(0), tell: Mutex::new(None) });
        let wrapped = hook.clone();
        let volume = Volume::wrapping(&[64 * MIB, 64 * MIB], move |index, tier| match index {
            0 => Arc::new(HookedTier::new(tier, wrapped.clone())),
            _ => tier,
        });
        let (ino, handle) = create(volume.fs(), "f");
        // A second node in front, so that the file is not switched under its barrier.
        let mut data = pattern(1, usize::try_from(2 * MIB + size).expect("fits"));
        write_all(volume.fs(), handle, 0, &data).expect("written");
        volume.fs().migrate(ino, "slow", Some(2 * MIB..2 * MIB + 1)).expect("accepted");
        let (tell, told) = mpsc::channel();
        *hook.tell.lock().expect("no test panicked") = Some(tell);
        hook.before.store(1, Ordering::SeqCst);
        let more = pattern(2, 5000);
        std::thread::scope(|scope| {
            let (fs, more) = (volume.fs(), &more);
            let end = data.len() as u64;
            scope.spawn(move || {
                told.recv().expect("the mover syncs the source");
                let wrote = fs.write(&Caller::root(), handle, end, more, WriteOrigin::Call).expect("appended");
                assert_eq!(wrote, more.len());
            });
            while fs.move_step() == Progress::Worked {}
            *hook.tell.lock().expect("no test panicked") = None;
        });
        data.extend_from_slice(&more);
        crate::settle(&volume);
        assert!(read_whole(volume.fs(), ino).expect("read") == data, "size {size}: {:?}", shares(volume.fs(), ino));
    }
}
