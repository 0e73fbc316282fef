//! A volume for measurements: tiers in directories, the metadata store on the first, mounted without FUSE.
//!
//! Invariants:
//! * Background work is done by the threads that the daemon has too.
//! * `drain` returns only when no freed bytes wait for their tier: the background threads are stopped in between, so that
//!   nothing is under way elsewhere when the queue is found empty.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use polymux_fs::{
    BackgroundThreads, FileSystem, MOVERS_DEFAULT, MountOptions, NewVolume, Parts, Progress, TierMember, TierPresence,
};
use polymux_meta::LogPlacement;
use polymux_tier::posix::OWN_DIRECTORY;
use polymux_tier::{PosixTier, PosixTierOptions};
use polymux_types::{ByteSize, SystemClock, VolumeId};

use crate::store::{self, OpenStore, random_bytes};

const NAME: &str = "bench";

/// A tier of a volume to make.
#[derive(Clone, Debug)]
pub struct VolumeTier {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Most bytes that it holds; `None`: as many as its file system does.
    pub capacity: Option<ByteSize>,
}

/// A volume that was made, mounted or not.
#[derive(Clone, Debug)]
pub struct Volume {
    tiers: Vec<VolumeTier>,
    memory_bytes: u64,
    log_placement: LogPlacement,
}

enum Tiers {
    New,
    Existing,
}

impl Volume {
    /// Makes a volume of `tiers` tiers below a directory; the store has this much memory.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn make(directory: &Path, tiers: usize, memory_bytes: u64) -> Result<Self> {
        Self::make_with_log(directory, tiers, memory_bytes, LogPlacement::Block)
    }

    /// As [`Volume::make`], with the log of the store where `log_placement` says.
    ///
    /// # Errors
    /// As [`Volume::make`].
    pub fn make_with_log(
        directory: &Path,
        tiers: usize,
        memory_bytes: u64,
        log_placement: LogPlacement,
    ) -> Result<Self> {
        ensure!(tiers > 0, "a volume has at least one tier");
        let tier = |index| {
            let name = format!("t{index}");
            VolumeTier { path: directory.join(&name), name, capacity: None }
        };
        let tiers = (0..tiers).map(tier).collect();
        let volume = Self { tiers, memory_bytes, log_placement };
        volume.format()?;
        Ok(volume)
    }

    /// Makes a volume over these tiers, whose directories do not exist yet, fastest first.
    ///
    /// # Errors
    /// As [`Volume::make`].
    pub fn make_over(tiers: Vec<VolumeTier>, memory_bytes: u64) -> Result<Self> {
        ensure!(!tiers.is_empty(), "a volume has at least one tier");
        let volume = Self { tiers, memory_bytes, log_placement: LogPlacement::Block };
        volume.format()?;
        Ok(volume)
    }

    fn format(&self) -> Result<()> {
        for VolumeTier { path, .. } in &self.tiers {
            fs::create_dir(path)?;
        }
        let (parts, _) = self.parts(&Tiers::New)?;
        let new = NewVolume {
            id: VolumeId::from_random(random_bytes()?),
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            root_permissions: 0o755,
        };
        Ok(FileSystem::format(&parts, &new)?)
    }

    /// Mounts it, with its background threads.
    ///
    /// # Errors
    /// Where it cannot be mounted.
    pub fn mount(&self) -> Result<MountedVolume> {
        self.mount_with(MountOptions::default())
    }

    /// Mounts it with other choices than the usual ones.
    ///
    /// # Errors
    /// As [`Volume::mount`].
    pub fn mount_with(&self, options: MountOptions) -> Result<MountedVolume> {
        let (parts, store) = self.parts(&Tiers::Existing)?;
        let file_system = Arc::new(FileSystem::mount(parts, options)?);
        let worker = Mutex::new(Some(BackgroundThreads::start(&file_system, MOVERS_DEFAULT)?));
        Ok(MountedVolume { file_system, store, worker })
    }

    fn parts(&self, tiers: &Tiers) -> Result<(Parts, OpenStore)> {
        let mut members = Vec::new();
        for VolumeTier { name, path, capacity } in &self.tiers {
            let options = PosixTierOptions { capacity: *capacity, ..PosixTierOptions::new(name.clone()) };
            let tier = match tiers {
                Tiers::New => PosixTier::prepare(path, options)?,
                Tiers::Existing => PosixTier::open(path, options)?,
            };
            let presence = TierPresence::Present(Arc::new(tier));
            members.push(TierMember::new(name.clone(), presence));
        }
        let VolumeTier { name, path, .. } = &self.tiers[0];
        let path = path.join(OWN_DIRECTORY).join("meta");
        let store = match tiers {
            Tiers::New => store::make_with_log(&path, self.memory_bytes, &self.log_placement)?,
            Tiers::Existing => store::open_with_log(&path, self.memory_bytes, &self.log_placement)?,
        };
        let parts = Parts {
            name: NAME.to_owned(),
            tiers: members,
            store: Arc::clone(&store.store),
            metadata_tier: Some(name.clone()),
            clock: Arc::new(SystemClock::new()),
            seed: u64::from_le_bytes(random_bytes()?),
        };
        Ok((parts, store))
    }
}

