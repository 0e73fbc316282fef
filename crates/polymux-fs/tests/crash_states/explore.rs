//! Every crash point of a workload, and at each the choices of the state that is left.
//!
//! Invariants:
//! * A state is recovered once for each workload that leads to it; the result is judged at every crash point that leads
//!   there, because the promises grow over time.
//! * All numbers are drawn from the seed of the workload, so a place (workload, point, choice) finds a state again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use polymux_fs::{Caller, SetAttributes};
use polymux_sim::crash_states::{Choice, EntryDurability, Ignored, Random, State, StateHash, World};
use polymux_sim::recording::Journal;

use super::history::History;
use super::oracle::{Observed, check_space, check_store, judge, judge_copy};
use super::scene::{Mounted, Shape, TIERS};
use super::store_device::Backing;
use super::workload::{Recorded, Workload, run};

/// Bytes of contents that are remembered of the states of a workload; beyond that they are recovered again.
const KNOWN_BYTES_MAX: usize = 128 << 20;

/// With this variable set workloads and their journals are printed.
pub const TRACE: &str = "POLYMUX_CRASH_TRACE";

/// How much of a workload is looked at.
#[derive(Clone, Copy)]
pub struct Effort<'a> {
    /// Products by chance at each crash point.
    pub random_states: usize,
    /// One of so many states has its recovery crashed too; 0: none.
    pub again_one_of: u64,
    /// States at each crash point of a recovery.
    pub states_again: usize,
    /// Whether a directory entry is durable with its object.
    pub entries: EntryDurability,
    /// The kind of store.
    pub backing: Backing<'a>,
    /// Syncs of the files of the store that do nothing.
    pub ignored: Option<Ignored>,
}

/// Where something was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub point: usize,
    pub choice: usize,
    /// The device of the store is lost, and the second copy takes over.
    pub is_copy: bool,
    /// Point and choice of the recovery.
    pub again: Option<(usize, usize)>,
}

/// A state that must not be.
#[derive(Clone, Debug)]
pub struct Violation {
    pub place: Place,
    pub text: String,
}

/// The explored states.
#[derive(Default)]
pub struct Tally {
    pub states: HashSet<StateHash>,
    pub judged: u64,
    pub crashed_again: u64,
    /// States that were begun from the second copy.
    pub copies: u64,
}

/// Which records a state is recovered from.
#[derive(Clone, Copy)]
enum Origin {
    Store,
    Copy,
}

/// Whether bytes may be lost, because a sync failed and said so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Never,
    Told,
}

/// The outcome of one state.
type Outcome = Result<Arc<Observed>, String>;

pub struct Exploration<'a> {
    shape: Shape,
    history: &'a History,
    effort: Effort<'a>,
    seed: u64,
    known: HashMap<StateHash, Outcome>,
    known_bytes: usize,
    pub tally: &'a mut Tally,
}

/// Looks at all crash states of a workload, or at the one of a place. Returns the first violation.
pub fn explore(
    workload: &Workload,
    effort: Effort<'_>,
    seed: u64,
    only: Option<&Place>,
    tally: &mut Tally,
) -> Result<(), Box<(Violation, Recorded)>> {
    let recorded = run(workload, effort.backing);
    if std::env::var_os(TRACE).is_some() {
        let lines = recorded.journal.iter().skip(recorded.first_point).map(|event| format!("  {}\n", event.describe()));
        eprint!("{}", lines.collect::<String>());
    }
    let (shape, history, known) = (workload.shape, &recorded.history, HashMap::new());
    let mut exploration = Exploration { shape, history, effort, seed, known, known_bytes: 0, tally };
    match exploration.all_points(&recorded, only) {
        Ok(()) => Ok(()),
        Err(violation) => Err(Box::new((violation, recorded))),
    }
}

