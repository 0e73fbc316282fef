//! A volume of three tiers each of which can fail, hang, and be away.
//!
//! Setup: tiers and store outlive the mounts. Time is the machine's, because calls that hang are real threads,
//! unless a test asks for a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polymux_fs::{
    Caller, FileSystem, HandleId, MissingTiers, MountOptions, NewVolume, OpenOptions, Parts, SyncKind, TierMember,
    TierPresence, TierSource, TierState, VolumeError, WriteOrigin,
};
use polymux_sim::{FaultyTier, MemoryStore, MemoryTier, OperationKind};
use polymux_tier::{Tier, TierError};
use polymux_types::{Clock, Errno, Ino, ManualClock, SystemClock, VolumeId};

pub const NAMES: [&str; 3] = ["fast", "middle", "slow"];
/// When a tier counts as not answering in these tests.
pub const HANG_AFTER: Duration = Duration::from_millis(300);
/// How long anything may take that must not hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a tier can be found where the configuration says.
pub struct Place {
    pub is_there: AtomicBool,
    tier: Arc<FaultyTier>,
    name: &'static str,
}

impl TierSource for Place {
    fn open(&self) -> Result<TierMember, String> {
        if self.is_there.load(Ordering::Acquire) {
            Ok(TierMember::new(self.name, TierPresence::Present(Arc::clone(&self.tier) as _)))
        } else {
            Err("the test took it away".to_owned())
        }
    }
}

pub struct World {
    pub memory: Vec<Arc<MemoryTier>>,
    pub tiers: Vec<Arc<FaultyTier>>,
    pub places: Vec<Arc<Place>>,
    store: Arc<MemoryStore>,
    clock: Arc<dyn Clock>,
    pub options: MountOptions,
    fs: Option<Arc<FileSystem>>,
}

