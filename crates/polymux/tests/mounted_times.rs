//! Times as one program sees them: a file it changed has a time that never goes back, however its bytes reach the tier.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use mounted::{Plan, TestVolume, skip_where_io_is_named, succeed};

/// How open files do their I/O.
const MODES: [&str; 3] = ["", "passthrough = \"off\"", "passthrough = \"off\"\npage_cache = \"off\""];

type Moment = (i64, i64);

fn times(path: &Path) -> (Moment, Moment) {
    let found = path.metadata().expect("it is there");
    ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()))
}

/// A file of one object, which was closed, so that it may be passed through.
fn settled(volume: &TestVolume, name: &str) -> std::path::PathBuf {
    let path = volume.path().join(name);
    fs::write(&path, vec![1; 64 << 10]).expect("written");
    File::open(&path).and_then(|file| file.sync_all()).expect("synced");
    // Who overwrote it last did not make it longer.
    OpenOptions::new().write(true).open(&path).and_then(|file| file.write_all_at(b"x", 0)).expect("overwritten");
    path
}

#[test]
fn the_modification_time_never_goes_back_over_writes_of_every_kind() {
    for mode in MODES {
        if mode.is_empty() || !skip_where_io_is_named() {
            let Some(volume) = TestVolume::start_with_options(&Plan::anywhere().with_reserve(), mode) else { return };
            let path = settled(&volume, "file");
            let mut last = times(&path);
            for round in 0..60_u64 {
                let open = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
                match round % 6 {
                    0 => open().write_all_at(b"overwritten", round * 100).expect("written"),
                    1 => fs::OpenOptions::new()
                        .append(true)
                        .open(&path)
                        .and_then(|mut file| std::io::Write::write_all(&mut file, b"more"))
                        .expect("appended"),
                    2 => {
                        let file = open();
                        file.write_all_at(b"overwritten", round * 100).expect("written");
                        let while_open = times(&path);
                        assert!(while_open >= last, "{mode:?}, round {round}: {last:?}, then {while_open:?}");
                        file.sync_all().expect("synced");
                        drop(file);
                    }
                    3 => store(&path, round),
                    4 => open().set_len((64 << 10) + round).expect("cut"),
                    _ => {
                        // Two writers, and a look at the times between their writes.
                        let (one, two) = (open(), open());
                        one.write_all_at(b"one", 0).expect("written");
                        let between = times(&path);
                        two.write_all_at(b"two", 8).expect("written");
                        assert!(between >= last && times(&path) >= between, "{mode:?}, round {round}");
                    }
                }
                let now = times(&path);
                assert!(now.0 >= last.0 && now.1 >= last.1, "{mode:?}, round {round}: {last:?}, then {now:?}");
                last = now;
            }
        }
    }
}

/// Changes a byte through a shared mapping and syncs it.
fn store(path: &Path, place: u64) {
    let script = "import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    mapping = mmap.mmap(file.fileno(), 4096)
    mapping[int(sys.argv[2])] ^= 255
    mapping.flush()
    mapping.close()
";
    succeed("python3", ["-c", script, path.to_str().expect("plain text"), &(place % 4096).to_string()]);
}

#[test]
fn a_store_through_a_mapping_moves_the_modification_and_the_change_time() {
    for mode in MODES {
        if mode.is_empty() || !skip_where_io_is_named() {
            let Some(volume) = TestVolume::start_with_options(&Plan::anywhere().with_reserve(), mode) else { return };
            let path = settled(&volume, "file");
            for round in 0..3 {
                let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
                let before = times(&path);
                std::thread::sleep(std::time::Duration::from_millis(20));
                store(&path, round);
                let after = times(&path);
                assert!(after.0 > before.0, "{mode:?}: modified {before:?}, then {after:?}");
                assert!(after.1 > before.1, "{mode:?}: changed {before:?}, then {after:?}");
                drop(file);
                let closed = times(&path);
                assert!(closed >= after, "{mode:?}: {after:?}, and closed {closed:?}");
            }
        }
    }
}