/// A volume in use. Dropping it stops the background threads; [`MountedVolume::unmount`] also leaves it clean.
pub struct MountedVolume {
    file_system: Arc<FileSystem>,
    store: OpenStore,
    worker: Mutex<Option<BackgroundThreads>>,
}

impl MountedVolume {
    /// The file system.
    #[must_use]
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    /// The metadata store it stands on.
    #[must_use]
    pub fn store(&self) -> &OpenStore {
        &self.store
    }

    /// Lets the background threads look for work now.
    pub fn wake(&self) {
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            worker.wake();
        }
    }

    /// Does all background work that waits.
    ///
    /// # Errors
    /// Where freed bytes are left that no tier takes.
    pub fn drain(&self) -> Result<()> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = worker.take() {
            worker.stop()?;
        }
        while self.file_system.step() == Progress::Worked {}
        let left = self.file_system.status()?.disowned_pending;
        ensure!(left == 0, "{left} freed objects wait for their tier and cannot be carried out");
        *worker = Some(BackgroundThreads::start(&self.file_system, MOVERS_DEFAULT)?);
        Ok(())
    }

    /// Ends cleanly.
    ///
    /// # Errors
    /// Where something could not be made durable.
    pub fn unmount(self) -> Result<()> {
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            worker.stop()?;
        }
        Ok(self.file_system.unmount()?)
    }
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take()
            && let Err(error) = worker.stop()
        {
            eprintln!("warning: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::EmbeddedSide;
    use crate::side::{Durability, Side, WRITE_SIZE};

    #[test]
    fn a_volume_drains_unmounts_and_mounts_again() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let volume = Volume::make(directory.path(), 2, store::MEMORY_BYTES).unwrap();
        let mounted = volume.mount().unwrap();
        let side = EmbeddedSide::new(&mounted);
        let private = side.private_directory("d", 1).unwrap();
        for index in 0..20 {
            private.create_written(&format!("f{index}"), &[7; 2 * WRITE_SIZE], Durability::Synced).unwrap();
            private.unlink(&format!("f{index}"), Durability::Later).unwrap();
        }
        private.create("stays", Durability::Later).unwrap();
        side.drain().unwrap();
        assert_eq!(mounted.file_system().status().unwrap().disowned_pending, 0);
        let counters = side.log_counters().unwrap();
        assert!(counters.flushes > 0 && counters.flushes <= counters.syncs, "{counters:?}");
        drop(private);
        mounted.unmount().unwrap();
        let again = volume.mount().unwrap();
        let caller = polymux_fs::Caller::root();
        let found = again.file_system().lookup(&caller, polymux_types::Ino::ROOT, b"d").unwrap();
        again.file_system().lookup(&caller, found.ino, b"stays").unwrap();
    }
}
