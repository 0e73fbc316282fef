//! Records workloads, makes images of power failures of each, and judges them two at a time.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::image::{Flushes, Image, Recording, choose_position};
use super::stand::{Barriers, Configuration, Pair, Stand};
use crate::mounted::Random;
use crate::promises::history::{Ledger, Position, Promise};
use crate::promises::judge::{Checked, judge};
use crate::promises::workload::{Syncing, WRITERS, Writer, move_about};

/// The run to record, and how images are made of it.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub pair: Pair,
    pub syncing: Syncing,
    pub barriers: Barriers,
    pub flushes: Flushes,
    pub work_time: Duration,
}

impl Variant {
    /// Every part keeps its guarantees.
    pub fn honest(pair: Pair) -> Self {
        let work_time = Duration::from_secs(4);
        Self { pair, syncing: Syncing::Real, barriers: Barriers::On, flushes: Flushes::Kept, work_time }
    }

    /// A run in which every part keeps its guarantees, as a control: shorter than [`Self::honest`].
    pub fn control(pair: Pair) -> Self {
        Self { work_time: Duration::from_secs(2), ..Self::honest(pair) }
    }
}

/// A workload that ran.
pub struct Recorded {
    variant: Variant,
    recording: Recording,
    ledgers: Vec<Ledger>,
    configuration: Configuration,
    /// When the volume was mounted.
    mounted: Position,
    promised: Vec<Position>,
    /// Parts of files that went to another tier meanwhile.
    pub moves: u64,
}

/// Limit of the fast tier: the data of the writers exceeds it, and so files spill and are moved down by policy.
const FAST_CAPACITY: &str = "20MiB";

/// Violations whose disks are kept: each takes some hundred megabytes.
const SAVED_MAX: usize = 3;

/// Runs the workload and records it.
pub fn record(variant: Variant, seed: u64) -> Recorded {
    let mut stand = Stand::format(variant.pair, FAST_CAPACITY);
    stand.volume.mount();
    let prepared = |writer: u32| {
        let ledger = Writer::prepare(stand.volume.path(), writer, seed + u64::from(writer));
        ledger.expect("the volume can be written to")
    };
    let ledgers: Vec<Ledger> = (0..WRITERS).map(prepared).collect();
    stand.volume.unmount();
    stand.unmount_grounds();
    stand.disks.start_recording();
    stand.mount_grounds(variant.barriers).expect("clean file systems can be mounted");
    stand.volume.mount();
    let mounted = stand.disks.position();
    let ledgers = work(&stand, ledgers, variant, seed);
    let moves = moves_committed(&stand);
    let recording = stand.disks.stop_recording();
    let promises = |ledger: &Ledger| -> Vec<Promise> {
        let of_files = ledger.files.iter().flat_map(|file| file.promises.iter().copied());
        of_files.chain(ledger.promises.iter().copied()).collect()
    };
    let promised: Vec<Position> = ledgers.iter().flat_map(promises).map(|promise| promise.end).collect();
    let promised = promised.into_iter().filter(|end| *end > mounted).collect();
    Recorded { variant, recording, ledgers, configuration: stand.configuration(), mounted, promised, moves }
}

fn moves_committed(stand: &Stand) -> u64 {
    let finished = stand.volume.polymux(["top", &stand.volume.name, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&finished.stdout).expect("top --json prints JSON");
    told["counters"]["moves_committed"].as_u64().expect("moves are counted")
}

fn work(stand: &Stand, ledgers: Vec<Ledger>, variant: Variant, seed: u64) -> Vec<Ledger> {
    let stop = AtomicBool::new(false);
    let clock = || stand.disks.position();
    std::thread::scope(|scope| {
        let spawn = |(number, ledger): (u64, Ledger)| {
            let seed = seed.wrapping_mul(1000) + number;
            let writer = Writer::new(stand.volume.path(), &clock, ledger, variant.syncing, seed);
            let stop = &stop;
            scope.spawn(move || {
                let (ledger, outcome) = writer.run(stop);
                outcome.expect("no operation fails");
                ledger
            })
        };
        let writers: Vec<_> = (1..).zip(ledgers).map(spawn).collect();
        scope.spawn(|| move_about(&stand.volume, &stop, seed));
        scope.spawn(|| move_about(&stand.volume, &stop, !seed));
        std::thread::sleep(variant.work_time);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("a writer does not panic")).collect()
    })
}

