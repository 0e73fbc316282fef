//! Files that the kernel was given to change itself: how a test comes to one, and how it makes sure that it has one.
//!
//! Invariant: on the tier of the metadata a file is passed through for changes only where the plan keeps blocks for root
//! (`Plan::with_reserve`), and only after a description that overwrote it and did not make it longer (docs/design/0026).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::environment::{have_loop_devices, skip, skip_where_io_is_named, wanted_io};
use super::native::{FileSystemKind, NativeMount, text};
use super::volume::{Plan, TestVolume};

/// The words of `where` for a file that an open file description may change without a message.
pub const CHANGED_DIRECTLY: &str = "passed through to its object, also for changes";

/// How long the daemon may take to hear that an earlier description was closed.
const RELEASE_DEADLINE: Duration = Duration::from_secs(20);

/// Writes the first byte of a file over itself through a description of its own.
pub fn overwrite_in_place(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("it may be written");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).expect("it is not empty");
    file.write_all_at(&byte, 0).and_then(|()| file.sync_all()).expect("overwritten");
}

/// A mounted volume of one tier, on an ext4 that keeps blocks for root. Where there is another tier, a file that grows is not passed through for
/// changes. The volume is dropped before its device.
pub struct OneTier {
    pub volume: TestVolume,
    _device: NativeMount,
    _ground: tempfile::TempDir,
}

impl OneTier {
    /// On a sparse image of so many MiB. `None`, after saying why, where files are not passed through here.
    pub fn start(device_mib: u64) -> Option<Self> {
        if skip_where_io_is_named() {
            return None;
        }
        let obstacle = Plan::anywhere().obstacle();
        if let Some(why) =
            obstacle.or((!have_loop_devices()).then_some("a tier that keeps blocks for root needs loop devices"))
        {
            skip(why);
            return None;
        }
        let ground = tempfile::tempdir().expect("a directory");
        let device = NativeMount::new(ground.path(), "device", FileSystemKind::Ext4WithReserve, device_mib);
        let tier = device.path().join("only");
        fs::create_dir(&tier).expect("made");
        let mut volume = TestVolume::on_tiers(vec![("only".to_owned(), tier)]);
        volume.format(None);
        volume.mount();
        let passthrough = volume.status()["passthrough"].as_str().expect("words").to_owned();
        if !passthrough.starts_with("on") {
            skip(&format!("passthrough is {passthrough}"));
            return None;
        }
        Some(Self { volume, _device: device, _ground: ground })
    }
}

impl TestVolume {
    /// How the descriptions of a file do their I/O, in the words of `where`.
    pub fn io_of(&self, path: &Path) -> String {
        let finished = self.polymux(["where", "--json", text(path)]);
        assert!(finished.is_success(), "where failed: {}", finished.text());
        let told: serde_json::Value = serde_json::from_str(&finished.stdout).expect("where --json prints JSON");
        told["io"].as_str().expect("words").to_owned()
    }

    /// Overwrites a file and opens it with `open`, so that the kernel changes it itself. Where the environment names another way for all
    /// files, it is open in that one.
    pub fn opened_for_direct_changes<T>(&self, path: &Path, open: impl Fn() -> T) -> T {
        let began = Instant::now();
        loop {
            overwrite_in_place(path);
            let opened = open();
            let found = self.io_of(path);
            if found == CHANGED_DIRECTLY || !wanted_io().is_empty() {
                return opened;
            }
            // The daemon may hear late that a description which made it longer was closed: then this overwriting counts as a part of it.
            assert!(began.elapsed() < RELEASE_DEADLINE, "{} is {found}", path.display());
            drop(opened);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
