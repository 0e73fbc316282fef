//! The workloads: short ones in every order, in the manner of ACE, and longer ones by chance.
//!
//! Invariants: a suite and an index give one workload, always the same.

use polymux_fs::PolicyKind;
use polymux_sim::crash_states::Random;
use polymux_sim::recording::Pause;

use super::scene::{LARGE_FILE_RANGES, Messages, Shape};
use super::workload::{At, Operation, Workload};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An append goes on to the slow tier; everything fits anywhere; there are no inline files; or the blocks of a file go to both
/// tiers in turn.
pub const SHAPES: [Shape; 4] = [
    Shape {
        name: "tight",
        capacities: [20 * KIB, 16 * MIB, 16 * MIB],
        inline_size_max: 4096,
        policy: DEFAULT,
        range_bytes: BLOCK,
        messages: Messages::Objects,
    },
    Shape {
        name: "roomy",
        capacities: [16 * MIB; 3],
        inline_size_max: 4096,
        policy: DEFAULT,
        range_bytes: BLOCK,
        messages: Messages::Objects,
    },
    Shape {
        name: "objects",
        capacities: [28 * KIB, 16 * MIB, 16 * MIB],
        inline_size_max: 0,
        policy: DEFAULT,
        range_bytes: BLOCK,
        messages: Messages::Objects,
    },
    Shape {
        name: "spread",
        capacities: [16 * MIB; 3],
        inline_size_max: 4096,
        policy: PolicyKind::Spread,
        range_bytes: BLOCK,
        messages: Messages::Objects,
    },
];

/// A range is several pages, each of which may be lost by itself.
const STREAM_SHAPE: Shape = Shape {
    name: "stream",
    capacities: [16 * MIB; 3],
    inline_size_max: 4096,
    policy: PolicyKind::Spread,
    range_bytes: 2 * BLOCK,
    messages: Messages::Objects,
};

/// A file grows over both tiers from 32 ranges on.
const ADAPTIVE_STREAM_SHAPE: Shape =
    Shape { name: "adaptive stream", policy: PolicyKind::Adaptive, range_bytes: BLOCK, ..STREAM_SHAPE };

/// No file is too small for an object, and there is space everywhere.
const LOG_SHAPE: Shape = Shape {
    name: "log",
    capacities: [16 * MIB; 3],
    inline_size_max: 0,
    policy: DEFAULT,
    range_bytes: BLOCK,
    messages: Messages::Objects,
};

/// Messages begin in the metadata store, and background work moves closed ones to objects.
const MESSAGE_SHAPE: Shape = Shape { name: "message", inline_size_max: 4096, messages: Messages::InStore, ..LOG_SHAPE };

/// Bytes of a block.
const BLOCK: u32 = 4096;

const DEFAULT: PolicyKind = PolicyKind::HotCold;

/// Number of symbols of the short workloads.
pub const SYMBOLS: usize = 33;

