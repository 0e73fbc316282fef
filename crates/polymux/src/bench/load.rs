//! The file that a volume is measured with, and the loads that it gets.

use std::fs::{self, File};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use polymux_tier::measure::{Noise, Shuffle};
use rustix::fs::{Advice, FlockOperation};

use super::ask;
use super::usage::Usage;
use crate::protocol::{Answer, Request};
use crate::rate;
use polymux_config::random::random_bytes;
use polymux_config::registry::Registry;

/// Name of the file.
const NAME: &str = ".polymux-bench";

/// Bytes of a request of those that follow one another.
const LARGE: usize = 1 << 20;
/// Bytes of the others,
const SMALL: usize = 4096;
/// and how many threads make them.
const THREADS: u64 = 16;

/// How long reads go on at most.
const READ_TIME: Duration = Duration::from_secs(3);

/// The loads of a bench run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The file is written from its beginning, and synced.
    Write,
    /// It is read from its beginning.
    Read,
    /// It is read anywhere, in blocks of 4 KiB, by several threads.
    RandomRead,
}

impl Load {
    /// All, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Write, Self::Read, Self::RandomRead];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Write => "sequential write with fsync",
            Self::Read => "sequential read, cold",
            Self::RandomRead => "random reads of 4 KiB, cold",
        }
    }

    /// As programs read it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Write => "sequential_write",
            Self::Read => "sequential_read",
            Self::RandomRead => "random_read",
        }
    }

    /// Whether the result is in requests per second, not in bytes.
    pub fn counts_requests(self) -> bool {
        self == Self::RandomRead
    }
}

/// Result of one load.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Bytes, or requests, per second.
    pub per_second: u64,
    /// Share in percent of the bytes read that came from devices; `None` for writes, and where it is unknown.
    pub from_devices_percent: Option<u64>,
    /// Share of the time in percent in which all processors of the machine were busy.
    pub processors_busy_percent: Option<u64>,
}

/// Where the bytes of the file are, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLayout {
    /// The policy that decided.
    pub policy: String,
    /// Bytes per tier.
    pub bytes: Vec<(String, u64)>,
}

/// A file that goes when this does.
pub struct BenchFile {
    path: PathBuf,
    file: File,
    is_there: bool,
}

impl BenchFile {
    /// Makes the file in a directory; one that a killed run left is taken for it.
    pub fn make(directory: &Path) -> Result<Self> {
        let path = directory.join(NAME);
        let failed = || format!("cannot make {}", path.display());
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(&path);
        let file = file.with_context(failed)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{} is in use: the volume is being measured there already", path.display());
        }
        // Emptied, so that no block of an earlier run is on a tier that placement would not choose now.
        file.set_len(0).with_context(failed)?;
        Ok(Self { path, file, is_there: true })
    }

    /// Removes it.
    pub fn remove(mut self) -> Result<()> {
        self.is_there = false;
        fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

impl Drop for BenchFile {
    fn drop(&mut self) {
        if self.is_there
            && let Err(error) = fs::remove_file(&self.path)
        {
            crate::output::warn(&format!("{} stays behind: {error}", self.path.display()));
        }
    }
}

/// State shared by all loads.
pub struct Bench<'a> {
    /// Where sockets are.
    pub registry: &'a Registry,
    /// The volume,
    pub volume: &'a str,
    /// and who serves it.
    pub pid: u32,
    /// How large the file gets.
    pub file_bytes: u64,
    /// Set to end the run early.
    pub cancelled: &'a AtomicBool,
}

