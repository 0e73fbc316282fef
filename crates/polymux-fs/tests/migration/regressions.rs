//! Each test is a mistake that was made once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use polymux_fs::{AllocateKind, Caller, Progress, SetAttributes, WriteOrigin};
use polymux_tier::ObjectRef;

use crate::common::{Hook, HookedTier, Verdict, Volume, create, find, pattern, read_whole, write_all};
use crate::{MIB, shares};

/// Reports a sync of the source to another thread, and gives it time to do something meanwhile.
struct AtSync {
    /// Syncs before the reported one; the first is before the writers are kept out, the second in the switch.
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

/// A volume of tiers with these capacities, of which one has a hook.
fn volume_with_hook<H: Hook + 'static>(capacities: &[u64], place: usize, hook: &Arc<H>) -> Volume {
    let hook = hook.clone();
    Volume::wrapping(capacities, move |index, tier| match index == place {
        true => Arc::new(HookedTier::new(tier, hook.clone())),
        false => tier,
    })
}

/// The append lock was not taken for a file that ends exactly where the moved range ends: the append went to the old tier
/// while the tail was given to the new one, and its bytes were cut off with the old object's tail.
#[test]
fn an_append_to_a_file_that_ends_with_the_moved_node_is_not_lost() {
    for size in [2 * MIB, 2 * MIB - 4096] {
        let hook = Arc::new(AtSync { before: AtomicU32::new(0), tell: Mutex::new(None) });
        let volume = volume_with_hook(&[64 * MIB, 64 * MIB], 0, &hook);
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

/// A job moved a node that the file had lost meanwhile, and so left a run behind the end of the file. The next mover claimed
/// an empty range for it, which no tier can free, and no cut or move of the file worked any more.
#[test]
fn a_file_that_was_cut_before_its_node_moved_can_be_moved_and_cut_again() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(3, crate::mebibytes(3));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let cut = |data: &mut Vec<u8>, mebibytes: u64| {
        data.truncate(usize::try_from(mebibytes * MIB).expect("fits"));
        let change = SetAttributes { size: Some(mebibytes * MIB), ..SetAttributes::default() };
        volume.fs().set_attributes(&Caller::root(), ino, &change).expect("cut");
    };
    let migrate = |tier, range| {
        volume.fs().migrate(ino, tier, range).expect("accepted");
        crate::settle(&volume);
    };
    volume.fs().migrate(ino, "slow", Some(2 * MIB..3 * MIB)).expect("accepted");
    cut(&mut data, 1);
    crate::settle(&volume);
    migrate("slow", Some(0..MIB));
    migrate("fast", Some(0..MIB));
    let more = pattern(4, crate::mebibytes(4));
    write_all(volume.fs(), handle, MIB, &more).expect("appended");
    data.extend_from_slice(&more);
    migrate("slow", Some(2 * MIB..4 * MIB));
    cut(&mut data, 3);
    migrate("slow", None);
    assert!(read_whole(volume.fs(), ino).expect("read") == data);
    assert_eq!(shares(volume.fs(), ino), [("slow".to_owned(), 3 * MIB)]);
}

/// Reports the mover's first read to another thread, and waits for that thread for a while.
struct AtRead {
    tell: Mutex<Option<mpsc::Sender<()>>>,
    done: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Hook for AtRead {
    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        let told = self.tell.lock().expect("no test panicked").take();
        if let Some(tell) = told {
            tell.send(()).expect("somebody waits");
            let done = self.done.lock().expect("no test panicked").take().expect("set with the other");
            // Where the writer waits for the end of the move, this waits in vain.
            let _ = done.recv_timeout(Duration::from_millis(300));
        }
        Verdict::Pass
    }
}

/// SQLite sets the size of its database, which it has, at each checkpoint of the log, several times a second. Each stopped the move of the file, so that
/// it got on by single nodes with the writers kept out.
#[test]
fn setting_the_size_that_a_file_has_stops_no_move() {
    let hook = Arc::new(AtRead { tell: Mutex::new(None), done: Mutex::new(None) });
    let volume = volume_with_hook(&[64 * MIB, 64 * MIB], 0, &hook);
    let (ino, handle) = create(volume.fs(), "rows.db");
    let data = pattern(1, crate::mebibytes(8));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    let ((tell, told), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    *hook.tell.lock().expect("no test panicked") = Some(tell);
    *hook.done.lock().expect("no test panicked") = Some(is_done);
    std::thread::scope(|scope| {
        let fs = volume.fs();
        scope.spawn(move || {
            told.recv().expect("the mover reads the source");
            let change = SetAttributes { size: Some(8 * MIB), ..SetAttributes::default() };
            let after = fs.set_attributes(&Caller::root(), ino, &change).expect("it has that size");
            assert_eq!(after.size, 8 * MIB);
            // The mover may have given up waiting.
            let _ = done.send(());
        });
        while fs.move_step() == Progress::Worked {}
        // A mover that reads nothing keeps no test waiting.
        *hook.tell.lock().expect("no test panicked") = None;
    });
    assert_eq!((volume.counter("moves_stopped"), volume.counter("moves_given_up")), (0, 0));
    crate::settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [("slow".to_owned(), 8 * MIB)]);
    assert!(read_whole(volume.fs(), ino).expect("read") == data);
}

/// A block was relocated off the very tier that the file was moving to, the mover brought it back, and then its bytes were
/// freed there as those of the block that had left.
#[test]
fn a_block_that_leaves_the_target_of_a_move_and_comes_back_with_it_keeps_its_bytes() {
    let hook = Arc::new(AtRead { tell: Mutex::new(None), done: Mutex::new(None) });
    let volume = volume_with_hook(&[4 * MIB, 64 * MIB], 1, &hook);
    let fs = volume.fs();
    let (ino, handle) = create(fs, "f");
    let half = 512 * 1024_u64;
    let mut data = pattern(1, 2 * 512 * 1024 + 65_536);
    data[512 * 1024..1024 * 1024].fill(0);
    write_all(fs, handle, 0, &data[..512 * 1024]).expect("written");
    write_all(fs, handle, 2 * half, &data[1024 * 1024..]).expect("written");
    fs.migrate(ino, "slow", None).expect("accepted");
    crate::settle(&volume);
    fs.migrate(ino, "fast", None).expect("accepted");
    crate::settle(&volume);
    let (_, filler) = create(fs, "filler");
    write_all(fs, filler, 0, &pattern(9, 4 * 1024 * 1024)).expect("the fast tier is full");
    // A block in the middle leaves the full tier, so that there is something to move.
    write_all(fs, handle, half, &pattern(2, 4096)).expect("relocated");
    data[512 * 1024..512 * 1024 + 4096].copy_from_slice(&pattern(2, 4096));
    assert_eq!(shares(fs, ino).len(), 2, "{:?}", shares(fs, ino));
    let resize = |handle, size| {
        let change = SetAttributes { size: Some(size), handle: Some(handle), ..SetAttributes::default() };
        fs.set_attributes(&Caller::root(), find(fs, "filler").ino, &change).expect("cut");
    };
    resize(filler, 4096);
    let (tell, told) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    *hook.done.lock().expect("no test panicked") = Some(is_done);
    fs.migrate(ino, "fast", None).expect("accepted");
    *hook.tell.lock().expect("no test panicked") = Some(tell);
    let late = pattern(3, 4096);
    std::thread::scope(|scope| {
        let (resize, late) = (&resize, &late);
        scope.spawn(move || {
            told.recv().expect("the mover reads");
            write_all(fs, filler, 0, &pattern(9, 4 * 1024 * 1024)).expect("the fast tier is full again");
            write_all(fs, handle, half + 8192, late).expect("relocated");
            // In place, so no pending free is carried out with it.
            resize(filler, 4096);
            let _ = done.send(());
        });
        while fs.move_step() == Progress::Worked {}
    });
    data[512 * 1024 + 8192..512 * 1024 + 12_288].copy_from_slice(&late);
    crate::settle(&volume);
    assert!(read_whole(fs, ino).expect("read") == data, "{:?}", shares(fs, ino));
}

/// The tier that knew the size owned nothing any more, and so was never given up: a drain of it went round for ever.
#[test]
fn a_drain_takes_the_last_block_along_although_another_tier_owns_what_follows() {
    let volume = Volume::new(&[64 * MIB, MIB]);
    let fs = volume.fs();
    let (ino, handle) = create(fs, "f");
    write_all(fs, handle, 0, &pattern(1, 100_000)).expect("written");
    fs.migrate(ino, "slow", None).expect("accepted");
    crate::settle(&volume);
    // There is no space for it behind the file, so the tail goes to the other tier.
    fs.allocate(&Caller::root(), handle, 200_000, 4 * MIB, AllocateKind::KeepSize).expect("reserved");
    write_all(fs, handle, 100_000, &pattern(2, 10)).expect("appended to the last block");
    fs.start_drain("slow").expect("there is room");
    for _ in 0..200 {
        volume.step();
        fs.move_step();
    }
    let drains = fs.drains();
    assert!(drains.iter().all(|drain| drain.is_empty), "{drains:?}");
    let mut data = pattern(1, 100_000);
    data.extend_from_slice(&pattern(2, 10));
    assert!(read_whole(fs, ino).expect("read") == data);
}
