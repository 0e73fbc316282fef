//! ext4 and XFS on recorded disks, and a volume on both.
//!
//! Invariants:
//! * Taken down in order, also when a test panics: volume, native file systems with their loop devices (which free
//!   themselves with the mount), recorder, directory.
//! * Several stands may hold images of the same file systems at once: XFS is mounted with `nouuid`, which
//!   overlooks its own identity.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::disk::Disk;
use super::recorder::RecordedDisks;
use crate::mounted::native::{is_mounted, text};
use crate::mounted::{Finished, TestVolume, run, succeed};

/// Which file system is the fast tier, and so holds the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    Ext4BeforeXfs,
    XfsBeforeExt4,
}

impl Pair {
    /// Kinds of the fast and of the slow tier.
    fn kinds(self) -> [Kind; 2] {
        match self {
            Self::Ext4BeforeXfs => [Kind::Ext4, Kind::Xfs],
            Self::XfsBeforeExt4 => [Kind::Xfs, Kind::Ext4],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The smallest XFS that `mkfs.xfs` makes, and about as much ext4.
    fn length(self) -> u64 {
        match self {
            Self::Ext4 => 256 << 20,
            Self::Xfs => 300 << 20,
        }
    }

    fn format(self, file: &Path) {
        match self {
            Self::Ext4 => succeed("mkfs.ext4", ["-q", "-F", "-m", "0", "-E", "nodiscard", text(file)]),
            Self::Xfs => succeed("mkfs.xfs", ["-q", "-f", "-K", text(file)]),
        };
    }

    fn check(self, file: &Path) -> Finished {
        match self {
            Self::Ext4 => run(Command::new("e2fsck").arg("-fn").arg(file)),
            Self::Xfs => run(Command::new("xfs_repair").arg("-n").arg("-f").arg(file)),
        }
    }
}

/// Whether ext4 asks its disk to flush; XFS always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    On,
    Off,
}

/// A mounted native file system.
struct Ground {
    kind: Kind,
    path: PathBuf,
}

impl Ground {
    fn mount(&self, file: &Path, barriers: Barriers) -> Result<(), String> {
        let options = match (self.kind, barriers) {
            (Kind::Xfs, _) => "loop,nouuid",
            (Kind::Ext4, Barriers::On) => "loop",
            (Kind::Ext4, Barriers::Off) => "loop,barrier=0",
        };
        let mut command = Command::new("mount");
        command.args(["-t", self.kind.name(), "-o", options]).arg(file).arg(&self.path);
        let finished = run(&mut command);
        if finished.is_success() { Ok(()) } else { Err(format!("{command:?}: {}", finished.text())) }
    }

    fn unmount(&self) {
        for _ in 0..100 {
            if !is_mounted(&self.path) || run(Command::new("umount").arg(&self.path)).is_success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        run(Command::new("umount").arg("-l").arg(&self.path));
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Name of the file that keeps the configuration of a volume between its stands.
#[derive(Clone)]
pub struct Configuration {
    text: String,
    /// Prefix of the paths in it.
    base: PathBuf,
}

/// A volume and all that it stands on.
pub struct Stand {
    pub volume: TestVolume,
    grounds: Vec<Ground>,
    pub disks: RecordedDisks,
    base: tempfile::TempDir,
}

impl Stand {
    fn raise(pair: Pair, disks: Option<Vec<Disk>>) -> Self {
        let base = tempfile::Builder::new().prefix("polymux-disk-crash-").tempdir().expect("a directory can be made");
        let devices = base.path().join("devices");
        fs::create_dir(&devices).expect("a directory can be made");
        let kinds = pair.kinds();
        let disks = disks.unwrap_or_else(|| kinds.map(|kind| Disk::new(kind.length())).into());
        let disks = kinds.iter().map(|kind| kind.name()).zip(disks).collect();
        let disks = RecordedDisks::mount(&devices, disks).expect("the recorder can be mounted");
        let grounds: Vec<Ground> =
            kinds.map(|kind| Ground { kind, path: base.path().join(kind.name()) }).into_iter().collect();
        for ground in &grounds {
            fs::create_dir(&ground.path).expect("a directory can be made");
        }
        let tiers = ["fast", "slow"].into_iter().zip(&grounds);
        let tiers = tiers.map(|(name, ground)| (name.to_owned(), ground.path.join("tier"))).collect();
        Self { volume: TestVolume::on_tiers(tiers), grounds, disks, base }
    }

    /// New file systems and a new volume, all unmounted and durable.
    pub fn format(pair: Pair, fast_capacity: &str) -> Self {
        let stand = Self::raise(pair, None);
        for (disk, ground) in stand.grounds.iter().enumerate() {
            ground.kind.format(&stand.disks.file(disk));
        }
        stand.mount_grounds(Barriers::On).expect("new file systems can be mounted");
        for ground in &stand.grounds {
            fs::create_dir(ground.path.join("tier")).expect("a directory can be made");
        }
        stand.volume.format(Some(fast_capacity));
        stand
    }

    /// Disks with file systems and a volume that are there already; nothing is mounted yet.
    pub fn on_disks(pair: Pair, disks: Vec<Disk>, configuration: &Configuration) -> Self {
        let stand = Self::raise(pair, Some(disks));
        let text = configuration.text.replace(text(&configuration.base), text(stand.base.path()));
        fs::write(stand.volume.config_path(), text).expect("the configuration can be written");
        stand
    }

    pub fn configuration(&self) -> Configuration {
        let text = fs::read_to_string(self.volume.config_path()).expect("the configuration can be read");
        Configuration { text, base: self.base.path().to_owned() }
    }

    /// Mounts the native file systems, which replay their journals.
    pub fn mount_grounds(&self, barriers: Barriers) -> Result<(), String> {
        let mut grounds = self.grounds.iter().enumerate();
        grounds.try_for_each(|(disk, ground)| ground.mount(&self.disks.file(disk), barriers))
    }

    /// Unmounts the native file systems.
    pub fn unmount_grounds(&self) {
        self.grounds.iter().for_each(Ground::unmount);
    }

    /// Errors that the checkers of the unmounted native file systems find.
    pub fn check_grounds(&self) -> Result<(), String> {
        for (disk, ground) in self.grounds.iter().enumerate() {
            let finished = ground.kind.check(&self.disks.file(disk));
            if !finished.is_success() {
                return Err(format!("the check of {} fails: {}", ground.kind.name(), finished.text()));
            }
        }
        Ok(())
    }

    /// Errors that `polymux fsck -n` finds in the unmounted volume.
    pub fn check_volume(&self) -> Result<(), String> {
        let finished = self.volume.polymux(["fsck", &self.volume.name, "-n"]);
        if finished.status.code() == Some(0) { Ok(()) } else { Err(format!("fsck: {}", finished.text())) }
    }
}