impl World {
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// With a clock that the test moves.
    pub fn with_manual_clock() -> (Self, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000)));
        (Self::with_clock(Arc::clone(&clock) as _), clock)
    }

    /// The file systems of the tiers preallocate blocks behind the ends of objects.
    pub fn allocating_ahead() -> Self {
        Self::made(Arc::new(SystemClock::new()), |tier| tier.with_capabilities(|can| can.allocates_ahead = true))
    }

    fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::made(clock, |tier| tier)
    }

    fn made(clock: Arc<dyn Clock>, kind: impl Fn(MemoryTier) -> MemoryTier) -> Self {
        let memory: Vec<_> = NAMES.iter().map(|name| Arc::new(kind(MemoryTier::new(*name, 64 << 20)))).collect();
        let tiers: Vec<_> =
            memory.iter().map(|tier| Arc::new(FaultyTier::new(Arc::clone(tier) as Arc<dyn Tier>))).collect();
        let place = |(tier, name): (&Arc<FaultyTier>, &&'static str)| {
            Arc::new(Place { is_there: AtomicBool::new(true), tier: Arc::clone(tier), name })
        };
        let places = tiers.iter().zip(&NAMES).map(place).collect();
        let hang_after_ms = u32::try_from(HANG_AFTER.as_millis()).expect("a short time");
        let options = MountOptions { hang_after_ms, inline_size_max: 0, ..MountOptions::default() };
        let mut world = Self { memory, tiers, places, store: Arc::new(MemoryStore::new()), clock, options, fs: None };
        let volume =
            NewVolume { id: VolumeId::from_random([3; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
        FileSystem::format(&world.parts(), &volume).expect("a new volume is made");
        world.mount();
        world
    }

    fn parts(&self) -> Parts {
        let member = |place: &Arc<Place>| {
            let presence = match place.open() {
                Ok(member) => member.presence,
                Err(reason) => TierPresence::Missing(reason),
            };
            TierMember { source: Some(Arc::clone(place) as _), ..TierMember::new(place.name, presence) }
        };
        Parts {
            name: "test".to_owned(),
            tiers: self.places.iter().map(member).collect(),
            store: Arc::clone(&self.store) as _,
            metadata_tier: None,
            clock: Arc::clone(&self.clock),
            seed: 1,
        }
    }

    pub fn mount(&mut self) {
        self.try_mount().expect("the volume mounts");
    }

    /// Mounts anew, with other options.
    pub fn remount_with(&mut self, change: impl FnOnce(&mut MountOptions)) {
        self.unmount().expect("unmounted");
        change(&mut self.options);
        self.mount();
    }

    pub fn try_mount(&mut self) -> Result<(), VolumeError> {
        assert!(self.fs.is_none(), "one mount at a time");
        self.fs = Some(Arc::new(FileSystem::mount(self.parts(), self.options)?));
        Ok(())
    }

    pub fn mount_degraded(&mut self) {
        self.options.missing = MissingTiers::Degraded;
        self.mount();
    }

    pub fn unmount(&mut self) -> polymux_fs::Result<()> {
        self.fs.take().expect("it is mounted").unmount()
    }

    /// Stops without warning: tiers and store lose all data that is not durable.
    pub fn crash(&mut self) {
        self.fs = None;
        self.memory.iter().for_each(|tier| tier.crash());
        self.store.crash();
    }

    pub fn fs(&self) -> &Arc<FileSystem> {
        self.fs.as_ref().expect("it is mounted")
    }

    pub fn state(&self, tier: usize) -> TierState {
        self.fs().status().expect("status answers").tiers[tier].state.clone()
    }

    /// A file on one tier, with this content, synced.
    pub fn file_on(&self, tier: usize, name: &str, content: &[u8]) -> (Ino, HandleId) {
        let (ino, handle) = self.create_on(tier, name, content);
        self.sync(handle).expect("synced");
        (ino, handle)
    }

    /// A file on one tier, with this content, not synced.
    pub fn create_on(&self, tier: usize, name: &str, content: &[u8]) -> (Ino, HandleId) {
        for faster in &self.tiers[..tier] {
            faster.fail_always(OperationKind::Create, TierError::NoSpace);
        }
        let (ino, handle) = create(self.fs(), name);
        write(self.fs(), handle, 0, content).expect("written");
        for faster in &self.tiers[..tier] {
            faster.heal();
        }
        assert_eq!(self.home(ino).as_deref(), Some(NAMES[tier]));
        (ino, handle)
    }

    pub fn sync(&self, handle: HandleId) -> polymux_fs::Result<()> {
        self.fs().sync(&Caller::root(), handle, SyncKind::All)
    }

    pub fn home(&self, ino: Ino) -> Option<String> {
        self.fs().locate(ino).expect("located").home
    }

    pub fn open(&self, name: &str) -> polymux_fs::Result<HandleId> {
        let found = self.fs().lookup(&Caller::root(), Ino::ROOT, name.as_bytes())?;
        self.fs().open(&Caller::root(), found.ino, READ_WRITE)
    }

    pub fn content(&self, name: &str) -> polymux_fs::Result<Vec<u8>> {
        let handle = self.open(name)?;
        let content = read(self.fs(), handle, 0, 1 << 20);
        self.fs().release(handle)?;
        content
    }

    /// Lets time be looked at until a tier does not answer.
    pub fn wait_until_silent(&self, tier: usize) {
        wait_until("the tier falls silent", || {
            self.fs().watch_step();
            matches!(self.state(tier), TierState::NotAnswering(_))
        });
    }

    pub fn wait_until_online(&self, tier: usize) {
        wait_until("the tier answers again", || {
            self.fs().watch_step();
            self.state(tier) == TierState::Online
        });
    }
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs an action that must not hang, and returns how long it took.
pub fn promptly<T>(what: &str, action: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let outcome = action();
    assert!(began.elapsed() < Duration::from_secs(60), "{what} took {:?}", began.elapsed());
    outcome
}

pub const READ_WRITE: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    positions_appends: false,
    truncate: false,
    exclusive: false,
    synchronous: false,
    execute: false,
};

pub fn create(fs: &FileSystem, name: &str) -> (Ino, HandleId) {
    let made = fs.create(&Caller::root(), Ino::ROOT, name.as_bytes(), 0o644, READ_WRITE);
    made.map(|(attributes, handle)| (attributes.ino, handle)).expect("a file is made")
}

pub fn write(fs: &FileSystem, handle: HandleId, offset: u64, data: &[u8]) -> polymux_fs::Result<usize> {
    fs.write(&Caller::root(), handle, offset, data, WriteOrigin::Call)
}

pub fn read(fs: &FileSystem, handle: HandleId, offset: u64, length: usize) -> polymux_fs::Result<Vec<u8>> {
    let mut buffer = vec![0xa5; length];
    let count = fs.read(&Caller::root(), handle, offset, &mut buffer)?;
    buffer.truncate(count);
    Ok(buffer)
}

pub fn names(fs: &FileSystem) -> Vec<String> {
    let entries = fs.read_directory(&Caller::root(), Ino::ROOT, 0, 1000).expect("a directory is listed");
    let mut names: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    names.sort();
    names
}

#[track_caller]
pub fn assert_eio<T: std::fmt::Debug>(outcome: polymux_fs::Result<T>) {
    assert_eq!(outcome.expect_err("it needs the tier").errno(), Errno::EIO);
}

pub const EIO: TierError = TierError::Io { operation: "a test", errno: Errno::EIO };
