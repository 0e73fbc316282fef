//! Readers of other processes beside a mover, under the model checker: thousands of schedules. Run by `make test-schedules`.
//!
//! Checked in every schedule: bytes that a reader believes are those of the file. Objects are cells; one that a file gave up has something else in it.
//! One planted mistake, a recall that comes after the change, must be found.

use std::sync::Arc;

use polymux_types::Block;
use polymux_types::sync::{AtomicBool, AtomicU64, Ordering, RwLock, thread};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::{LeasedFor, NodeTable, OutsideUser};

const SCHEDULES: usize = 3000;
const BYTES: u64 = 7;
const FREED: u64 = 0;

#[derive(Debug, Default)]
struct Reader {
    is_recalled: AtomicBool,
}

impl OutsideUser for Reader {
    fn recall(&self) {
        self.is_recalled.store(true, Ordering::SeqCst);
    }
}

/// A file of one block: which of two objects has it, and the objects.
#[derive(Default)]
struct File {
    nodes: NodeTable,
    owner: RwLock<usize>,
    objects: [AtomicU64; 2],
    has_believed: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Recalled {
    First,
    /// The planted mistake.
    Late,
}

/// Moves the block to the other object, as a mover does: copied, switched under the lock of the map, and freed.
fn move_block(file: &File, recalled: Recalled) {
    let from = *file.owner.read();
    let to = 1 - from;
    file.objects[to].store(file.objects[from].load(Ordering::SeqCst), Ordering::SeqCst);
    let mut owner = file.owner.write();
    if recalled == Recalled::First {
        file.nodes.mark_map_changed(Block(0)..Block(1));
    }
    *owner = to;
    drop(owner);
    file.objects[from].store(FREED, Ordering::SeqCst);
    if recalled == Recalled::Late {
        file.nodes.mark_map_changed(Block(0)..Block(1));
    }
}

/// Takes the map, and reads by it until it is recalled.
fn read_by_copy(file: &File) {
    let reader = Arc::new(Reader::default());
    file.nodes.outside_users.add(1, reader.clone(), LeasedFor::UnchangedFile, 0);
    let copied = *file.owner.read();
    for _ in 0..3 {
        let bytes = file.objects[copied].load(Ordering::SeqCst);
        if reader.is_recalled.load(Ordering::SeqCst) {
            return;
        }
        file.has_believed.store(true, Ordering::SeqCst);
        assert_eq!(bytes, BYTES, "bytes of an object that the file gave up");
    }
}

fn scene(recalled: Recalled) -> Arc<File> {
    let file = Arc::new(File::default());
    file.objects[0].store(BYTES, Ordering::SeqCst);
    let reader = {
        let file = Arc::clone(&file);
        thread::spawn(move || (0..2).for_each(|_| read_by_copy(&file)))
    };
    (0..2).for_each(|_| move_block(&file, recalled));
    reader.join().expect("no checked thread panicked");
    file
}

fn check(recalled: Recalled) {
    let has_believed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let body = {
        let has_believed = Arc::clone(&has_believed);
        move || {
            let file = scene(recalled);
            has_believed.fetch_or(file.has_believed.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    };
    Runner::new(PctScheduler::new(3, SCHEDULES), Config::new()).run(body.clone());
    Runner::new(RandomScheduler::new(SCHEDULES), Config::new()).run(body);
    assert!(has_believed.load(Ordering::SeqCst), "no reader believed anything");
}

#[test]
fn no_schedule_has_a_reader_believe_bytes_that_the_file_gave_up() {
    check(Recalled::First);
}

#[test]
#[should_panic(expected = "gave up")]
fn a_recall_after_the_change_is_found() {
    check(Recalled::Late);
}
