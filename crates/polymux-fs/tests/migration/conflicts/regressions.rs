//! Mistakes that were found, each by the smallest order of events that shows it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use polymux_fs::{Caller, SyncKind};
use polymux_tier::{ObjectRef, Tier};
use polymux_types::sync::Mutex;

use super::gate::move_all;
use crate::common::{Hook, HookedTier, Verdict, Volume, create, pattern, read_whole, write_all};
use crate::{MIB, settle};

/// Lets a write at or behind an offset begin when the mover reads, and end when the mover is done or waits for it.
struct WriteAcrossTheCommit {
    from: u64,
    begin: Mutex<Option<Sender<()>>>,
    arrived: (Mutex<Option<Sender<()>>>, Mutex<Receiver<()>>),
    moved: Mutex<Receiver<()>>,
}

impl Hook for WriteAcrossTheCommit {
    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        let begin = self.begin.lock().take();
        if let Some(begin) = begin {
            begin.send(()).expect("the writer waits");
            self.arrived.1.lock().recv().expect("the writer comes to the tier");
        }
        Verdict::Pass
    }

    fn before_write(&self, _object: ObjectRef, offset: u64, _length: usize) -> Verdict {
        if offset < self.from {
            return Verdict::Pass;
        }
        let arrived = self.arrived.0.lock().take();
        if let Some(arrived) = arrived {
            arrived.send(()).expect("the mover waits");
            let _ = self.moved.lock().recv_timeout(Duration::from_secs(1));
        }
        Verdict::Pass
    }
}

/// The append lock was not taken for a part that ends exactly where the file does, so an append that had looked up the
/// tail wrote to the source after the tail had gone.
#[test]
fn an_append_under_way_behind_a_part_that_ends_with_the_file_is_not_lost() {
    let (begin, started) = channel();
    let (arrived, arrival) = channel();
    let (moved, end) = channel();
    let hook = Arc::new(WriteAcrossTheCommit {
        from: 4 * MIB,
        begin: Mutex::new(None),
        arrived: (Mutex::new(Some(arrived)), Mutex::new(arrival)),
        moved: Mutex::new(end),
    });
    let volume = Volume::wrapping(&[64 * MIB, 64 * MIB], |_, tier| -> Arc<dyn Tier> {
        Arc::new(HookedTier::new(tier, Arc::clone(&hook) as Arc<dyn Hook>))
    });
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(1, crate::mebibytes(4));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let more = pattern(2, 5000);
    volume.fs().migrate(ino, "slow", Some(2 * MIB..4 * MIB)).expect("accepted");
    *hook.begin.lock() = Some(begin);
    let (fs, addition) = (volume.fs(), &more);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            started.recv().expect("the mover reads");
            write_all(fs, handle, 4 * MIB, addition).expect("appended");
        });
        move_all(&volume);
        let _ = moved.send(());
    });
    data.extend_from_slice(&more);
    settle(&volume);
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    assert!(read_whole(volume.fs(), ino).expect("read") == data, "the append is lost");
}
