//! A mounted volume over simulated devices, with its background work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use polymux_fs::{
    FileSystem, MOVERS_DEFAULT, MountOptions, NewVolume, Parts, PolicyKind, Progress, TierMember, TierPresence,
};
use polymux_sim::{DeviceSpeed, MemoryStore, MemoryTier, SimulatedDevice, VirtualTime};
use polymux_types::{ByteSize, Clock, VolumeId};

/// Longest pause of a background thread, and the one after work that only waits for a moment: as in a daemon.
const IDLE_PAUSE: Duration = Duration::from_millis(200);
const WAITING_PAUSE: Duration = Duration::from_millis(5);
/// A round that took less than this only waited for a moment.
const WAITING_ROUND_NS: u64 = 1_000_000;
/// Longest pause of a mover, which a daemon wakes when there is something to move.
const MOVER_PAUSE: Duration = Duration::from_millis(10);

/// Share of a file system that is left for its metadata, in percent.
const FILE_SYSTEM_OVERHEAD_PERCENT: u64 = 5;

/// A device of a simulated tier.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOf {
    /// Name of the tier.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// Its limits.
    pub speed: DeviceSpeed,
}

/// See the module. Ends its threads when it is dropped.
pub struct SimulatedVolume {
    pub time: Arc<VirtualTime>,
    pub file_system: Arc<FileSystem>,
    pub devices: Vec<Arc<SimulatedDevice>>,
    must_stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl SimulatedVolume {
    /// A new volume, the fastest device first, mounted with the options of a mount that names none.
    pub fn make(
        time: &Arc<VirtualTime>,
        devices: &[DeviceOf],
        policy: PolicyKind,
        options: MountOptions,
    ) -> Result<Self> {
        let time = Arc::clone(time);
        let made: Vec<_> = devices.iter().map(|_| Arc::new(SimulatedDevice::new(Arc::clone(&time)))).collect();
        let member = |(device, made): (&DeviceOf, &Arc<SimulatedDevice>)| {
            let capacity = device.bytes / 100 * (100 - FILE_SYSTEM_OVERHEAD_PERCENT);
            let tier = MemoryTier::with_clock(device.name, capacity, Arc::clone(&time) as _);
            let presence = TierPresence::Present(Arc::new(tier.on_device(Arc::clone(made))));
            // As `polymux create` sets them.
            TierMember { reserve: ByteSize(capacity / 100), ..TierMember::new(device.name.to_owned(), presence) }
        };
        let parts = Parts {
            name: "simulated".to_owned(),
            tiers: devices.iter().zip(&made).map(member).collect(),
            store: Arc::new(MemoryStore::new()),
            metadata_tier: None,
            clock: Arc::clone(&time) as _,
            seed: 1,
        };
        let new = NewVolume { id: VolumeId::from_random([7; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
        FileSystem::format(&parts, &new)?;
        let file_system = Arc::new(FileSystem::mount(parts, options)?);
        file_system.set_steering(policy, &[])?;
        let mut volume = Self { time, file_system, devices: made, must_stop: Arc::default(), threads: Vec::new() };
        volume.work_in_background()?;
        Ok(volume)
    }

    fn work_in_background(&mut self) -> Result<()> {
        self.spawn("background", IDLE_PAUSE, FileSystem::volume_step)?;
        self.spawn("upkeep", IDLE_PAUSE, FileSystem::upkeep_step)?;
        for _ in 0..MOVERS_DEFAULT {
            self.spawn("mover", MOVER_PAUSE, FileSystem::move_step)?;
        }
        let tiers: Vec<_> = self.file_system.tier_names().into_iter().map(|(tier, _)| tier).collect();
        for tier in tiers {
            self.spawn("tier", IDLE_PAUSE, move |file_system| file_system.tier_step(tier))?;
            self.spawn("sync", IDLE_PAUSE, move |file_system| file_system.sync_rewritten_step(tier))?;
            self.spawn("behind", MOVER_PAUSE, move |file_system| file_system.write_behind_step(tier))?;
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: &str,
        pause: Duration,
        step: impl Fn(&FileSystem) -> Progress + Send + 'static,
    ) -> Result<()> {
        let (time, file_system) = (Arc::clone(&self.time), Arc::clone(&self.file_system));
        let (actor, must_stop) = (self.time.actor(), Arc::clone(&self.must_stop));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            actor.begin();
            while !must_stop.load(Ordering::Acquire) {
                let began = time.now_ns();
                match step(&file_system) {
                    Progress::Idle => time.sleep(pause),
                    Progress::Worked if time.now_ns() - began < WAITING_ROUND_NS => time.sleep(WAITING_PAUSE),
                    Progress::Worked => {}
                }
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Limits the devices as their kinds say.
    pub fn throttle(&self, devices: &[DeviceOf]) {
        for (made, device) in self.devices.iter().zip(devices) {
            made.set_speed(Some(device.speed));
        }
    }

    /// Ends the background work.
    pub fn stop(&mut self) -> Result<()> {
        self.must_stop.store(true, Ordering::Release);
        let ended = std::mem::take(&mut self.threads).into_iter().map(JoinHandle::join);
        ended
            .collect::<std::thread::Result<Vec<()>>>()
            .map(drop)
            .map_err(|_| anyhow!("a thread of the background panicked"))
    }
}

impl Drop for SimulatedVolume {
    fn drop(&mut self) {
        let stopped = self.stop();
        debug_assert!(stopped.is_ok() || thread::panicking(), "{stopped:?}");
    }
}
