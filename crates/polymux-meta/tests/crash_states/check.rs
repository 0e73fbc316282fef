//! Opening the files left by a crash, and describing their faults.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use polymux_meta::{LogStore, MetadataStore, OpenMode, StepProgress, StoreError, Workers};
use polymux_sim::recording_file_system::{Change, CrashStates, Fate, Image, NameOrder, Record, RecordingFileSystem};

use crate::workload::{History, Place, Random, open, options, store_path};

/// A file system in memory, where a state is opened several times faster than in a recording one.
const MEMORY: &str = "/dev/shm";

/// Which crash states of a record are looked at.
#[derive(Clone)]
pub(crate) struct Choice {
    /// Positions that are looked at.
    pub(crate) positions: Range<usize>,
    /// One position of so many is looked at, by chance.
    pub(crate) one_of: u64,
    /// Random states at each position, of each order of names.
    pub(crate) random_states: u64,
    /// One state of so many is worked on after it was opened.
    pub(crate) go_on_one_of: u64,
    /// One state of so many is worked on and crashed again while it is recovered and goes on; 0 for none.
    pub(crate) again_one_of: u64,
}

/// How far a state is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// It is opened twice.
    Open,
    /// It is worked on too.
    GoOn,
    /// And all that is crashed again.
    CrashAgain,
}

/// Counts of the checked states.
#[derive(Default, Debug)]
pub(crate) struct Looked {
    pub(crate) positions: u64,
    pub(crate) states: u64,
    pub(crate) crashed_again: u64,
}

/// Looks at crash states of a record; the error describes the first that breaks a promise.
pub(crate) fn look(
    mounted: &RecordingFileSystem,
    record: &Record,
    history: &History,
    choice: &Choice,
    random: &mut Random,
    looked: &mut Looked,
) -> Result<(), String> {
    let mut states = CrashStates::new(record);
    for (position, operation) in record.operations.iter().enumerate() {
        states.begin(operation);
        // During a sync nothing is possible that was not before it.
        let is_sync = matches!(operation.change, Change::Sync { .. });
        if choice.positions.contains(&position) && !is_sync && random.below(choice.one_of) == 0 {
            looked.positions += 1;
            look_at(mounted, &states, position, history, choice, random, looked).map_err(|violation| {
                let around = position.saturating_sub(30)..(position + 1).min(record.operations.len());
                let operations: Vec<String> = around.map(|at| format!("  {at}: {}", tell(record, at))).collect();
                format!("{violation}\ncrash at operation {position} of\n{}", operations.join("\n"))
            })?;
        }
        states.complete(operation);
    }
    Ok(())
}

/// One operation in words.
fn tell(record: &Record, position: usize) -> String {
    let operation = &record.operations[position];
    let path = operation.path.display();
    match &operation.change {
        Change::Write { offset, bytes, durability, .. } => {
            format!("write {path} {offset}+{} {durability:?}", bytes.len())
        }
        Change::Create { kind, .. } => format!("create {kind:?} {path}"),
        Change::Remove { name, .. } => format!("remove {} (was {path})", name.display()),
        Change::Rename { from, .. } => format!("rename {} to {path}", from.display()),
        Change::Resize { length, .. } => format!("resize {path} {length}"),
        Change::Sync { .. } => format!("sync {path}"),
    }
}

fn look_at(
    mounted: &RecordingFileSystem,
    states: &CrashStates,
    position: usize,
    history: &History,
    choice: &Choice,
    random: &mut Random,
    looked: &mut Looked,
) -> Result<(), String> {
    let unsynced = states.unsynced();
    let all = |order| states.image(order, |_| Fate::Kept);
    let mut images = vec![("nothing unsynced is kept".to_owned(), states.image(NameOrder::Ordered, |_| Fate::Lost))];
    if !unsynced.is_empty() {
        images.push(("everything is kept".to_owned(), all(NameOrder::Ordered)));
    }
    for lost in unsynced.iter().copied().filter(|_| unsynced.len() > 1) {
        for order in [NameOrder::Ordered, NameOrder::Any] {
            let image = states.image(order, |at| if at == lost { Fate::Lost } else { Fate::Kept });
            let text = format!("operation {lost} alone is lost, {order:?}");
            if images.iter().all(|(_, other)| *other != image) {
                images.push((text, image));
            }
        }
    }
    for _ in 0..if unsynced.is_empty() { 0 } else { choice.random_states } {
        for order in [NameOrder::Ordered, NameOrder::Any] {
            let seed = random.next();
            let fate = |at: usize| match Random::new(seed ^ at as u64).below(3) {
                0 => Fate::Kept,
                1 => Fate::Lost,
                _ => Fate::Torn(seed.wrapping_mul(at as u64 + 1)),
            };
            images.push((format!("unsynced {unsynced:?}, random {seed}, {order:?}"), states.image(order, fate)));
        }
    }
    for (text, image) in images {
        looked.states += 1;
        let depth = if choice.again_one_of > 0 && random.below(choice.again_one_of) == 0 {
            Depth::CrashAgain
        } else if random.below(choice.go_on_one_of) == 0 {
            Depth::GoOn
        } else {
            Depth::Open
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            look_at_image(mounted, &image, history, history.durable_at(position), depth, random, looked)
        }));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(violation)) => return Err(format!("{violation}\nstate: {text}")),
            Err(_) => return Err(format!("a panic\nstate: {text}")),
        }
    }
    Ok(())
}

