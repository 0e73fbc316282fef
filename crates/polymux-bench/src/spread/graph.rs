//! Random walks over a graph that is larger than the fast tier and than memory.
//!
//! Method:
//! * The edges of an R-MAT graph ([`rmat`]) are a file of a gibibyte (less where few seconds are asked for); the fast tier holds a quarter
//!   of it. Devices have limits of reads per second, as in `random`.
//! * Walkers and the daemon have 256 MiB of memory together, page caches included ([`memory`]); the index of the graph is in it.
//! * Each walker goes from vertex to vertex; where it goes next is in the 4 KiB that it reads. Each edge is verified. Two of the walkers
//!   write where they were.
//! * Both policies get the same graph and the same steps: once where they themselves put it when it was written, and once from the
//!   slowest tier, with the fast one empty. Passthrough is off, because a file that uses it would not move. Compared are the
//!   traffic of the fast device during the walk, as the kernel counts it, and the time of the walk.

mod memory;
mod rmat;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use self::memory::LittleMemory;
use self::rmat::{EDGE_BYTES, Index, Shape};
use super::SpreadArguments;
use super::stamped::BLOCK_BYTES;
use super::stand::{self, Requests, Stand};
use super::volume::Settings;
use crate::noise::Noise;
use crate::parallel;
use crate::report::{Cell, Report, Section};
use crate::throttled::OnTop;

/// The policy to compare with.
const OTHER: &str = "promote-always";

const WALKERS: u64 = 8;

/// Walkers that write where they were.
const WRITERS: u64 = 2;

/// Steps between two writes of a walker.
const STEPS_OF_WRITE: u64 = 64;

/// Steps of all walkers for each second that is asked for.
const STEPS_PER_SECOND: u64 = 10_000;

/// The fast tier holds this part of the graph.
const FAST_PART: u64 = 4;

/// Space the volume itself needs on the fast tier: log, tables, ballast, and the space that is left free for them.
const OWN_BYTES: u64 = 256 << 20;

const MEMORY_BYTES: u64 = 256 << 20;

/// Vertices are 2 to the power of this, for so many seconds at least.
const SCALES: [(u64, u32); 3] = [(8, 22), (4, 21), (0, 20)];

const EDGES_OF_VERTEX: u64 = 32;

/// Where the graph is when the walk begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Where the policy put it.
    AsWritten,
    /// On the slowest tier.
    Slowest,
}

/// Result of a walk.
struct Walked {
    elapsed: Duration,
    /// Bytes of the graph on each tier before,
    before: Vec<u64>,
    /// and after it.
    after: Vec<u64>,
    /// Bytes that each device took.
    written: Vec<u64>,
    /// Reads that each device served.
    reads: Vec<u64>,
    /// Most bytes of memory in use.
    memory_max: u64,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report; other bytes than were written.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    if let Some(obstacle) = memory::obstacle() {
        eprintln!("skipped: {obstacle}");
        return Ok(());
    }
    arguments.program_with(OTHER)?;
    let scale = SCALES.iter().find(|(seconds, _)| arguments.seconds >= *seconds).map_or(20, |(_, scale)| *scale);
    let shape = Shape { scale, edges_of_vertex: EDGES_OF_VERTEX, seed: 18 };
    let bytes = shape.edges() * EDGE_BYTES;
    let stand = Stand::make(arguments, stand::profiles(arguments, Requests::Limited), 2 * bytes)?;
    let path = stand.devices.directory().join("graph");
    let index = rmat::write_file(&shape, &path)?;
    let steps = arguments.seconds * STEPS_PER_SECOND;
    for start in [Start::AsWritten, Start::Slowest] {
        let other = walked(&stand, &path, &index, (OTHER, start), steps).context(OTHER)?;
        let policy = arguments.policy.as_str();
        let ours = walked(&stand, &path, &index, (policy, start), steps).context(policy.to_owned())?;
        report.add(table(&stand, start, bytes, &other, &ours));
    }
    Ok(())
}

fn table(stand: &Stand, start: Start, bytes: u64, other: &Walked, ours: &Walked) -> Section {
    let (steps, policy) = (stand.arguments.seconds * STEPS_PER_SECOND, stand.arguments.policy.as_str());
    let begin = if start == Start::AsWritten { "as it was written" } else { "on the slowest tier at first" };
    let (megabytes, fast) = (bytes / 1_000_000, bytes / FAST_PART / 1_000_000);
    let movers = if stand.arguments.movers_at_full_speed { "at full speed" } else { "that make way" };
    let title =
        format!("{steps} steps over a graph of {megabytes} MB {begin}, fast tier of {fast} MB, movers {movers}");
    let columns = [
        "policy",
        "seconds",
        "times as fast",
        "target",
        "written to the fast device, MB",
        "to the other",
        "target ",
        "written to each, MB",
        "reads of each",
        "memory, MB",
    ];
    let mut section = Section::new(stand.title(&title), &columns);
    for (policy, found) in [(OTHER, other), (policy, ours)] {
        section.row(row(policy, found, other));
        let shares = [&found.before, &found.after].map(|shares| stand.shares_in_words(shares));
        section.note(format!("The graph with {policy}: before the walk {}, after it {}.", shares[0], shares[1]));
    }
    section.note(format!("Memory of walkers and daemon together: {} MB at most.", MEMORY_BYTES / 1_000_000));
    section
}

