//! Threads that write parts of one spread file while it is moved, synced and put on record.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Volume, create, find, pattern, read_at, read_whole};
use polymux_fs::{Caller, MountOptions, PolicyKind, SyncKind, WriteOrigin};

const MIB: u64 = 1 << 20;
const THREADS: u64 = 6;
const CALL: usize = 32 << 10;

/// One round: every byte that a thread wrote is there, right after it was written, at the end, and after mounting again.
fn round(number: u64, range_bytes: u32) {
    let mut volume = Volume::new(&[256 * MIB; 3]);
    volume.options =
        MountOptions { spread_range_bytes: range_bytes, inline_size_max: 0, flush_interval_ms: 1, ..volume.options };
    volume.remount();
    volume.fs().set_steering(PolicyKind::Spread, &[]).expect("taken");
    let (ino, handle) = create(volume.fs(), "f");
    // Parts do not end where ranges do.
    let part = 3 * MIB + 160 * 1024 + number % 7 * 32768;
    let contents: Vec<Vec<u8>> = (0..THREADS)
        .map(|thread| {
            pattern(u8::try_from(thread + number % 50).expect("small"), usize::try_from(part).expect("small"))
        })
        .collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (volume, contents, is_done) = (&volume, &contents, &is_done);
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let content = &contents[usize::try_from(thread).expect("small")];
                    for (index, chunk) in content.chunks(CALL).enumerate() {
                        let offset = thread * part + (index * CALL) as u64;
                        let count = volume.fs().write(&Caller::root(), handle, offset, chunk, WriteOrigin::Call);
                        assert_eq!(count.expect("written"), chunk.len());
                        let read = read_at(volume.fs(), handle, offset, chunk.len()).expect("read");
                        assert!(read == chunk, "thread {thread} reads other bytes at {offset}");
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            for tier in ["slow", "fast", "middle"].into_iter().cycle() {
                if is_done.load(Ordering::Acquire) {
                    return;
                }
                // Refused while another one is asked for.
                let _ = volume.fs().migrate(ino, tier, None);
                for _ in 0..4 {
                    volume.fs().move_step();
                }
            }
        });
        scope.spawn(move || {
            while !is_done.load(Ordering::Acquire) {
                volume.clock.advance(Duration::from_millis(2));
                volume.fs().step();
                volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
            }
        });
        for writer in writers {
            writer.join().expect("a writer ends");
        }
        is_done.store(true, Ordering::Release);
    });
    let whole = contents.concat();
    let same = |when: &str, read: &[u8]| {
        let place = read.iter().zip(&whole).position(|(one, other)| one != other);
        assert!(read == whole, "round {number}, {when}: {} bytes, the first other one at {place:?}", read.len());
    };
    same("at the end", &read_whole(volume.fs(), ino).expect("read"));
    volume.remount();
    same("mounted again", &read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read"));
    volume.unmount().expect("unmounted");
    assert_eq!(volume.findings(), [] as [String; 0]);
}

#[test]
fn no_byte_is_lost_while_a_spread_file_is_moved_and_synced() {
    let rounds = std::env::var("POLYMUX_SPREAD_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    for number in 0..rounds {
        round(number, if number % 2 == 0 { 64 << 10 } else { 2 << 20 });
    }
}