impl Exploration<'_> {
    fn all_points(&mut self, recorded: &Recorded, only: Option<&Place>) -> Result<(), Violation> {
        let mut world = World::new(TIERS.len(), Vec::new()).with_entry_durability(self.effort.entries);
        if let Some(beginning) = &recorded.beginning {
            world = world.with_files(beginning, self.effort.ignored);
        }
        for point in 0..=recorded.journal.len() {
            if point >= recorded.first_point && only.is_none_or(|place| place.point == point) {
                self.one_point(&world, point, only)?;
            }
            if let Some(event) = recorded.journal.get(point) {
                world.apply(event);
            }
        }
        Ok(())
    }

    fn one_point(&mut self, world: &World, point: usize, only: Option<&Place>) -> Result<(), Violation> {
        let choices = Choice::of_world(world, self.effort.random_states, self.seed ^ point as u64);
        let mut seen = HashSet::new();
        for (number, choice) in choices.iter().enumerate() {
            if only.is_some_and(|place| place.choice != number) {
                continue;
            }
            let state = world.crash(choice);
            self.one_copy(&state, point, number, &mut seen, only)?;
            let hash = state.hash();
            if !seen.insert(hash) || only.is_some_and(|place| place.is_copy) {
                continue;
            }
            let place = Place { point, choice: number, is_copy: false, again: None };
            let fail = |text| Violation { place: place.clone(), text };
            let is_new = !self.known.contains_key(&hash);
            let observed = self.observed(&state, hash, Origin::Store).map_err(fail)?;
            judge(self.history, point, &observed).map_err(fail)?;
            self.tally.judged += 1;
            let wants_again = self.effort.again_one_of > 0 && hash.0.is_multiple_of(self.effort.again_one_of);
            if (is_new && wants_again) || only.is_some_and(|place| place.again.is_some()) {
                self.crash_again(&state, &observed, &place, only)?;
            }
        }
        Ok(())
    }

    /// A crash that also lost the device of the store.
    fn one_copy(
        &mut self,
        state: &State,
        point: usize,
        choice: usize,
        seen: &mut HashSet<StateHash>,
        only: Option<&Place>,
    ) -> Result<(), Violation> {
        if !matches!(self.effort.backing, Backing::FilesWithCopy(_)) || only.is_some_and(|place| !place.is_copy) {
            return Ok(());
        }
        let state = state.without_store().expect("a store with a copy has files");
        let hash = state.hash();
        if !seen.insert(hash) {
            return Ok(());
        }
        let fail = |text: String| Violation {
            place: Place { point, choice, is_copy: true, again: None },
            text: format!("from the second copy: {text}"),
        };
        let observed = self.observed(&state, hash, Origin::Copy).map_err(fail)?;
        self.tally.judged += 1;
        self.tally.copies += 1;
        judge_copy(self.history, point, &observed).map_err(fail)
    }

    fn observed(&mut self, state: &State, hash: StateHash, origin: Origin) -> Outcome {
        if let Some(known) = self.known.get(&hash) {
            return known.clone();
        }
        let loss = if self.history.has_failed_syncs { Loss::Told } else { Loss::Never };
        let outcome = recover(&self.shape, self.effort.backing, state, origin, loss).map(Arc::new);
        if let Ok(observed) = &outcome {
            self.known_bytes += observed.files.values().map(|file| file.content.len()).sum::<usize>();
        }
        if self.known_bytes > KNOWN_BYTES_MAX {
            self.known.clear();
            self.known_bytes = 0;
        }
        self.known.insert(hash, outcome.clone());
        self.tally.states.insert(hash);
        outcome
    }

    /// Crashes the recovery of a state at each of its operations.
    fn crash_again(
        &mut self,
        state: &State,
        first: &Observed,
        place: &Place,
        only: Option<&Place>,
    ) -> Result<(), Violation> {
        let journal = Arc::new(Journal::new());
        let mounted = Mounted::after_crash(&self.shape, self.effort.backing, state, Some(&journal));
        if let Ok(mounted) = &mounted {
            // Some of recovery is done when a file is first used.
            drop(Observed::of(&mounted.fs));
        }
        let mut world = World::of_state(state);
        if let Some(beginning) = mounted.as_ref().ok().and_then(|mounted| mounted.store.beginning()) {
            world = world.with_files(beginning, self.effort.ignored);
        }
        drop(mounted);
        let events = journal.events();
        let wanted = only.and_then(|place| place.again);
        for (point, event) in events.iter().enumerate() {
            world.apply(event);
            let seed = self.seed ^ point as u64;
            let choices = Choice::of_world(&world, self.effort.states_again, seed);
            let mut random = Random::new(seed);
            for (number, choice) in choices.iter().enumerate() {
                // Nothing kept, and a few of the others.
                if number > 0 && random.below(choices.len()) >= self.effort.states_again {
                    continue;
                }
                if wanted.is_some_and(|wanted| wanted != (point, number)) {
                    continue;
                }
                let again = world.crash(choice);
                let hash = again.hash();
                let fail = |text: String| Violation {
                    place: Place { again: Some((point, number)), ..place.clone() },
                    text: format!("after a crash of the recovery: {text}"),
                };
                if !self.known.contains_key(&hash) {
                    self.tally.crashed_again += 1;
                }
                let observed = self.observed(&again, hash, Origin::Store).map_err(fail)?;
                judge(self.history, place.point, &observed).map_err(fail)?;
                first.agrees(&observed).map_err(fail)?;
            }
        }
        Ok(())
    }
}

