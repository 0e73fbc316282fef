//! A file that several threads write at once while it is moved, under any policy that spreads files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::native::text;
use super::{Random, TestVolume};

const PART: u64 = 12 << 20;
const CHUNK: usize = 256 << 10;

/// Writes it, and asserts that each part is what its thread wrote.
pub fn write_while_it_is_moved(volume: &TestVolume) {
    let path = volume.path().join("shared");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("made");
    let part = |thread: u64| Random::new(10 + thread).bytes(usize::try_from(PART).expect("small"));
    let parts: Vec<Vec<u8>> = (0..6).map(part).collect();
    std::thread::scope(|scope| {
        for (thread, part) in (0_u64..).zip(&parts) {
            let file = &file;
            scope.spawn(move || {
                for (index, chunk) in (0_u64..).zip(part.chunks(CHUNK)) {
                    file.write_all_at(chunk, thread * PART + index * CHUNK as u64).expect("written");
                }
            });
        }
        scope.spawn(|| {
            let moves = ["slow", "fast", "slow"].map(|tier| {
                std::thread::sleep(Duration::from_millis(50));
                // Refused while another one is asked for.
                volume.polymux(["migrate", text(&path), "--to", tier]).is_success()
            });
            assert!(moves.contains(&true), "nothing was moved");
        });
    });
    file.sync_all().expect("synced");
    assert!(fs::read(&path).expect("read") == parts.concat());
}
