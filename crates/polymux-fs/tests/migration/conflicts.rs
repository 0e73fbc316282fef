//! Writers, truncation and others in the middle of a copy, in a known order.
//!
//! What is true here: a *gate* stands in front of every tier and lets one action of a user begin before the n-th operation
//! of the mover. The mover goes on when the action is done, or after a moment where the action waits for the mover. So for
//! every action each place in a move is tried, and whatever the order was, the file holds what its users wrote.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polymux_fs::{Caller, SyncKind};

use crate::MIB;
use crate::common::{Volume, create, pattern, write_all};

#[path = "conflicts/actions.rs"]
mod actions;
#[path = "conflicts/crashes.rs"]
mod crashes;
#[path = "conflicts/gate.rs"]
pub mod gate;

/// Tells the other thread to end, after a panic too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A sync chooses the objects that it syncs, and one of them may be gone by then, with another one of the file on the same tier.
#[test]
fn a_sync_beside_moves_to_and_fro_takes_no_object_that_was_moved_off_for_lost_bytes() {
    const LENGTH: usize = 64 << 10;
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "file");
    write_all(volume.fs(), handle, 0, &pattern(1, LENGTH)).expect("written");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, ends, ended) = (volume.fs(), Ends(&ended), &ended);
        scope.spawn(move || {
            while !ended.load(Ordering::Acquire) {
                for tier in ["slow", "fast"] {
                    // Refused while the one before waits.
                    drop(fs.migrate(ino, tier, None));
                    for _ in 0..20 {
                        fs.move_step();
                        fs.step();
                    }
                }
            }
        });
        let write_and_sync = move || {
            let began = Instant::now();
            for turn in (0_u64..).take_while(|_| began.elapsed() < Duration::from_secs(2)) {
                write_all(fs, handle, turn * 4096 % LENGTH as u64, &pattern(2, 4096)).expect("written");
                fs.sync(&Caller::root(), handle, SyncKind::Data).expect("nothing was lost");
            }
        };
        let others: Vec<_> = (0..3).map(|_| scope.spawn(write_and_sync)).collect();
        write_and_sync();
        others.into_iter().for_each(|other| other.join().expect("no sync failed"));
        drop(ends);
    });
}
