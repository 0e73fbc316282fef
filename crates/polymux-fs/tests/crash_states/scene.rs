//! A volume whose every change is recorded, and volumes as a crash left them.
//!
//! What is true here:
//! * The clock moves only when a scene moves it, so that one workload gives one journal.
//! * A volume after a crash stands on devices of its own: nothing that is done to it is seen by the scene.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use polymux_fs::{CheckMode, FileSystem, MountOptions, Parts, Progress, TierMember, TierPresence, VolumeError};
use polymux_meta::MetadataStore;
use polymux_sim::crash_states::State;
use polymux_sim::recording::{Event, Journal, PauseHook, RecordingStore, RecordingTier};
use polymux_sim::{MemoryStore, MemoryTier};
use polymux_tier::Tier;
use polymux_types::ManualClock;
use polymux_types::sync::Mutex;

use crate::common::new_volume;

/// Names of the tiers in the order of their places; the last one belongs to no volume at first.
pub const TIERS: [&str; 3] = ["fast", "slow", "spare"];

/// Steps after which background work counts as stuck.
const STEPS_MAX: usize = 300;

/// What a volume looks like before anything happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// For reports.
    pub name: &'static str,
    /// Room on the tiers in bytes.
    pub capacities: [u64; 3],
    /// Longest file in the metadata store.
    pub inline_size_max: u32,
}

impl Shape {
    pub fn options(&self) -> MountOptions {
        MountOptions { inline_size_max: self.inline_size_max, heat_memory_bytes: 64 << 10, ..MountOptions::default() }
    }
}

fn parts(tiers: Vec<TierMember>, store: Arc<dyn MetadataStore>, clock: &Arc<ManualClock>, seed: u64) -> Parts {
    Parts { name: "test".to_owned(), tiers, store, metadata_tier: None, clock: Arc::clone(clock) as _, seed }
}

fn member(place: usize, tier: Arc<dyn Tier>) -> TierMember {
    TierMember::new(TIERS[place], TierPresence::Present(tier))
}

/// A mounted volume.
pub struct Mounted {
    pub fs: FileSystem,
    pub clock: Arc<ManualClock>,
    pub memory: Vec<Arc<MemoryTier>>,
    pub store: Arc<MemoryStore>,
    pub configuration: Arc<Mutex<Vec<usize>>>,
    tiers: Vec<Arc<dyn Tier>>,
    options: MountOptions,
    journal: Option<Arc<Journal>>,
}