/// A symbol of the short workloads: one operation, or two that belong together.
fn symbol(number: usize) -> Vec<Operation> {
    let write = |name, at, length| Operation::Write { name, at, length, descriptor: 0 };
    match number {
        0 => vec![Operation::Create("c"), write("c", At::End, 6000)],
        1 => vec![write("a", At::Offset(3000), 6000)],
        2 => vec![write("a", At::End, 9000)],
        3 => vec![write("b", At::End, 5000)],
        4 => vec![Operation::Truncate { name: "a", size: 5000 }],
        5 => vec![Operation::Truncate { name: "a", size: 20_000 }],
        6 => vec![Operation::Truncate { name: "a", size: 0 }],
        7 => vec![Operation::Punch { name: "a", offset: 3000, length: 6000 }],
        8 => vec![Operation::Rename { from: "b", to: "a" }],
        9 => vec![Operation::Rename { from: "a", to: "c" }],
        10 => vec![Operation::Link { from: "a", to: "l" }],
        11 => vec![Operation::Unlink("a")],
        12 => vec![Operation::Fsync("a")],
        13 => vec![Operation::Fdatasync("a")],
        14 => vec![Operation::SyncDirectory("")],
        15 => vec![Operation::Migrate { name: "a", place: 1 }],
        16 => vec![Operation::Migrate { name: "a", place: 0 }],
        17 => vec![Operation::Drain(0)],
        18 => vec![Operation::AddSpare],
        19 => vec![Operation::Replace { name: "a", length: 7000 }],
        20 => vec![Operation::Background],
        21 => vec![beside(1, Pause::Write, vec![write("a", At::Offset(5000), 4000), Operation::Fsync("a")])],
        22 => vec![Operation::Close("a")],
        23 => vec![Operation::Fsync("b")],
        24 => vec![Operation::SyncVolume],
        25 => vec![Operation::MakeDirectory("d"), Operation::Create("d/c"), write("d/c", At::End, 5000)],
        26 => vec![Operation::MakeDirectory("d"), Operation::Rename { from: "a", to: "d/a" }],
        27 => vec![Operation::MakeDirectory("d"), Operation::Rename { from: "d", to: "e" }],
        28 => vec![Operation::MakeDirectory("d"), Operation::RemoveDirectory("d"), Operation::RemoveDirectory("e")],
        29 => vec![Operation::SetAttributes("a")],
        30 => vec![Operation::SetXattr("a")],
        31 => vec![Operation::SyncDirectory("d"), Operation::Fsync("d/c")],
        32 => vec![Operation::AddSpare, Operation::RemoveSpare],
        _ => unreachable!("there are {SYMBOLS} symbols"),
    }
}

/// By symbols. The protection by an order or a sync often shows only where a size was settled durably before.
const CHOSEN: [&[usize]; 14] = [
    // A move back and forth, with the background work that follows.
    &[15, 20, 20, 16, 20, 20],
    // Spread over two tiers and synced, then cut: both objects are cut at once.
    &[2, 12, 4],
    // The same, and longer again on the object that was cut.
    &[2, 12, 4, 2],
    // Moved and settled, then cut, or longer.
    &[15, 12, 4],
    &[15, 12, 2],
    // A copy onto an object that the file has.
    &[2, 12, 15],
    &[2, 15],
    // Written and synced beside the copy.
    &[21],
    &[0, 14],
    // Synced while it was on one tier, then longer; where files are spread, on another one.
    &[3, 23, 3],
    &[3, 23, 3, 3, 23, 3],
    // A file that has left the store takes the place of another one.
    &[3, 8],
    // Made and appended to again and again, and nothing of it synced: where files are spread, over both tiers in turn.
    &[0, 0, 0, 0],
    // A file that was there before, which gave up its size authority to be spread.
    &[3, 3, 3, 20, 3],
];

/// Syncs that fail, of the tier at a place, while these operations are carried out.
fn failing(place: usize, operations: Vec<Operation>) -> Vec<Operation> {
    [vec![Operation::FailSyncs(place)], operations, vec![Operation::HealSyncs]].concat()
}

