//! A volume whose every change is recorded, and volumes as a crash left them.
//!
//! Invariants:
//! * The clock moves only when a scene moves it, so that one workload gives one journal.
//! * A volume after a crash stands on devices of its own: nothing that is done to it is seen by the scene.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polymux_fs::{
    CheckMode, FileSystem, MountOptions, Parts, PolicyKind, Progress, SaturationSource, TierMember, TierPresence,
    VolumeError,
};
use polymux_meta::MetadataStore;
use polymux_sim::MemoryTier;
use polymux_sim::crash_states::State;
use polymux_sim::recording::{Event, Journal, PauseHook, RecordingTier};
use polymux_tier::Tier;
use polymux_types::ManualClock;
use polymux_types::sync::Mutex;

use super::history::Spreading;
use super::oracle::check_store;
use super::store_device::{Backing, StoreDevice};
use crate::common::new_volume;

/// Names of the tiers in the order of their places; the last one belongs to no volume at first.
pub const TIERS: [&str; 3] = ["fast", "slow", "spare"];

/// Ranges from which on the policy `adaptive` lets a file grow over several tiers.
pub const LARGE_FILE_RANGES: usize = 32;

/// Steps after which background work counts as stuck.
const STEPS_MAX: usize = 300;

/// The initial state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// For reports.
    pub name: &'static str,
    /// Capacity of the tiers in bytes.
    pub capacities: [u64; 3],
    /// Longest file in the metadata store.
    pub inline_size_max: u32,
    /// Where it spreads files, those larger than a range.
    pub policy: PolicyKind,
    /// Bytes of a range: the unit in which a spread file is divided among tiers.
    pub range_bytes: u32,
    /// Whether messages begin in the metadata store, and for how long one stays that is not used.
    pub messages: Messages,
}

/// Files that are synced once they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messages {
    /// The metadata store is on no tier, so they get objects.
    Objects,
    /// The metadata store is on the first tier, and keeps them until background work finds them closed.
    InStore,
}

impl Messages {
    fn metadata_tier(self) -> Option<String> {
        (self == Self::InStore).then(|| TIERS[0].to_owned())
    }
}

impl Shape {
    /// Where files grow over several tiers, if they do.
    pub fn spreading(&self) -> Option<Spreading> {
        let range = self.range_bytes as usize;
        let from = if self.policy == PolicyKind::Adaptive { LARGE_FILE_RANGES * range } else { 0 };
        self.policy.spreads().then_some(Spreading { range, from })
    }

    pub fn options(&self) -> MountOptions {
        let defaults = MountOptions::default();
        MountOptions {
            inline_size_max: self.inline_size_max,
            heat_memory_bytes: 64 << 10,
            spread_range_bytes: self.range_bytes,
            saturation: SaturationSource::Assumed,
            inline_idle_seconds: if self.messages == Messages::InStore { 0 } else { defaults.inline_idle_seconds },
            ..defaults
        }
    }
}

fn parts(
    tiers: Vec<TierMember>,
    store: Arc<dyn MetadataStore>,
    clock: &Arc<ManualClock>,
    (messages, seed): (Messages, u64),
) -> Parts {
    let metadata_tier = messages.metadata_tier();
    Parts { name: "test".to_owned(), tiers, store, metadata_tier, clock: Arc::clone(clock) as _, seed }
}

fn member(place: usize, tier: Arc<dyn Tier>) -> TierMember {
    TierMember::new(TIERS[place], TierPresence::Present(tier))
}

/// A mounted volume.
pub struct Mounted {
    pub fs: FileSystem,
    pub clock: Arc<ManualClock>,
    pub memory: Vec<Arc<MemoryTier>>,
    pub store: StoreDevice,
    pub configuration: Arc<Mutex<Vec<usize>>>,
    tiers: Vec<Arc<dyn Tier>>,
    shape: Shape,
    journal: Option<Arc<Journal>>,
    /// By the place of the tier, where it is recorded: its syncs fail while this is set.
    failing: Vec<Arc<AtomicBool>>,
}

