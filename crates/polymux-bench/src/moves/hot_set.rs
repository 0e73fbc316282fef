//! `polymux-bench move-hot-set`: a file larger than the fast tier is open and read in a skewed way; how soon is its hot tenth
//! on the fast tier?
//!
//! Method:
//! * Reads choose a node of 2 MiB by Zipf's law (exponent 1) and 4 KiB in it evenly; which node is how hot has nothing to do
//!   with where it lies in the file.
//! * The page cache is emptied again and again for the objects of the volume, so that there is always less memory than the
//!   hot set; reads come from a device.
//! * The hit ratio is reckoned from where the nodes are and how often each is read, so that it has no noise.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use polymux_fs::{Caller, HandleId, MountOptions};
use polymux_types::{ByteSize, Ino};
use rustix::fs::Advice;

use super::tiered::{OPEN, TIER, Tiered};
use crate::noise::{Noise, shuffled};
use crate::report::{Cell, Form, Report, Section};
use crate::statistics::count;
use crate::throttled::{self, Devices, MEMORY_LIKE, NVME_LIKE};

const NODE_BYTES: u64 = 2 << 20;
const READ_BYTES: usize = 4096;
const THREADS: u32 = 2;

/// How often the page cache is emptied.
const FORGET: Duration = Duration::from_millis(20);

/// How much of the hot tenth has to be on the fast tier.
const SHARE: f64 = 0.9;

/// Choices of `polymux-bench move-hot-set`.
#[derive(Args, Clone, Debug)]
pub struct HotSetArguments {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Mebibytes of the file.
    #[arg(long, default_value_t = 1024)]
    pub file_mib: u64,
    /// Mebibytes that the fast tier holds.
    #[arg(long, default_value_t = 256)]
    pub capacity_mib: u64,
    /// Seconds in which heat halves.
    #[arg(long, default_value_t = 15)]
    pub half_life: u32,
    /// Reads in each second.
    #[arg(long, default_value_t = 2000)]
    pub per_second: u32,
}

/// Which node is how hot.
struct Zipf {
    /// Node of each rank, the hottest first.
    nodes: Vec<u64>,
    /// Share of the reads that go to a rank or a hotter one.
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(nodes: u64, seed: u64) -> Self {
        let shuffled = shuffled(nodes, seed);
        let weights = (1..=shuffled.len()).map(|rank| 1.0 / count(rank));
        let sum: f64 = weights.clone().sum();
        let cumulative = weights.scan(0.0, |total, weight| {
            *total += weight / sum;
            Some(*total)
        });
        Self { cumulative: cumulative.collect(), nodes: shuffled }
    }