/// Operations before, while and after syncs fail: nothing that was lost is reported clean afterwards.
fn failing_workload(number: usize) -> Vec<Operation> {
    let write = |at, length| Operation::Write { name: "a", at, length, descriptor: 0 };
    let (fsync, place) = (Operation::Fsync("a"), |place| Operation::Migrate { name: "a", place });
    let overwritten = vec![write(At::Offset(3000), 6000)];
    let appended = vec![write(At::End, 9000)];
    let lost = failing(0, vec![fsync.clone()]);
    match number {
        0 => [overwritten, lost, vec![fsync]].concat(),
        // Written again as a whole, the loss is healed.
        1 => [overwritten, lost, vec![write(At::Offset(0), 14_000), fsync]].concat(),
        // In part it is not.
        2 => [overwritten, lost, vec![write(At::Offset(4096), 100), fsync]].concat(),
        3 => [overwritten, lost, vec![place(1), fsync]].concat(),
        4 => [appended, failing(0, vec![Operation::SyncVolume]), vec![fsync, Operation::SyncVolume]].concat(),
        5 => [overwritten, failing(1, vec![place(1)]), vec![fsync.clone(), place(1), fsync]].concat(),
        6 => [appended, failing(1, vec![fsync.clone()]), vec![fsync.clone(), write(At::End, 5000), fsync]].concat(),
        7 => [overwritten, lost, vec![Operation::Close("a"), fsync]].concat(),
        8 => [overwritten, failing(0, vec![Operation::Background; 8]), vec![fsync]].concat(),
        9 => [appended, lost, vec![Operation::Truncate { name: "a", size: 5000 }, fsync]].concat(),
        10 => [appended.clone(), failing(0, [appended, vec![fsync.clone()]].concat()), vec![fsync]].concat(),
        _ => [overwritten, failing(0, vec![place(1)]), vec![fsync, Operation::Background, Operation::Fsync("b")]]
            .concat(),
    }
}

/// Number of workloads with failing syncs.
const FAILING: usize = 12;

fn beside(place: usize, pause: Pause, others: Vec<Operation>) -> Operation {
    Operation::Beside { name: "a", place, pause, index: 0, others }
}

/// A family of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Sequences that expose a missing order or sync, each on every shape.
    Chosen,
    /// All sequences of so many symbols, on every shape.
    Short(u32),
    /// Syncs fail in their middle; each on every shape.
    Failing,
    /// By chance.
    Random,
    /// Files grow over many ranges, unsynced, beside syncs of other files.
    Stream,
    /// Files that one tier has grow over several tiers from a size on, else as the streams.
    AdaptiveStream,
    /// Files of many ranges get space on several tiers first, then are written anywhere in it, as the streams are.
    Reserved,
    /// A log on the slower tier grows and is synced each time, until it goes on on the faster one.
    Logs,
    /// Files are made, synced, changed and removed in a directory of messages.
    Messages,
    /// The chosen ones, then short ones by chance with work of the store among them: for the real store.
    Stored,
}