fn row(policy: &str, found: &Walked, other: &Walked) -> Vec<Cell> {
    let fast = |walked: &Walked| walked.written.first().copied().unwrap_or(0) as f64;
    let each = |numbers: &[u64], unit: u64| {
        numbers.iter().map(|number| (number / unit).to_string()).collect::<Vec<_>>().join(" + ")
    };
    vec![
        policy.into(),
        Cell::Number(found.elapsed.as_secs_f64(), 2),
        Cell::Number(other.elapsed.as_secs_f64() / found.elapsed.as_secs_f64().max(1e-9), 3),
        "1.3".into(),
        Cell::Number(fast(found) / 1e6, 1),
        Cell::Number(fast(found) / fast(other).max(1.0), 3),
        "0.40".into(),
        each(&found.written, 1_000_000).into(),
        each(&found.reads, 1).into(),
        Cell::Number(found.memory_max as f64 / 1e6, 0),
    ]
}

fn walked(stand: &Stand, graph: &Path, index: &Index, (policy, start): (&str, Start), steps: u64) -> Result<Walked> {
    let capacity = fs::metadata(graph)?.len() / FAST_PART + OWN_BYTES;
    let capacity = Some((stand.profiles[0].name, capacity));
    let options = format!("passthrough = \"off\"\nmovers_polite = {}", !stand.arguments.movers_at_full_speed);
    let mut volume = stand.volume_with(&Settings { policy, capacity, options: &options, ..Settings::default() })?;
    volume.start(&stand.devices)?;
    // With the limits: how the file is spread depends on the speed of the devices.
    stand.throttle()?;
    let path = volume.mount_point().join("graph");
    fs::copy(graph, &path)?;
    File::open(&path)?.sync_all()?;
    stand.devices.unthrottle()?;
    if let (Start::Slowest, Some(slowest)) = (start, stand.profiles.last()) {
        volume.migrate(&path, slowest.name)?;
    }
    volume.start_cold(&stand.devices)?;
    let shares = volume.bytes_of_file(&path)?;
    stand.throttle()?;
    let little = Arc::new(Mutex::new(LittleMemory::enter(MEMORY_BYTES, &[volume.process()?])?));
    let on_top: Arc<Mutex<dyn OnTop>> = Arc::clone(&little) as _;
    stand.devices.put_on_top(&on_top);
    let before = stand.devices.traffic()?;
    let (elapsed, _) = parallel::run((0..WALKERS).collect(), |_, walker| {
        walk(&path, index, walker, steps / WALKERS).with_context(|| format!("walker {walker}"))
    })?;
    let after = stand.devices.traffic()?;
    let mut little = little.lock().unwrap_or_else(PoisonError::into_inner);
    let memory_max = little.use_so_far()?;
    little.remove()?;
    let shares_after = volume.bytes_of_file(&path)?;
    stand.devices.unthrottle()?;
    volume.stop()?;
    let done: Vec<_> = after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
    let written = done.iter().map(|traffic| traffic.bytes_written).collect();
    let reads = done.iter().map(|traffic| traffic.reads).collect();
    Ok(Walked { elapsed, before: shares, after: shares_after, written, reads, memory_max })
}

/// One walker; two of them write where they were, durably at the end.
fn walk(path: &Path, index: &Index, walker: u64, steps: u64) -> Result<()> {
    let file = File::open(path)?;
    let mut noise = Noise::new(walker + 1);
    let mut result =
        if walker < WRITERS { Some(File::create(path.with_file_name(format!("walk-{walker}")))?) } else { None };
    let mut visited = Vec::new();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut vertex = somewhere(index, &mut noise);
    for step in 0..steps {
        let (first, count) = index.edges_of(vertex);
        let offset = (first + noise.below(count)) * EDGE_BYTES;
        let inside = usize::try_from(offset % BLOCK_BYTES as u64)?;
        file.read_exact_at(&mut buffer, offset - offset % BLOCK_BYTES as u64)?;
        let mut word = [0; 8];
        word.copy_from_slice(&buffer[inside..][..8]);
        vertex = index.follow(vertex, u64::from_le_bytes(word))?;
        visited.extend_from_slice(&vertex.to_le_bytes());
        if (step + 1) % STEPS_OF_WRITE == 0 {
            result.as_mut().map_or(Ok(()), |file| file.write_all(&visited))?;
            visited.clear();
        }
        if index.edges_of(vertex).1 == 0 {
            vertex = somewhere(index, &mut noise);
        }
    }
    Ok(result.map_or(Ok(()), |file| file.sync_all())?)
}

/// A vertex that has edges.
fn somewhere(index: &Index, noise: &mut Noise) -> u64 {
    loop {
        let vertex = noise.below(index.vertices());
        if index.edges_of(vertex).1 > 0 {
            return vertex;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walkers_find_their_way_and_notice_a_graph_that_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("graph");
        let shape = Shape { scale: 9, edges_of_vertex: 32, seed: 1 };
        let index = rmat::write_file(&shape, &path).unwrap();
        (0..3).for_each(|walker| walk(&path, &index, walker, 200).unwrap());
        assert_eq!(fs::metadata(directory.path().join("walk-1")).unwrap().len(), 3 * STEPS_OF_WRITE * 8);
        assert!(!directory.path().join("walk-2").exists());
        rmat::write_file(&Shape { seed: 2, ..shape }, &path).unwrap();
        assert!(walk(&path, &index, 0, 200).is_err());
    }
}