impl Mounted {
    /// Makes a volume on the first two tiers, and records everything from the first byte on.
    pub fn new(shape: &Shape, journal: &Arc<Journal>, pause: Option<Arc<PauseHook>>) -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
        let memory: Vec<Arc<MemoryTier>> = (TIERS.iter().zip(shape.capacities))
            .map(|(name, capacity)| Arc::new(MemoryTier::with_clock(*name, capacity, Arc::clone(&clock) as _)))
            .collect();
        let store = Arc::new(MemoryStore::new());
        let tiers = recording(&memory, journal, pause);
        let recorded = Arc::new(RecordingStore::new(Arc::clone(&store), Arc::clone(journal)));
        let configuration = vec![0, 1];
        journal.push(Event::Configure(configuration.clone()));
        let members = || configuration.iter().map(|place| member(*place, Arc::clone(&tiers[*place]))).collect();
        FileSystem::format(&parts(members(), recorded.clone(), &clock, 1), &new_volume())
            .expect("a new volume is made");
        let fs =
            FileSystem::mount(parts(members(), recorded, &clock, 2), shape.options()).expect("a new volume mounts");
        let configuration = Arc::new(Mutex::new(configuration));
        let options = shape.options();
        Self { fs, clock, memory, store, configuration, tiers, options, journal: Some(Arc::clone(journal)) }
    }

    /// Mounts what a crash left; with a journal, what recovery does is recorded.
    pub fn after_crash(shape: &Shape, state: &State, journal: Option<&Arc<Journal>>) -> Result<Self, VolumeError> {
        // Later than everything that was recorded.
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_100_000)));
        let memory: Vec<Arc<MemoryTier>> = (TIERS.iter().zip(shape.capacities).enumerate())
            .map(|(place, (name, capacity))| Arc::new(state.tier(place, name, capacity, Arc::clone(&clock) as _)))
            .collect();
        let store = Arc::new(state.store());
        Self::mount(shape.options(), (memory, store, clock), state.configuration().to_vec(), journal)
    }

    fn mount(
        options: MountOptions,
        (memory, store, clock): (Vec<Arc<MemoryTier>>, Arc<MemoryStore>, Arc<ManualClock>),
        configuration: Vec<usize>,
        journal: Option<&Arc<Journal>>,
    ) -> Result<Self, VolumeError> {
        let tiers = match journal {
            Some(journal) => recording(&memory, journal, None),
            None => memory.iter().map(|tier| Arc::clone(tier) as Arc<dyn Tier>).collect(),
        };
        let front: Arc<dyn MetadataStore> = match journal {
            Some(journal) => Arc::new(RecordingStore::new(Arc::clone(&store), Arc::clone(journal))),
            None => Arc::clone(&store) as _,
        };
        let members = configuration.iter().map(|place| member(*place, Arc::clone(&tiers[*place]))).collect();
        let fs = FileSystem::mount(parts(members, front, &clock, 3), options)?;
        let configuration = Arc::new(Mutex::new(configuration));
        Ok(Self { fs, clock, memory, store, configuration, tiers, options, journal: journal.cloned() })
    }

    /// Stops without warning, keeps what is durable, and mounts again.
    pub fn crash(self) -> Result<Self, VolumeError> {
        let configuration = self.configuration.lock().clone();
        let devices = (self.memory.clone(), Arc::clone(&self.store), Arc::clone(&self.clock));
        let options = self.options;
        drop(self);
        devices.0.iter().for_each(|tier| tier.crash());
        devices.1.crash();
        Self::mount(options, devices, configuration, None)
    }

    /// Stops cleanly, has what is durable checked, and mounts it again.
    pub fn remount(self) -> Result<Self, String> {
        self.fs.unmount().map_err(|error| format!("it does not unmount: {error}"))?;
        self.memory.iter().for_each(|tier| tier.crash());
        self.store.crash();
        let listed = self.configuration.lock().clone();
        let members = listed.iter().map(|place| member(*place, Arc::clone(&self.memory[*place]) as _)).collect();
        let checked = parts(members, Arc::clone(&self.store) as _, &self.clock, 4);
        let report = FileSystem::check(checked, self.options, CheckMode::Report, &mut |_| ControlFlow::Continue(()))
            .map_err(|error| format!("it cannot be checked: {error}"))?;
        if !report.findings.is_empty() {
            return Err(format!("the check of the volume finds {:?}", report.findings));
        }
        self.crash().map_err(|error| format!("it does not mount after a clean stop: {error}"))
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

    /// One piece of background work, after which time passes.
    pub fn step(&self) -> Progress {
        let progress = self.fs.step();
        self.clock.advance(Duration::from_secs(1));
        progress
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

fn recording(memory: &[Arc<MemoryTier>], journal: &Arc<Journal>, pause: Option<Arc<PauseHook>>) -> Vec<Arc<dyn Tier>> {
    let wrap = |(place, tier): (usize, &Arc<MemoryTier>)| -> Arc<dyn Tier> {
        let recorded = RecordingTier::new(Arc::clone(tier), place, Arc::clone(journal));
        match &pause {
            Some(pause) => Arc::new(recorded.with_pause(Arc::clone(pause))),
            None => Arc::new(recorded),
        }
    };
    memory.iter().enumerate().map(wrap).collect()
}