/// Recovers a state in every possible way, and returns the first observation; later observations must be the same.
fn recover(shape: &Shape, backing: Backing, state: &State, origin: Origin, loss: Loss) -> Result<Observed, String> {
    let mounted = match origin {
        Origin::Store => Mounted::after_crash(shape, backing, state, None),
        Origin::Copy => Mounted::from_copy(shape, state),
    };
    let mounted = mounted.map_err(|error| format!("it does not mount: {error}"))?;
    let first = Observed::of(&mounted.fs)?;
    let mounted = mounted.crash().map_err(|error| format!("it does not mount a second time: {error}"))?;
    let second = Observed::of(&mounted.fs).map_err(|text| format!("after a second recovery: {text}"))?;
    first.agrees(&second).map_err(|text| format!("the second recovery is another one: {text}"))?;
    // Checked before anything moves: a move of the file would free ranges that recovery should have freed.
    mounted.free();
    check_space(&mounted).map_err(|text| format!("before anything moves: {text}"))?;
    mounted.settle()?;
    let settled = Observed::of(&mounted.fs)?;
    first.agrees(&settled).map_err(|text| format!("background work changed something: {text}"))?;
    check_store(&*mounted.records()?).map_err(|text| format!("after recovery: {text}"))?;
    check_space(&mounted)?;
    if loss == Loss::Told {
        // A file with a loss need not grow, and a check of the volume names it.
        return Ok(first);
    }
    grow_all(&mounted, &settled)?;
    let mounted = mounted.remount()?;
    if !mounted.fs.status().map_err(|error| error.to_string())?.recovery.is_empty() {
        return Err("a clean stop was recovered".to_owned());
    }
    check_grown(&mounted, &settled).map_err(|text| format!("after a clean stop: {text}"))?;
    Ok(first)
}

/// Bytes by which every file grows at the end, to see whether anything was left behind it.
const GROWTH: usize = 3 * 4096 + 100;

fn grow_all(mounted: &Mounted, found: &Observed) -> Result<(), String> {
    for (ino, file) in &found.files {
        let size = (file.content.len() + GROWTH) as u64;
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        mounted
            .fs
            .set_attributes(&Caller::root(), *ino, &change)
            .map_err(|error| format!("growing a file: {error}"))?;
    }
    check_grown(mounted, found)
}

fn check_grown(mounted: &Mounted, found: &Observed) -> Result<(), String> {
    let mut expected = found.clone();
    for file in expected.files.values_mut() {
        let mut content = file.content.to_vec();
        content.resize(content.len() + GROWTH, 0);
        file.content = Arc::new(content);
    }
    expected.agrees(&Observed::of(&mounted.fs)?).map_err(|text| format!("a file that grew: {text}"))
}