/// Looks at one state, however deep.
fn look_at_image(
    mounted: &RecordingFileSystem,
    image: &Image,
    history: &History,
    durable: Option<usize>,
    depth: Depth,
    random: &mut Random,
    looked: &mut Looked,
) -> Result<(), String> {
    if depth != Depth::CrashAgain
        && let Ok(place) = tempfile::tempdir_in(MEMORY)
    {
        image.write_to(place.path()).map_err(|error| format!("writing the state to {MEMORY}: {error}"))?;
        return look_at_place(&place, history, durable, depth, random).map(drop);
    }
    let directory = mounted.load(image);
    let Some(next) = look_at_place(&directory, history, durable, depth, random)? else { return Ok(()) };
    if depth == Depth::CrashAgain {
        looked.crashed_again += 1;
        let record = directory.record();
        let one_of = record.operations.len() as u64 / 12 + 1;
        let few = Choice { positions: 0..usize::MAX, one_of, random_states: 1, go_on_one_of: 8, again_one_of: 0 };
        look(mounted, &record, &next, &few, random, looked).map_err(|text| format!("crashed again: {text}"))?;
    }
    Ok(())
}

/// Opens, compares, opens again, and goes on. Returns the history of the store afterwards, if it went on.
fn look_at_place(
    place: &dyn Place,
    history: &History,
    durable: Option<usize>,
    depth: Depth,
    random: &mut Random,
) -> Result<Option<History>, String> {
    let Some(durable) = durable else { return look_at_creation(place).map(|()| None) };
    let opened =
        |store: Result<LogStore, StoreError>| store.map_err(|error| format!("the store does not open: {error}"));
    let path = store_path(place);
    let store = opened(open(&path))?;
    let batches = history.batches_in(&store)?;
    if batches < durable {
        return Err(format!("{durable} batches were durable, {batches} are there"));
    }
    drop(store);
    let store = opened(open(&path))?;
    let second = history.batches_in(&store)?;
    if second != batches {
        return Err(format!("the first opening found {batches} batches, the second {second}"));
    }
    if depth == Depth::Open {
        return Ok(None);
    }
    let mut next = history.after_crash(batches);
    go_on(place, store, &mut next, random).map_err(|error| format!("it does not go on: {error}"))?;
    let found = next.batches_in(&opened(open(&path))?)?;
    if found != next.committed() {
        return Err(format!("{} batches were committed afterwards, {found} are there", next.committed()));
    }
    Ok(Some(next))
}

fn go_on(place: &dyn Place, store: LogStore, history: &mut History, random: &mut Random) -> Result<(), StoreError> {
    history.commit(&store, random, 300)?;
    store.sync(store.committed())?;
    history.note_durable(place.position());
    history.commit(&store, random, 300)?;
    if random.below(2) == 0 {
        store.checkpoint()?;
        history.note_durable(place.position());
    }
    while store.step()? == StepProgress::Worked {}
    history.commit(&store, random, 300)?;
    store.sync(store.committed())?;
    history.note_durable(place.position());
    Ok(())
}

/// A creation that was cut short left an empty store or none, and one can be made after emptying the directory.
fn look_at_creation(place: &dyn Place) -> Result<(), String> {
    let path = store_path(place);
    match open(&path) {
        Ok(store) => return History::default().batches_in(&store).map(drop),
        Err(StoreError::Open(_)) => {}
        Err(error) => return Err(format!("a store that was never made fails with: {error}")),
    }
    if path.exists() {
        std::fs::remove_dir_all(&path).map_err(|error| format!("removing it: {error}"))?;
    }
    let made = LogStore::open(&path, &options(OpenMode::CreateNew, Workers::Manual));
    made.map(drop).map_err(|error| format!("it cannot be made afterwards: {error}"))
}
