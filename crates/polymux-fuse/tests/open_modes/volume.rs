//! A volume over two directories, mounted and served by this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use polymux_fs::{Access, BackgroundThreads, FileSystem, MountOptions, NewVolume, Parts, TierMember, TierPresence};
use polymux_fuse::{FuseOptions, Unmounter, mount};
use polymux_sim::MemoryStore;
use polymux_tier::{PosixTier, PosixTierOptions, Tier};
use polymux_types::{ByteSize, Ino, SystemClock, VolumeId};

/// Of the slow tier: files on a tier with a limit are not changed directly, files on the fast tier are.
const CAPACITY: ByteSize = ByteSize(300 << 20);

/// A file of a player on the mounted volume.
pub fn file(mountpoint: &Path, player: u64, file: u64) -> PathBuf {
    mountpoint.join(format!("{player}-{file}"))
}

/// Numbers without a meaning, the same for each run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        // xorshift64* of Marsaglia and Vigna.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }

    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).expect("below a length")
    }
}

/// The mounted volume; taken down when dropped.
pub struct Fixture {
    fs: Arc<FileSystem>,
    background: Option<BackgroundThreads>,
    session: Option<JoinHandle<std::io::Result<()>>>,
    unmounter: Unmounter,
    mountpoint: PathBuf,
    _directory: tempfile::TempDir,
}

impl Fixture {
    pub fn mount_or_skip() -> Option<Self> {
        if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            eprintln!("skipped: /dev/fuse cannot be opened: {error}");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("polymux-modes-").tempdir().expect("a directory is made");
        let tier = |(name, capacity): (&str, Option<ByteSize>)| {
            let path = directory.path().join(name);
            std::fs::create_dir(&path).expect("a directory is made");
            let options = PosixTierOptions { capacity, ..PosixTierOptions::new(name) };
            let tier: Arc<dyn Tier> = Arc::new(PosixTier::prepare(&path, options).expect("a tier is made"));
            tier
        };
        let tiers = [("fast", None), ("slow", Some(CAPACITY))].map(|(name, capacity)| (name, tier((name, capacity))));
        let store = Arc::new(MemoryStore::new());
        let parts = || Parts {
            name: "modes".to_owned(),
            tiers: tiers
                .iter()
                .map(|(name, tier)| TierMember::new((*name).to_owned(), TierPresence::Present(Arc::clone(tier))))
                .collect(),
            store: Arc::clone(&store) as _,
            metadata_tier: None,
            clock: Arc::new(SystemClock::new()),
            seed: 1,
        };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let new =
            NewVolume { id: VolumeId::from_random([5; 16]), root_uid: uid, root_gid: gid, root_permissions: 0o755 };
        FileSystem::format(&parts(), &new).expect("a volume is made");
        let fs = Arc::new(FileSystem::mount(parts(), MountOptions::default()).expect("it mounts"));
        let mountpoint = directory.path().join("mount");
        std::fs::create_dir(&mountpoint).expect("a directory is made");
        let session = match mount(Arc::clone(&fs), &mountpoint, &FuseOptions::new("modes", Access::ReadWrite), None) {
            Ok(session) => session,
            Err(error) => {
                eprintln!("skipped: the volume cannot be mounted: {error}");
                return None;
            }
        };
        let unmounter = session.unmounter();
        let serving = std::thread::spawn(move || session.wait());
        let background = BackgroundThreads::start(&fs, 2).expect("threads are started");
        Some(Self {
            fs,
            background: Some(background),
            session: Some(serving),
            unmounter,
            mountpoint,
            _directory: directory,
        })
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Has a file moved as a whole or in part; whether it is there and has bytes.
    pub fn migrate(&self, path: &Path, random: &mut Random) -> bool {
        let Ok(metadata) = path.metadata() else { return false };
        let ino = Ino(std::os::unix::fs::MetadataExt::ino(&metadata));
        let target = ["fast", "slow"][random.index(2)];
        let range = (random.below(2) == 0).then(|| 0..metadata.len().div_ceil(2).max(1));
        self.fs.migrate(ino, target, range).is_ok()
    }

    /// How files were opened.
    pub fn open_counts(&self) -> Vec<(String, u64)> {
        let counters = self.fs.status().expect("it tells").counters;
        let of_opens = counters.into_iter().filter(|(name, _)| name.starts_with("opens_"));
        of_opens.map(|(name, count)| (name.to_owned(), count)).collect()
    }

    pub fn kernel_passes_through(&self) -> bool {
        matches!(self.fs.status().expect("it tells").passthrough, polymux_fs::PassthroughState::Possible(_))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.background.take());
        self.unmounter.detach().expect("it can be unmounted");
        if let Some(session) = self.session.take() {
            session.join().expect("the transport does not panic").expect("it ends well");
        }
        self.fs.unmount().expect("the volume stops cleanly");
    }
}