    fn node(&self, noise: &mut Noise) -> u64 {
        let point = (noise.next_number() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = self.cumulative.partition_point(|share| *share < point);
        self.nodes[rank.min(self.nodes.len() - 1)]
    }

    fn share_of_rank(&self, rank: usize) -> f64 {
        self.cumulative[rank] - if rank == 0 { 0.0 } else { self.cumulative[rank - 1] }
    }
}

/// Where the file is.
#[derive(Clone, Copy, Debug)]
struct Standing {
    seconds: f64,
    /// Share of the hot tenth that is on the fast tier.
    hot_share: f64,
    /// Share of the reads that it serves.
    hit_ratio: f64,
    latency_us: f64,
    moved: u64,
}

/// Reads so far, and the nanoseconds that they took.
#[derive(Default)]
struct Latencies {
    reads: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Latencies {
    fn take_mean_us(&self) -> f64 {
        let (reads, nanoseconds) = (self.reads.swap(0, Ordering::Relaxed), self.nanoseconds.swap(0, Ordering::Relaxed));
        nanoseconds as f64 / 1e3 / reads.max(1) as f64
    }
}

/// Measures and prints.
///
/// # Errors
/// Whatever fails on the way; a figure that misses its target is none.
pub fn run(arguments: &HotSetArguments) -> Result<()> {
    if let Some(reason) = throttled::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let file_bytes = arguments.file_mib << 20;
    let devices = Devices::make(&[MEMORY_LIKE, NVME_LIKE], file_bytes + (1 << 30))?;
    let options = MountOptions { heat_half_life_seconds: arguments.half_life, ..MountOptions::default() };
    let capacity = ByteSize(arguments.capacity_mib << 20);
    let mut tiered = Tiered::make_with_capacity(&devices, options, Some(capacity))?;
    let ino = tiered.write_file("file", file_bytes)?;
    tiered.begin_measuring()?;
    let zipf = Zipf::new(file_bytes / NODE_BYTES, 0x51_7c_c1_b7_27_22_0a_95);
    let hot_bytes = file_bytes / 10;
    let bandwidth = NVME_LIKE.limits.read_bytes.expect("the profile has limits") as f64;
    let half_lives = 2.0 * f64::from(arguments.half_life);
    let before = stand(&tiered, ino, &zipf, 0.0, 0.0)?;
    let bytes_to_move = (1.0 - before.hot_share) * hot_bytes as f64;
    let seconds_max = 1.5 * (bytes_to_move / bandwidth + half_lives);
    let standings = load(&tiered, ino, &zipf, arguments.per_second, Duration::from_secs_f64(2.0 * seconds_max))?;
    let reached = standings.iter().find(|standing| standing.hot_share >= SHARE).map(|standing| standing.seconds);
    let mut report = Report::new("move-hot-set", if arguments.json { Form::Json } else { Form::Tables });
    report.add(course(&standings));
    let mut section = Section::new("The hot tenth of one open file", &["what", "value"]);
    let (first, last) = (standings.first().unwrap_or(&before), standings.last().unwrap_or(&before));
    for (what, value, decimals) in [
        ("file, MB", Some(file_bytes as f64 / 1e6), 0),
        ("fast tier, MB", Some(capacity.0 as f64 / 1e6), 0),
        ("hot share on the fast tier before, %", Some(before.hot_share * 100.0), 1),
        ("hot share at the end, %", Some(last.hot_share * 100.0), 1),
        ("hit ratio before, %", Some(before.hit_ratio * 100.0), 1),
        ("hit ratio at the end, %", Some(last.hit_ratio * 100.0), 1),
        ("mean latency at the beginning, us", Some(first.latency_us), 0),
        ("mean latency at the end, us", Some(last.latency_us), 0),
        ("moved, MB", Some(last.moved as f64 / 1e6), 0),
        ("seconds until 90 % of it were on the fast tier", reached, 1),
        ("seconds allowed", Some(seconds_max), 1),
    ] {
        section.row(vec![what.into(), Cell::optional(value, decimals)]);
    }
    let met = reached.is_some_and(|seconds| seconds <= seconds_max);
    section.row(vec!["met".into(), if met { "yes" } else { "no" }.into()]);
    report.add(section);
    tiered.end()?;
    report.finish()
}

fn course(standings: &[Standing]) -> Section {
    let columns = ["second", "hot share %", "hit ratio %", "mean latency us", "moved MB"];
    let mut section = Section::new("Course", &columns);
    let step = (standings.len() / 12).max(1);
    for standing in standings.iter().step_by(step) {
        section.row(vec![
            Cell::Number(standing.seconds, 0),
            Cell::Number(standing.hot_share * 100.0, 1),
            Cell::Number(standing.hit_ratio * 100.0, 1),
            Cell::Number(standing.latency_us, 0),
            Cell::Number(standing.moved as f64 / 1e6, 0),
        ]);
    }
    section
}

/// Reads until `duration` is over; looks each second where the file is.
fn load(tiered: &Tiered<'_>, ino: Ino, zipf: &Zipf, per_second: u32, duration: Duration) -> Result<Vec<Standing>> {
    let handle = tiered.file_system().open(&Caller::root(), ino, OPEN)?;
    let is_over = AtomicBool::new(false);
    let latencies = Latencies::default();
    let standings = thread::scope(|scope| -> Result<Vec<Standing>> {
        let (is_over, latencies) = (&is_over, &latencies);
        let readers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let pause = Duration::from_secs(1) * THREADS / per_second;
                scope.spawn(move || read(tiered, handle, zipf, (u64::from(thread), pause), (latencies, is_over)))
            })
            .collect();
        let forgetter = scope.spawn(move || forget(&objects(tiered), is_over));
        let begun = Instant::now();
        let mut standings = Vec::new();
        let mut outcome = Ok(());
        while begun.elapsed() < duration && outcome.is_ok() {
            thread::sleep(Duration::from_secs(1));
            let latency_us = latencies.take_mean_us();
            match stand(tiered, ino, zipf, begun.elapsed().as_secs_f64(), latency_us) {
                Ok(standing) => standings.push(standing),
                Err(error) => outcome = Err(error),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().expect("no reader panics")?;
        }
        forgetter.join().expect("forgetting does not panic");
        outcome.map(|()| standings)
    })?;
    tiered.file_system().release(handle)?;
    Ok(standings)
}

fn read(
    tiered: &Tiered<'_>,
    handle: HandleId,
    zipf: &Zipf,
    (thread, pause): (u64, Duration),
    (latencies, is_over): (&Latencies, &AtomicBool),
) -> Result<()> {
    let mut noise = Noise::new(0x9e37_79b9_7f4a_7c15 ^ (thread + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let mut buffer = vec![0; READ_BYTES];
    let caller = Caller::root();
    let mut due = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        due += pause;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let within = noise.next_number() % (NODE_BYTES / READ_BYTES as u64) * READ_BYTES as u64;
        let offset = zipf.node(&mut noise) * NODE_BYTES + within;
        let begun = Instant::now();
        tiered.file_system().read(&caller, handle, offset, &mut buffer)?;
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latencies.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        latencies.reads.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Directories that hold the objects of the volume.
fn objects(tiered: &Tiered<'_>) -> Vec<PathBuf> {
    tiered.devices.all().into_iter().map(|device| device.mount_point.join(TIER)).collect()
}

/// Every large file below a directory.
fn large_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() && entry.file_name() != "meta" => large_files(&entry.path(), found),
            Ok(metadata) if metadata.is_file() && metadata.len() > NODE_BYTES => found.push(entry.path()),
            _ => {}
        }
    }
}

/// Keeps the objects out of the page cache.
fn forget(directories: &[PathBuf], is_over: &AtomicBool) {
    let mut files: Vec<File> = Vec::new();
    let mut rounds = 0_u32;
    while !is_over.load(Ordering::Relaxed) {
        // Moves make new objects.
        if rounds.is_multiple_of(50) {
            let mut paths = Vec::new();
            directories.iter().for_each(|directory| large_files(directory, &mut paths));
            files = paths.iter().filter_map(|path| File::open(path).ok()).collect();
        }
        rounds += 1;
        for file in &files {
            // Dirty pages stay; they are not the pages that reads hit.
            let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
        }
        thread::sleep(FORGET);
    }
}

fn stand(tiered: &Tiered<'_>, ino: Ino, zipf: &Zipf, seconds: f64, latency_us: f64) -> Result<Standing> {
    let location = tiered.file_system().locate(ino)?;
    let mut on_fast = vec![0_u64; zipf.nodes.len()];
    let is_fast = |tier: &Option<String>| tier.as_deref() == Some(MEMORY_LIKE.name);
    for extent in location.extents.iter().filter(|extent| is_fast(&extent.tier)) {
        let mut position = extent.offset;
        while position < extent.offset + extent.length {
            let node = position / NODE_BYTES;
            let end = ((node + 1) * NODE_BYTES).min(extent.offset + extent.length);
            on_fast[usize::try_from(node)?] += end - position;
            position = end;
        }
    }
    let share = |rank: usize| {
        let node = usize::try_from(zipf.nodes[rank]).expect("a node fits");
        on_fast[node] as f64 / NODE_BYTES as f64
    };
    let hot = zipf.nodes.len() / 10;
    Ok(Standing {
        seconds,
        hot_share: (0..hot).map(share).sum::<f64>() / count(hot.max(1)),
        hit_ratio: (0..zipf.nodes.len()).map(|rank| share(rank) * zipf.share_of_rank(rank)).sum(),
        latency_us,
        moved: tiered.counter("bytes_moved")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_ranks_get_what_the_law_says() {
        let zipf = Zipf::new(512, 7);
        let tenth: f64 = (0..51).map(|rank| zipf.share_of_rank(rank)).sum();
        assert!((0.64..0.68).contains(&tenth), "{tenth}");
        let mut noise = Noise::new(3);
        let hottest = (0..20_000).filter(|_| zipf.node(&mut noise) == zipf.nodes[0]).count();
        let expected = zipf.share_of_rank(0) * 20_000.0;
        assert!((count(hottest) / expected - 1.0).abs() < 0.1, "{hottest} of {expected}");
        let mut nodes = zipf.nodes.clone();
        nodes.sort_unstable();
        assert!(nodes.into_iter().eq(0..512), "every node has one rank");
    }
}