impl Suite {
    /// Workloads that there are.
    pub fn count(self) -> usize {
        match self {
            Self::Chosen => CHOSEN.len() * SHAPES.len(),
            Self::Short(length) => SYMBOLS.pow(length) * SHAPES.len(),
            Self::Failing => FAILING * SHAPES.len(),
            Self::Random
            | Self::Stream
            | Self::AdaptiveStream
            | Self::Reserved
            | Self::Logs
            | Self::Messages
            | Self::Stored => usize::MAX,
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Chosen => "chosen".to_owned(),
            Self::Short(length) => format!("short{length}"),
            Self::Failing => "failing".to_owned(),
            Self::Random => "random".to_owned(),
            Self::Stream => "stream".to_owned(),
            Self::AdaptiveStream => "adaptive-stream".to_owned(),
            Self::Reserved => "reserved".to_owned(),
            Self::Logs => "logs".to_owned(),
            Self::Messages => "messages".to_owned(),
            Self::Stored => "stored".to_owned(),
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        match name.strip_prefix("short") {
            Some(length) => length.parse().ok().map(Self::Short),
            None if name == "chosen" => Some(Self::Chosen),
            None if name == "stored" => Some(Self::Stored),
            None if name == "stream" => Some(Self::Stream),
            None if name == "adaptive-stream" => Some(Self::AdaptiveStream),
            None if name == "reserved" => Some(Self::Reserved),
            None if name == "logs" => Some(Self::Logs),
            None if name == "messages" => Some(Self::Messages),
            None if name == "failing" => Some(Self::Failing),
            None => (name == "random").then_some(Self::Random),
        }
    }

    /// A workload.
    pub fn workload(self, index: usize, seed: u64) -> Workload {
        match self {
            Self::Chosen => {
                let symbols = CHOSEN[index / SHAPES.len()];
                let operations = symbols.iter().flat_map(|number| symbol(*number)).collect();
                Workload { shape: SHAPES[index % SHAPES.len()], operations }
            }
            Self::Short(length) => {
                let mut rest = index / SHAPES.len();
                let mut operations = Vec::new();
                for _ in 0..length {
                    operations.extend(symbol(rest % SYMBOLS));
                    rest /= SYMBOLS;
                }
                Workload { shape: SHAPES[index % SHAPES.len()], operations }
            }
            Self::Failing => {
                Workload { shape: SHAPES[index % SHAPES.len()], operations: failing_workload(index / SHAPES.len()) }
            }
            Self::Stored if index < Self::Chosen.count() => {
                let mut workload = Self::Chosen.workload(index, seed);
                workload.operations.push(Operation::FlushLog);
                workload
            }
            Self::Stored => stored_workload(&mut generator(index, seed ^ 0x5703)),
            Self::Random => random_workload(&mut generator(index, seed)),
            Self::AdaptiveStream => adaptive_stream_workload(&mut generator(index, seed ^ 0xada9)),
            Self::Reserved => reserved_workload(&mut generator(index, seed ^ 0x4e5e)),
            Self::Logs => log_workload(&mut generator(index, seed ^ 0x1095)),
            Self::Messages => message_workload(&mut generator(index, seed ^ 0x3a11)),
            Self::Stream => stream_workload(&mut generator(index, seed ^ 0x57e4)),
        }
    }
}

const NAMES: [&str; 7] = ["a", "b", "c", "l", "x", "d/c", "e/c"];

/// One in so many random workloads reaches beyond the first node of 2 MiB.
const FAR_ONE_OF: usize = 12;

fn random_workload(random: &mut Random) -> Workload {
    let shape = SHAPES[random.below(SHAPES.len())];
    let is_far = random.below(FAR_ONE_OF) == 0;
    let length = 5 + random.below(6);
    let mut operations = Vec::new();
    if is_far {
        let at = At::Offset((2 << 20) - 1 - random.below(6000));
        operations.push(Operation::Write { name: "a", at, length: 1 + random.below(12_000), descriptor: 0 });
    }
    for _ in 0..length {
        operations.push(random_operation(random));
    }
    Workload { shape, operations }
}

/// Ranges of a stream: so many at least, and fewer than so many more.
const STREAM_RANGES: (usize, usize) = (2, 6);

/// One or two files grow by unsynced appends. Between them another file is appended to and synced, names are, and
/// background work writes pending data back to the devices, so that the tier that has the end of a file keeps it at times.
fn stream_workload(random: &mut Random) -> Workload {
    let (ranges_min, ranges_more) = STREAM_RANGES;
    let range = BLOCK as usize * 2;
    let mut operations = vec![Operation::Create("c")];
    let mut left = (ranges_min + random.below(ranges_more)) * range;
    let has_second = random.below(3) == 0;
    if random.below(3) == 0 {
        // Too long for the metadata store, and shorter than a range: one tier has it, and its object alone tells the size.
        operations.push(Operation::Write { name: "c", at: At::End, length: 5000, descriptor: 0 });
        operations.push(Operation::Fsync("c"));
    }
    while left > 0 {
        let length = [1000, 4096, 8192, 12_000, 3 * range][random.below(5)].min(left);
        let name = if has_second && random.below(3) == 0 { "a" } else { "c" };
        operations.push(Operation::Write { name, at: At::End, length, descriptor: 0 });
        left -= length;
        match random.below(12) {
            0..4 => operations.extend(vec![Operation::Background; 1 + random.below(3)]),
            4..6 => {
                operations.push(Operation::Write { name: "b", at: At::End, length: 500, descriptor: 0 });
                operations.push(Operation::Fsync("b"));
            }
            6 => operations.push(Operation::SyncDirectory("")),
            7 => operations.push(Operation::FlushLog),
            8 if random.below(3) == 0 => operations.push(Operation::Fsync("c")),
            _ => {}
        }
    }
    Workload { shape: STREAM_SHAPE, operations }
}

/// As many ranges as a file stays on one tier for, or nearly; then it grows as in the other streams.
fn adaptive_stream_workload(random: &mut Random) -> Workload {
    let mut workload = stream_workload(random);
    let range = BLOCK as usize;
    let beginning = (LARGE_FILE_RANGES - 4 + random.below(4)) * range;
    let mut first = vec![Operation::Create("c")];
    first.push(Operation::Write { name: "c", at: At::End, length: beginning, descriptor: 0 });
    match random.below(4) {
        0 => first.push(Operation::Fsync("c")),
        1 => first.extend(vec![Operation::Background; 2]),
        _ => {}
    }
    workload.operations.splice(..1, first);
    Workload { shape: ADAPTIVE_STREAM_SHAPE, ..workload }
}

/// Space is reserved for one file or two before and between the writes of a stream, which then go anywhere in it.
fn reserved_workload(random: &mut Random) -> Workload {
    let mut workload = stream_workload(random);
    let range = BLOCK as usize * 2;
    let reserve = |random: &mut Random, name| Operation::Reserve { name, length: 1 + random.below(6 * range) };
    let mut operations = vec![Operation::Create("c")];
    for operation in workload.operations.drain(1..) {
        match random.below(5) {
            0 => operations.push(reserve(random, "c")),
            1 if random.below(3) == 0 => operations.push(reserve(random, "a")),
            2 => {
                let (at, length) = (At::Offset(random.below(6 * range)), 1 + random.below(2 * range));
                operations.push(Operation::Write { name: "c", at, length, descriptor: 0 });
            }
            _ => {}
        }
        operations.push(operation);
    }
    Workload { operations, ..workload }
}

/// Syncs after which a file counts as a log, and those of it beyond.
const LOG_SYNCS: (usize, usize) = (4, 4);

/// A sparse file that ends shortly before its second range node is appended to and synced on the slower tier; its next appends begin that node.
/// Then it is cut, overwritten, moved or goes on.
fn log_workload(random: &mut Random) -> Workload {
    let append = |length| Operation::Write { name: "a", at: At::End, length, descriptor: 0 };
    let (syncs_min, syncs_more) = LOG_SYNCS;
    let before: Vec<usize> = (0..syncs_min + random.below(syncs_more)).map(|_| 1 + random.below(9000)).collect();
    let bytes: usize = before.iter().sum();
    let end = (2 << 20) - bytes - random.below(6000);
    let mut operations = vec![Operation::Write { name: "a", at: At::Offset(end - 1), length: 1, descriptor: 0 }];
    operations.push(Operation::Migrate { name: "a", place: 1 });
    operations.extend(before.into_iter().flat_map(|length| [append(length), Operation::Fsync("a")]));
    for _ in 0..1 + random.below(4) {
        operations.push(append(3000 + random.below(9000)));
        match random.below(8) {
            0..3 => operations.push(Operation::Fsync("a")),
            3 => operations.extend(vec![Operation::Background; 1 + random.below(3)]),
            4 => operations.push(Operation::Truncate { name: "a", size: (2 << 20) - 3000 + random.below(6000) }),
            5 => {
                let at = At::Offset((2 << 20) - 6000 + random.below(8000));
                operations.push(Operation::Write { name: "a", at, length: 1 + random.below(6000), descriptor: 0 });
            }
            6 => operations.push(Operation::Migrate { name: "a", place: random.below(2) }),
            _ => operations.extend([append(5000), Operation::FlushLog]),
        }
    }
    Workload { shape: LOG_SHAPE, operations }
}

/// Names of the messages by which the root becomes a directory of messages.
const FIRST_MESSAGES: [&str; 8] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];

