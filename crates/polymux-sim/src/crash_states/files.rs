//! The files of a store and of its second copy as devices of their own.
//!
//! Rules:
//! * Everything below the directory [`COPY_DIRECTORY`] is on one device, everything else on another one; the state kept by one
//!   says nothing of the other.
//! * The rules of the possible states are those of [`CrashStates`].

use crate::recording_file_system::{Change, CrashStates, Fate, Image, NameOrder, Node, Operation, Record};

use super::choice::Random;

/// Name of the directory of the store in a recorded directory.
pub const STORE_DIRECTORY: &str = "meta";

/// Name of the directory of the second copy in a recorded directory.
pub const COPY_DIRECTORY: &str = "copy";

/// Number of devices: that of the store, that of the copy.
pub(super) const DEVICES: usize = 2;

/// Prefixes and single losses that are tried on a device, at the most; there are many more where tables are written.
const WAYS_MAX: usize = 10;

/// Random subsets of sectors that are tried.
const TORN_WAYS: usize = 2;

/// Which syncs and durable writes of the files do nothing: a planted bug of a store or of its disk.
pub type Ignored = fn(&Operation) -> bool;

/// The unsynced operations that a device with files keeps, selected by their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesKeep {
    /// Nothing.
    Nothing,
    /// Everything.
    All,
    /// The operations before this one.
    Before(usize),
    /// Everything but this operation.
    Without(usize),
    /// Some of it, torn at sectors, by this random number.
    Torn(u64),
}

impl FilesKeep {
    fn fate(&self, position: usize) -> Fate {
        let kept = |is_kept| if is_kept { Fate::Kept } else { Fate::Lost };
        match *self {
            Self::Nothing => Fate::Lost,
            Self::All => Fate::Kept,
            Self::Before(end) => kept(position < end),
            Self::Without(lost) => kept(position != lost),
            Self::Torn(number) => {
                let mut random = Random::new(number ^ position as u64);
                match random.below(3) {
                    0 => Fate::Kept,
                    1 => Fate::Lost,
                    _ => Fate::Torn(random.next_u64()),
                }
            }
        }
    }

    fn name_order(&self) -> NameOrder {
        match *self {
            Self::Torn(number) if number & 1 == 1 => NameOrder::Any,
            _ => NameOrder::Ordered,
        }
    }
}

/// The files at one point of a journal.
#[derive(Clone)]
pub(super) struct FilesWorld {
    states: CrashStates,
    /// The device of each operation.
    devices: Vec<usize>,
    ignored: Option<Ignored>,
}

fn is_of_copy(operation: &Operation) -> bool {
    operation.path.iter().next().is_some_and(|first| first == COPY_DIRECTORY)
}

impl FilesWorld {
    pub(super) fn new(beginning: &Record, ignored: Option<Ignored>) -> Self {
        Self { states: CrashStates::new(beginning), devices: Vec::new(), ignored }
    }

    fn ignores(&self, operation: &Operation) -> bool {
        self.ignored.is_some_and(|ignored| ignored(operation))
    }

    /// An operation was made. A durable write is not durable before [`FilesWorld::complete`].
    pub(super) fn apply(&mut self, operation: &Operation) {
        self.devices.push(usize::from(is_of_copy(operation)));
        self.states.begin(operation);
        if matches!(operation.change, Change::Sync { .. }) {
            self.complete(operation);
        }
    }

    pub(super) fn complete(&mut self, operation: &Operation) {
        if !self.ignores(operation) {
            self.states.complete(operation);
        }
    }

    /// Ways in which a device may be left: nothing and everything first.
    pub(super) fn ways(&self, device: usize, random: &mut Random) -> Vec<FilesKeep> {
        let unsynced: Vec<usize> =
            self.states.unsynced().into_iter().filter(|position| self.devices[*position] == device).collect();
        if unsynced.is_empty() {
            return vec![FilesKeep::Nothing];
        }
        let mut ways = vec![FilesKeep::Nothing, FilesKeep::All];
        let stride = unsynced.len().div_ceil(WAYS_MAX);
        ways.extend(unsynced.iter().skip(1).step_by(stride).map(|end| FilesKeep::Before(*end)));
        ways.extend(unsynced.iter().rev().skip(1).step_by(stride).map(|lost| FilesKeep::Without(*lost)));
        ways.extend((0..TORN_WAYS).map(|_| FilesKeep::Torn(random.next_u64())));
        ways
    }

    /// The image after a crash where each device keeps `keep`.
    pub(super) fn crash(&self, keep: &[FilesKeep]) -> Image {
        let is_any = keep.iter().any(|keep| keep.name_order() == NameOrder::Any);
        let order = if is_any { NameOrder::Any } else { NameOrder::Ordered };
        self.states.image(order, |position| keep[self.devices[position]].fate(position))
    }
}

/// An image without the store: only the copy is left.
pub(super) fn without_store(image: &Image) -> Image {
    let mut left = image.clone();
    left.entries.retain(|name, node| name == COPY_DIRECTORY && matches!(node, Node::Directory(_)));
    left
}
