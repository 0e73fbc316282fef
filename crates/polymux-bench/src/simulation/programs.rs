//! The programs of a simulation: readers of a hot set, a scan, a stream.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use polymux_fs::{Caller, FileSystem, HandleId, MountOptions, OpenOptions, PolicyKind, SyncKind, WriteOrigin};
use polymux_sim::{Actor, VirtualTime};
use polymux_types::{Clock, Ino};

use super::page_cache::PageCache;
use super::volume::{DeviceOf, SimulatedVolume};
use crate::noise::Noise;
use crate::throttled::traffic::Traffic;

const BLOCK_BYTES: usize = 4096;

/// Time of a program for a block that is in memory, and for a message to a daemon and back beside the device's, with eight readers on two processors.
const CACHED_NS: u64 = 6_000;
const MESSAGE_NS: u64 = 25_000;

/// Requests of programs that write a file from one end to the other, bytes that the kernel has on their way for one that reads so, and the time of
/// a program between two of them.
const STREAM_REQUEST_BYTES: usize = 1 << 20;
const READ_AHEAD_BYTES: usize = 4 << 20;
const STREAM_NS: u64 = 100_000;

/// How often the end of a program is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Length of the time that a volume has before anything is measured: in which it was written.
const SETTLE: Duration = Duration::from_secs(5);

/// Pages in memory at the beginning of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// None.
    Dropped,
    /// Those of the round before.
    Kept,
}

/// The readers of one round.
#[derive(Clone, Debug)]
pub struct Readers {
    /// How many there are.
    pub count: u16,
    /// The files that most reads go to.
    pub hot: Range<usize>,
    /// How many of a hundred reads go there.
    pub hot_percent: u64,
    /// Time that each waits between two reads.
    pub think: Duration,
    /// Length of the round.
    pub length: Duration,
    /// Pages in memory when the round begins.
    pub caches: Caches,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Files on a simulated volume, and programs that use them.
pub struct Simulation {
    volume: SimulatedVolume,
    files: Vec<Ino>,
    file_bytes: u64,
    cache: PageCache,
    /// The thread that made this, so that time stands still while it computes.
    _own: Actor,
}

/// Options of a program that reads.
fn reads() -> OpenOptions {
    OpenOptions { read: true, ..OpenOptions::default() }
}

/// Writes a new file of zeros, durably.
fn write_file(volume: &SimulatedVolume, name: &str, bytes: u64) -> Result<Ino> {
    let (fs, root) = (&volume.file_system, Caller::root());
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (attributes, handle) = fs.create(&root, Ino::ROOT, name.as_bytes(), 0o644, options)?;
    let zeros = vec![0; STREAM_REQUEST_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset).map_or(zeros.len(), |rest| rest.min(zeros.len()));
        offset += fs.write(&root, handle, offset, &zeros[..length], WriteOrigin::Call)? as u64;
        volume.time.sleep(Duration::from_nanos(STREAM_NS));
    }
    fs.sync(&root, handle, SyncKind::All)?;
    fs.release(handle)?;
    Ok(attributes.ino)
}

impl Simulation {
    /// So many files of so many bytes, written one after the other without limits, on a new volume over these devices.
    ///
    /// # Errors
    /// Where the file system refuses something.
    pub fn make(devices: &[DeviceOf], policy: PolicyKind, files: usize, file_bytes: u64) -> Result<Self> {
        let options = MountOptions { hang_after_ms: 0, ..MountOptions::default() };
        let time = VirtualTime::new();
        let own = time.actor();
        own.begin();
        let volume = SimulatedVolume::make(&time, devices, policy, options)?;
        let written: Result<Vec<Ino>> =
            (0..files).map(|number| write_file(&volume, &format!("file-{number:02}"), file_bytes)).collect();
        volume.time.sleep(SETTLE);
        volume.throttle(devices);
        let cache = PageCache::new(files, file_bytes / BLOCK_BYTES as u64);
        Ok(Self { volume, files: written?, file_bytes, cache, _own: own })
    }

    /// One round with newly opened files; reads per second. Called by the thread that made this.
    ///
    /// # Errors
    /// Where a read fails.
    pub fn read(&self, readers: &Readers) -> Result<f64> {
        if readers.caches == Caches::Dropped {
            self.cache.drop_all();
        }
        let done = AtomicU64::new(0);
        let actors: Vec<_> = (0..readers.count).map(|_| self.volume.time.actor()).collect();
        let end_ns = self.volume.time.now_ns() + u64::try_from(readers.length.as_nanos())?;
        thread::scope(|scope| {
            let threads: Vec<_> = actors
                .into_iter()
                .zip(0..readers.count)
                .map(|(actor, number)| {
                    let done = &done;
                    scope.spawn(move || {
                        actor.begin();
                        self.read_until(end_ns, readers, number, done)
                    })
                })
                .collect();
            self.volume.time.sleep_until_ns(end_ns);
            let time = &self.volume.time;
            threads.into_iter().try_for_each(|thread| time.join(thread).map_err(|_| anyhow!("a reader panicked"))?)
        })?;
        Ok(done.load(Ordering::Relaxed) as f64 / readers.length.as_secs_f64())
    }