impl Bench<'_> {
    /// Puts a load on the file.
    pub fn run(&self, file: &mut BenchFile, load: Load) -> Result<Run> {
        if load != Load::Write {
            self.forget(file)?;
        }
        let before = Usage::now(self.pid);
        let began = Instant::now();
        let done = match load {
            Load::Write => self.write(&file.file),
            Load::Read => self.read(&file.file, began),
            Load::RandomRead => self.read_anywhere(&file.file, began),
        };
        let bytes = done.with_context(|| format!("{} of {}", load.words(), file.path.display()))?;
        let elapsed = began.elapsed();
        let after = Usage::now(self.pid);
        if self.is_cancelled() {
            bail!("it was ended before it was through; its file is removed");
        }
        let count = if load.counts_requests() { bytes / SMALL as u64 } else { bytes };
        let share = |brought: u64| (brought.min(bytes) * 100).checked_div(bytes);
        let brought = after.device_read_since(&before).filter(|_| load != Load::Write);
        Ok(Run {
            per_second: rate::per_second(count, elapsed).unwrap_or(0),
            from_devices_percent: brought.and_then(share),
            processors_busy_percent: after.processors_busy_percent(&before),
        })
    }

    /// Where the bytes of the file are now.
    pub fn layout(&self, file: &BenchFile) -> Result<FileLayout> {
        let ino = file.file.metadata()?.ino();
        let Answer::Explain(explained) = ask(self.registry, self.volume, &Request::Explain { ino })? else {
            bail!("the daemon answered something else");
        };
        let Answer::Where(place) = ask(self.registry, self.volume, &Request::Where { ino })? else {
            bail!("the daemon answered something else");
        };
        let bytes = place.tiers.into_iter().map(|share| (share.tier, share.bytes_mapped)).collect();
        Ok(FileLayout { policy: explained.policy, bytes })
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Takes the file out of the memory of this machine, above the mount and below it. How far that went shows afterwards.
    fn forget(&self, file: &BenchFile) -> Result<()> {
        let length = NonZeroU64::new(file.file.metadata()?.len());
        // A hint: the share that comes from memory after all is reported.
        let _ = rustix::fs::fadvise(&file.file, 0, length, Advice::DontNeed);
        match ask(self.registry, self.volume, &Request::ForgetPages { ino: file.file.metadata()?.ino() })? {
            Answer::Done => Ok(()),
            _ => bail!("the daemon answered something else"),
        }
    }

    fn write(&self, file: &File) -> Result<u64> {
        // There are file systems that would store less otherwise.
        let mut buffer = vec![0; LARGE];
        let mut noise = Noise::new(seed()?);
        noise.fill(&mut buffer);
        let mut done = 0;
        while done < self.file_bytes && !self.is_cancelled() {
            noise.renew(&mut buffer);
            file.write_all_at(&buffer, done)?;
            done += LARGE as u64;
        }
        file.sync_all()?;
        Ok(done)
    }

    fn read(&self, file: &File, began: Instant) -> Result<u64> {
        let mut buffer = vec![0; LARGE];
        let mut done = 0;
        while began.elapsed() < READ_TIME && !self.is_cancelled() {
            match file.read_at(&mut buffer, done)? {
                0 => break,
                read => done += read as u64,
            }
        }
        Ok(done)
    }

    fn read_anywhere(&self, file: &File, began: Instant) -> Result<u64> {
        let blocks = (file.metadata()?.len() / SMALL as u64).max(1);
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Random);
        // No block twice, because memory would answer the second time.
        let (next, order) = (AtomicU64::new(0), Shuffle::new(blocks, seed()?));
        let read = || -> std::io::Result<u64> {
            let (mut buffer, mut done) = ([0; SMALL], 0);
            while began.elapsed() < READ_TIME && !self.is_cancelled() {
                let place = next.fetch_add(1, Ordering::Relaxed);
                if place >= blocks {
                    break;
                }
                file.read_exact_at(&mut buffer, order.at(place) * SMALL as u64)?;
                done += SMALL as u64;
            }
            Ok(done)
        };
        let outcome: std::io::Result<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a reader does not panic")).sum()
        });
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Normal);
        Ok(outcome?)
    }
}

fn seed() -> Result<u64> {
    Ok(u64::from_le_bytes(random_bytes()?))
}