/// After eight messages others are made there, which are in the store until they are closed and idle, too long, or changed in small pieces.
fn message_workload(random: &mut Random) -> Workload {
    let write = |name, at, length| Operation::Write { name, at, length, descriptor: 0 };
    let first = |name| [Operation::Create(name), write(name, At::End, 4200), Operation::Fsync(name)];
    let mut operations: Vec<Operation> = FIRST_MESSAGES.into_iter().flat_map(first).collect();
    for _ in 0..6 + random.below(8) {
        let name = ["c", "x"][random.below(2)];
        match random.below(12) {
            0..4 => operations.extend([Operation::Create(name), write(name, At::End, 3000 + random.below(20_000))]),
            4 => operations.push(write(name, At::Offset(random.below(9000)), 1 + random.below(9000))),
            5 | 6 => operations.push(Operation::Fsync(name)),
            7 | 8 => {
                operations.push(Operation::Close(name));
                operations.extend(vec![Operation::Background; 1 + random.below(3)]);
            }
            9 => operations.push(Operation::Rename { from: "c", to: "x" }),
            10 => operations.push(Operation::Unlink(name)),
            _ => operations.push(Operation::Replace { name, length: 1 + random.below(12_000) }),
        }
    }
    Workload { shape: MESSAGE_SHAPE, operations }
}