    fn read_until(&self, end_ns: u64, readers: &Readers, number: u16, done: &AtomicU64) -> Result<()> {
        let (time, fs) = (&self.volume.time, &*self.volume.file_system);
        let handles: Vec<HandleId> =
            self.files.iter().map(|ino| fs.open(&Caller::root(), *ino, reads())).collect::<polymux_fs::Result<_>>()?;
        let mut noise = Noise::new((readers.seed << 16 | u64::from(number)).wrapping_mul(0xd134_2543_de82_ef95));
        let mut buffer = [0; BLOCK_BYTES];
        // The time of this program, which runs ahead of the common one while it needs no device.
        let mut now_ns = time.now_ns();
        while now_ns < end_ns {
            let files = if noise.below(100) < readers.hot_percent { readers.hot.clone() } else { 0..self.files.len() };
            let file = files.start + usize::try_from(noise.below(files.len() as u64))?;
            let block = noise.below(self.file_bytes / BLOCK_BYTES as u64);
            if self.cache.has(file, block) {
                now_ns += CACHED_NS;
            } else {
                time.sleep_until_ns(now_ns);
                fs.read(&Caller::root(), handles[file], block * BLOCK_BYTES as u64, &mut buffer)?;
                self.cache.add(file, block);
                now_ns = time.now_ns() + MESSAGE_NS;
            }
            done.fetch_add(u64::from(now_ns < end_ns), Ordering::Relaxed);
            now_ns += u64::try_from(readers.think.as_nanos())?;
        }
        handles.into_iter().try_for_each(|handle| fs.release(handle))?;
        Ok(())
    }

    /// Reads all files from one end to the other, which brings them into memory, on a thread of its own: `beside` is called again and again until that is over.
    ///
    /// # Errors
    /// Where a read fails, and those of `beside`.
    pub fn scan_beside(&self, beside: impl FnMut() -> Result<()>) -> Result<()> {
        self.beside(beside, || (0..self.files.len()).try_for_each(|file| self.read_through(file)))
    }

    fn read_through(&self, file: usize) -> Result<()> {
        let (fs, root) = (&*self.volume.file_system, Caller::root());
        let handle = fs.open(&root, self.files[file], reads())?;
        let mut buffer = vec![0; READ_AHEAD_BYTES];
        for offset in (0..self.file_bytes).step_by(READ_AHEAD_BYTES) {
            fs.read(&root, handle, offset, &mut buffer)?;
            let blocks = offset / BLOCK_BYTES as u64
                ..(offset + READ_AHEAD_BYTES as u64).min(self.file_bytes) / BLOCK_BYTES as u64;
            blocks.for_each(|block| self.cache.add(file, block));
            self.volume.time.sleep(Duration::from_nanos(STREAM_NS));
        }
        Ok(fs.release(handle)?)
    }

    /// Writes files of so many bytes one after the other, each durable at its end and removed then; otherwise as [`Self::scan_beside`].
    ///
    /// # Errors
    /// Where a write fails, and those of `beside`.
    pub fn stream_beside(&self, pieces: &[u64], beside: impl FnMut() -> Result<()>) -> Result<()> {
        self.beside(beside, || {
            pieces.iter().zip(0..).try_for_each(|(bytes, number): (_, u32)| {
                let name = format!("stream-{number}");
                write_file(&self.volume, &name, *bytes)?;
                Ok(self.volume.file_system.unlink(&Caller::root(), Ino::ROOT, name.as_bytes())?)
            })
        })
    }

    fn beside(&self, mut beside: impl FnMut() -> Result<()>, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        let actor = self.volume.time.actor();
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                actor.begin();
                work()
            });
            while !worker.is_finished() {
                beside()?;
                self.volume.time.sleep(LOOK_INTERVAL);
            }
            self.volume.time.join(worker).map_err(|_| anyhow!("a program beside the readers panicked"))?
        })
    }

    /// The work of the devices so far, the fastest first.
    pub fn traffic(&self) -> Vec<Traffic> {
        let traffic = |device: &Arc<polymux_sim::SimulatedDevice>| {
            let served = device.served();
            Traffic { reads: served.reads, bytes_read: served.bytes_read, bytes_written: served.bytes_written }
        };
        self.volume.devices.iter().map(traffic).collect()
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.volume.time.elapsed()
    }

    /// Gives a device other limits.
    pub fn set_speed(&self, device: usize, speed: polymux_sim::DeviceSpeed) {
        self.volume.devices[device].set_speed(Some(speed));
    }

    /// The file system, to ask it.
    pub fn file_system(&self) -> &FileSystem {
        &self.volume.file_system
    }
}