impl Mounted {
    /// Makes a volume on the first two tiers, and records everything from the first byte on.
    pub fn new(shape: &Shape, backing: Backing, journal: &Arc<Journal>, pause: Option<Arc<PauseHook>>) -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
        let memory: Vec<Arc<MemoryTier>> = (TIERS.iter().zip(shape.capacities))
            .map(|(name, capacity)| Arc::new(MemoryTier::with_clock(*name, capacity, Arc::clone(&clock) as _)))
            .collect();
        let store = StoreDevice::new(backing, journal);
        let (tiers, failing) = recording(&memory, journal, pause);
        let recorded = store.front(Some(journal)).expect("a new store opens");
        let configuration = vec![0, 1];
        journal.push(Event::Configure(configuration.clone()));
        let members = || configuration.iter().map(|place| member(*place, Arc::clone(&tiers[*place]))).collect();
        FileSystem::format(&parts(members(), Arc::clone(&recorded), &clock, (shape.messages, 1)), &new_volume())
            .expect("a new volume is made");
        let fs = FileSystem::mount(parts(members(), recorded, &clock, (shape.messages, 2)), shape.options())
            .expect("a new volume mounts");
        steer(&fs, shape.policy);
        let configuration = Arc::new(Mutex::new(configuration));
        let journal = Some(Arc::clone(journal));
        Self { fs, clock, memory, store, configuration, tiers, shape: *shape, journal, failing }
    }

    /// Mounts the volume after a crash; with a journal, the actions of recovery are recorded.
    pub fn after_crash(
        shape: &Shape,
        backing: Backing,
        state: &State,
        journal: Option<&Arc<Journal>>,
    ) -> Result<Self, String> {
        let store = StoreDevice::of_state(backing, state, journal)?;
        Self::of_state(shape, state, store, journal)
    }

    /// Mounts the volume after a crash that destroyed the device of the store: from the second copy.
    pub fn from_copy(shape: &Shape, state: &State) -> Result<Self, String> {
        Self::of_state(shape, state, StoreDevice::of_copy(state)?, None)
    }

    fn of_state(
        shape: &Shape,
        state: &State,
        store: StoreDevice,
        journal: Option<&Arc<Journal>>,
    ) -> Result<Self, String> {
        check_store(&*store.front(None)?).map_err(|text| format!("before recovery: {text}"))?;
        // Later than everything that was recorded.
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_100_000)));
        let memory: Vec<Arc<MemoryTier>> = (TIERS.iter().zip(shape.capacities).enumerate())
            .map(|(place, (name, capacity))| Arc::new(state.tier(place, name, capacity, Arc::clone(&clock) as _)))
            .collect();
        Self::mount(*shape, (memory, store, clock), state.configuration().to_vec(), journal)
    }

    fn mount(
        shape: Shape,
        (memory, store, clock): (Vec<Arc<MemoryTier>>, StoreDevice, Arc<ManualClock>),
        configuration: Vec<usize>,
        journal: Option<&Arc<Journal>>,
    ) -> Result<Self, String> {
        let tiers = match journal {
            Some(journal) => recording(&memory, journal, None).0,
            None => memory.iter().map(|tier| Arc::clone(tier) as Arc<dyn Tier>).collect(),
        };
        let front = store.front(journal)?;
        let members = configuration.iter().map(|place| member(*place, Arc::clone(&tiers[*place]))).collect();
        let fs = FileSystem::mount(parts(members, front, &clock, (shape.messages, 3)), shape.options())
            .map_err(|error| error.to_string())?;
        steer(&fs, shape.policy);
        let configuration = Arc::new(Mutex::new(configuration));
        Ok(Self {
            fs,
            clock,
            memory,
            store,
            configuration,
            tiers,
            shape,
            journal: journal.cloned(),
            failing: Vec::new(),
        })
    }

    /// Stops without warning, keeps the durable state, and mounts again.
    pub fn crash(self) -> Result<Self, String> {
        let Self { fs, clock, memory, store, configuration, shape, .. } = self;
        drop(fs);
        memory.iter().for_each(|tier| tier.crash());
        store.lose_unsynced();
        let configuration = configuration.lock().clone();
        Self::mount(shape, (memory, store, clock), configuration, None)
    }

    /// Stops cleanly, has the durable state checked, and mounts it again.
    pub fn remount(self) -> Result<Self, String> {
        self.fs.unmount().map_err(|error| format!("it does not unmount: {error}"))?;
        let Self { fs, clock, memory, store, configuration, shape, .. } = self;
        drop(fs);
        memory.iter().for_each(|tier| tier.crash());
        store.lose_unsynced();
        let configuration = configuration.lock().clone();
        let members = configuration.iter().map(|place| member(*place, Arc::clone(&memory[*place]) as _)).collect();
        let checked = parts(members, store.front(None)?, &clock, (shape.messages, 4));
        let report = FileSystem::check(checked, shape.options(), CheckMode::Report, &mut |_| ControlFlow::Continue(()))
            .map_err(|error| format!("it cannot be checked: {error}"))?;
        if !report.findings.is_empty() {
            return Err(format!("the check of the volume finds {:?}", report.findings));
        }
        memory.iter().for_each(|tier| tier.crash());
        store.lose_unsynced();
        Self::mount(shape, (memory, store, clock), configuration, None)
            .map_err(|error| format!("it does not mount after a clean stop: {error}"))
    }

    /// The records, for a checker.
    pub fn records(&self) -> Result<Arc<dyn MetadataStore>, String> {
        self.store.front(None)
    }

    /// Takes the spare tier into the volume, as the fastest but one.
    pub fn add_spare(&self) -> Result<(), VolumeError> {
        let (place, position) = (2, 1);
        let added = self.fs.add_tier(member(place, Arc::clone(&self.tiers[place])), position, || {
            let mut listed = self.configuration.lock();
            listed.insert(position, place);
            if let Some(journal) = &self.journal {
                journal.push(Event::Configure(listed.clone()));
            }
            Ok(())
        });
        added.map(drop)
    }

    /// Takes the spare tier out of the volume, where it holds nothing.
    pub fn remove_spare(&self) -> Result<(), VolumeError> {
        let place = 2;
        self.fs.remove_tier(TIERS[place], || {
            let mut listed = self.configuration.lock();
            listed.retain(|other| *other != place);
            if let Some(journal) = &self.journal {
                journal.push(Event::Configure(listed.clone()));
            }
            Ok(())
        })
    }

    /// Syncs of the tier at a place fail from now on, and the data that they should have made durable is lost.
    pub fn fail_syncs(&self, place: usize) {
        self.failing[place].store(true, Ordering::Release);
    }

    /// Syncs succeed again.
    pub fn heal_syncs(&self) {
        self.failing.iter().for_each(|failing| failing.store(false, Ordering::Release));
    }

    /// One piece of background work, after which time passes.
    pub fn step(&self) -> Progress {
        let progress = self.fs.step();
        self.clock.advance(Duration::from_secs(1));
        progress
    }

    /// Background work until nothing is left but moves.
    pub fn free(&self) {
        for _ in 0..STEPS_MAX {
            if self.step() == Progress::Idle {
                return;
            }
        }
    }

    /// Moves and background work until nothing is left.
    pub fn settle(&self) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let moved = self.fs.move_step();
            if (moved, self.step()) == (Progress::Idle, Progress::Idle) {
                return Ok(());
            }
        }
        Err(format!("background work does not end: {:?}", self.fs.moves()))
    }
}

fn steer(fs: &FileSystem, policy: PolicyKind) {
    fs.set_steering(policy, &[]).expect("a policy without rules is taken");
}

/// Recorded tiers, and the switches that make their syncs fail.
fn recording(
    memory: &[Arc<MemoryTier>],
    journal: &Arc<Journal>,
    pause: Option<Arc<PauseHook>>,
) -> (Vec<Arc<dyn Tier>>, Vec<Arc<AtomicBool>>) {
    let wrap = |(place, tier): (usize, &Arc<MemoryTier>)| -> (Arc<dyn Tier>, Arc<AtomicBool>) {
        let recorded = RecordingTier::new(Arc::clone(tier), place, Arc::clone(journal));
        let recorded = match &pause {
            Some(pause) => recorded.with_pause(Arc::clone(pause)),
            None => recorded,
        };
        let failing = recorded.failing_syncs();
        (Arc::new(recorded), failing)
    };
    memory.iter().enumerate().map(wrap).unzip()
}