fn generator(index: usize, seed: u64) -> Random {
    Random::new(seed ^ (index as u64).wrapping_mul(0x2545_f491_4f6c_dd1d))
}

/// Few operations, and at two places among them the store writes tables or ships to its copy.
fn stored_workload(random: &mut Random) -> Workload {
    let shape = SHAPES[random.below(SHAPES.len())];
    let mut operations: Vec<Operation> = (0..2 + random.below(4)).map(|_| random_operation(random)).collect();
    operations.insert(random.below(operations.len() + 1), Operation::Checkpoint);
    operations.insert(random.below(operations.len() + 1), Operation::Ship);
    operations.insert(random.below(operations.len() + 1), Operation::FlushLog);
    Workload { shape, operations }
}

fn random_write(random: &mut Random) -> Operation {
    let at = if random.below(2) == 0 { At::End } else { At::Offset(random.below(24_000)) };
    let name = NAMES[random.below(3)];
    Operation::Write { name, at, length: 1 + random.below(11_000), descriptor: random.below(2) }
}

fn random_operation(random: &mut Random) -> Operation {
    let name = NAMES[random.below(NAMES.len())];
    let other = NAMES[random.below(NAMES.len())];
    match random.below(38) {
        0..8 => random_write(random),
        8 | 9 => Operation::Truncate { name, size: random.below(26_000) },
        10 => Operation::Truncate { name, size: 0 },
        11 => Operation::Punch { name, offset: random.below(16_000), length: 1 + random.below(12_000) },
        12 => Operation::Create(NAMES[2]),
        13 => Operation::Rename { from: name, to: other },
        14 => Operation::Link { from: name, to: other },
        15 => Operation::Unlink(name),
        16 | 17 => Operation::Fsync(name),
        18 => Operation::Fdatasync(name),
        19 => Operation::SyncDirectory(["", "d"][random.below(2)]),
        20 => Operation::SyncVolume,
        21 => Operation::Replace { name, length: 1 + random.below(9000) },
        22 => Operation::Close(name),
        23 | 24 => Operation::Migrate { name, place: random.below(3) },
        25 | 26 => {
            let pause = if random.below(2) == 0 { Pause::Read } else { Pause::Write };
            let (offset, length) = (random.below(12_000), 1 + random.below(9000));
            let other = Operation::Write { name: "a", at: At::Offset(offset), length, descriptor: 1 };
            let others = if random.below(2) == 0 { vec![other] } else { vec![other, Operation::Fsync("a")] };
            beside(random.below(3), pause, others)
        }
        27 => Operation::Drain(0),
        28 => Operation::AddSpare,
        29 => Operation::RemoveSpare,
        30 => Operation::MakeDirectory("d"),
        31 => Operation::RemoveDirectory("d"),
        32 => Operation::Rename { from: "d", to: "e" },
        33 => Operation::Create("d/c"),
        34 => Operation::SetAttributes(name),
        35 => Operation::SetXattr(name),
        _ => Operation::Background,
    }
}