impl Recorded {
    /// The image of a number; the same for the same recording and seed.
    fn image(&self, seed: u64, number: u64) -> Image {
        let mut random = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9));
        let position = choose_position(&self.recording, &self.promised, &mut random).max(self.mounted);
        self.recording.image(position, self.variant.flushes, random.next())
    }

    /// Recovers an image and judges its content.
    fn judge(&self, image: &Image, number: u64) -> Result<Checked, String> {
        let mut stand = Stand::on_disks(self.variant.pair, image.disks.clone(), &self.configuration);
        stand.mount_grounds(Barriers::On)?;
        stand.volume.try_mount(&[]).map_err(|said| format!("the volume does not mount: {said}"))?;
        let checked = judge(stand.volume.path(), &self.ledgers, image.position)?;
        stand.volume.unmount();
        stand.check_volume()?;
        stand.unmount_grounds();
        // The checkers of the native file systems take long, and it is not they who are tested.
        if number.is_multiple_of(8) {
            stand.check_grounds()?;
        }
        Ok(checked)
    }

    fn judge_or_panic(&self, image: &Image, number: u64) -> Result<Checked, String> {
        catch_unwind(AssertUnwindSafe(|| self.judge(image, number))).unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().cloned();
            Err(text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
        })
    }
}

/// Result of a campaign.
#[derive(Default)]
pub struct Summary {
    pub moves: u64,
    pub images: u64,
    /// Images in which something unflushed was lost.
    pub images_with_losses: u64,
    points: BTreeSet<(u64, Position)>,
    pub checked: Checked,
    pub violations: Vec<String>,
}

impl Summary {
    pub fn print(&self, title: &str, start: Instant) {
        println!(
            "{title}: {} moves recorded; {} images ({} with losses) of {} crash points; {} promises in force, {} files and {} sectors \
             compared; {} violations; {} s",
            self.moves,
            self.images,
            self.images_with_losses,
            self.points.len(),
            self.checked.promises,
            self.checked.files,
            self.checked.sectors,
            self.violations.len(),
            start.elapsed().as_secs()
        );
    }
}

/// When a campaign may end before its last image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Never,
    /// For a control, which has then served its purpose.
    AtFirstViolation,
}

/// Judges images with these numbers of a recording.
pub fn judge_images(recorded: &Recorded, seed: u64, numbers: std::ops::Range<u64>, stop: Stop, summary: &mut Summary) {
    let next = AtomicU64::new(numbers.start);
    let shared = Mutex::new(summary);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            let image = recorded.image(seed, number);
            let outcome = recorded.judge_or_panic(&image, number);
            let mut summary = shared.lock().expect("nobody panics with the lock held");
            summary.images += 1;
            summary.images_with_losses += u64::from(image.lost_count > 0);
            summary.points.insert((seed, image.position));
            match outcome {
                Ok(checked) => summary.checked.add(checked),
                Err(what) => {
                    let told = format!("seed {seed}, image {number}: {image}\n{what}");
                    if stop == Stop::Never {
                        println!("VIOLATION {told}");
                    }
                    if stop == Stop::Never && summary.violations.len() < SAVED_MAX {
                        println!("(the disks before recovery: {})", save(&image, seed, number, &told).display());
                    }
                    summary.violations.push(told);
                    if stop == Stop::AtFirstViolation {
                        next.store(numbers.end, Ordering::Relaxed);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}

/// A recording cannot be made a second time to the bit, so the disks of a violation are kept.
fn save(image: &Image, seed: u64, number: u64, told: &str) -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-crash-{seed}-{number}"));
    let saved = std::fs::create_dir_all(&place)
        .and_then(|()| std::fs::write(place.join("report"), told))
        .and_then(|()| (0..).zip(&image.disks).try_for_each(|(at, disk)| disk.save(&place.join(format!("disk-{at}")))));
    if let Err(error) = saved {
        eprintln!("{}: {error}", place.display());
    }
    place
}
