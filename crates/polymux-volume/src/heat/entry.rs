//! The heat entry of one range node, in 32 bytes.

use polymux_records::store::HeatNode;

use super::decay::Decay;
use super::{AccessKind, HEAT_ONE, NodeHeat, Pattern};

/// The entry of a file for all its nodes but the first. Node 0 stands for itself, so that a small file has one entry.
pub(crate) const OTHER_NODES: u32 = u32::MAX;

/// Visits and heat from which on a node is hot.
pub(crate) const VISITS_HOT: u8 = 2;
pub(crate) const HEAT_HOT: u32 = HEAT_ONE + HEAT_ONE / 2;

/// A node below this heat is not worth a record; half of it, and its record goes.
pub(crate) const HEAT_SAVED: u32 = HEAT_ONE + HEAT_ONE / 4;

const VISITS_MASK: u8 = 0x0f;
/// It was reported as hot and did not cool since.
const TOLD: u8 = 0x10;
/// It was accessed or moved since it was saved.
const CHANGED: u8 = 0x20;

/// How long it has been warm without a break, 0 to 3: at least `2^level - 1` half-lives.
const WARM_SHIFT: u32 = 6;
const WARM_MAX: u8 = 3;
/// Below this heat it is cold, and the next access begins a new warm time.
const HEAT_WARM: u32 = HEAT_ONE - HEAT_ONE / 4;

/// Unsynced writes that are counted one by one.
const UNSYNCED_MAX: u8 = u8::MAX;

/// One node. An inode number of 0 marks a free entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    pub ino: u64,
    pub node: u32,
    /// Decayed accesses in 1/256, as of `accessed`.
    reads: u32,
    writes: u32,
    /// Logical second of the last access, and of the last move; 0: never.
    accessed: u32,
    moved: u32,
    /// Visits in the low bits, flags above.
    state: u8,
    /// Shares in 1/255: of sequential requests, and of writes that a sync followed.
    sequential: u8,
    synced: u8,
    /// Writes since the last sync.
    unsynced: u8,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// The effect of an access on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) is_visit: bool,
    pub(crate) became_hot: bool,
}

impl Entry {
    pub fn new(ino: u64, node: u32) -> Self {
        Self { ino, node, ..Self::default() }
    }

    pub fn is_free(&self) -> bool {
        self.ino == 0
    }

    pub(crate) fn is_for(&self, ino: u64, node: u32) -> bool {
        self.ino == ino && self.node == node
    }

    fn visits(&self) -> u8 {
        self.state & VISITS_MASK
    }

    fn set_visits(&mut self, visits: u8) {
        self.state = self.state & !VISITS_MASK | visits.min(VISITS_MASK);
    }

    fn warm_level(&self) -> u8 {
        self.state >> WARM_SHIFT
    }

    fn set_warm_level(&mut self, level: u8) {
        self.state = self.state & !(WARM_MAX << WARM_SHIFT) | level.min(WARM_MAX) << WARM_SHIFT;
    }

    /// An access at `now`: called before it counts, with the entry cooled and `accessed` still that of the one before.
    fn keep_warm(&mut self, now: u32, decay: &Decay) {
        let level = self.warm_level();
        let period = |moment: u32| decay.half_lives(moment) >> level;
        if self.reads.saturating_add(self.writes) < HEAT_WARM {
            self.set_warm_level(0);
        } else if period(now) != period(self.accessed) {
            self.set_warm_level(level + 1);
        }
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.state & CHANGED != 0
    }

    pub(crate) fn set_saved(&mut self) {
        self.state &= !CHANGED;
    }

    pub fn tell_again(&mut self) {
        self.state &= !TOLD;
    }

    /// Heat at a moment.
    pub fn heat(&self, now: u32, decay: &Decay) -> u32 {
        let [reads, writes] = decay.after([self.reads, self.writes], now.saturating_sub(self.accessed));
        reads.saturating_add(writes)
    }

    fn cool(&mut self, now: u32, decay: &Decay) {
        let rest = now.saturating_sub(self.accessed);
        if rest == 0 {
            return;
        }
        [self.reads, self.writes] = decay.after([self.reads, self.writes], rest);
        self.set_visits(self.visits().checked_shr(decay.half_lives(rest)).unwrap_or(0));
        if self.reads.saturating_add(self.writes) < HEAT_HOT / 2 {
            self.state &= !TOLD;
        }
    }

    /// Notes an access. See the module above for the rules.
    pub fn touch(&mut self, kind: AccessKind, pattern: Pattern, now: u32, decay: &Decay) -> Touched {
        let is_first = self.visits() == 0 && self.reads == 0 && self.writes == 0;
        let gap = now.saturating_sub(self.accessed);
        // Two different seconds may be an instant apart, and a stream is often in the middle of a node at a full
        // second.
        let is_visit = is_first || gap >= if pattern == Pattern::Sequential { 2 } else { 1 };
        // The entry for many nodes receives only visits to them, each of which counts.
        let counts = is_visit || pattern == Pattern::Random || self.node == OTHER_NODES;
        self.cool(now, decay);
        self.keep_warm(now, decay);
        self.accessed = self.accessed.max(now);
        self.state |= CHANGED;
        let seen = if pattern == Pattern::Sequential { u8::MAX } else { 0 };
        self.sequential = if is_first { seen } else { nearer(self.sequential, seen, 8) };
        if counts {
            let side = if kind == AccessKind::Read { &mut self.reads } else { &mut self.writes };
            *side = side.saturating_add(HEAT_ONE);
            if kind == AccessKind::Write {
                self.note_unsynced();
            }
        }
        if is_visit {
            self.set_visits(self.visits() + 1);
        }
        let is_hot = self.visits() >= VISITS_HOT && self.reads.saturating_add(self.writes) >= HEAT_HOT;
        let became_hot = is_hot && self.node != OTHER_NODES && self.state & TOLD == 0;
        Touched { is_visit, became_hot }
    }

    pub(crate) fn set_told(&mut self) {
        self.state |= TOLD;
    }

    fn note_unsynced(&mut self) {
        self.unsynced = self.unsynced.saturating_add(1);
        if self.unsynced == UNSYNCED_MAX {
            self.synced /= 2;
            self.unsynced = UNSYNCED_MAX / 2;
        }
    }

    /// A sync that covers `n` writes says that one write in `n` is synced.
    pub fn note_synced(&mut self) {
        if let Some(share) = u8::MAX.checked_div(self.unsynced) {
            self.synced = if self.synced == 0 { share } else { nearer(self.synced, share, 4) };
            self.unsynced = 0;
        }
    }

    pub fn note_moved(&mut self, now: u32) {
        self.moved = now.max(1);
        // A range that became hot in its old place may become hot in the new one.
        self.state = (self.state | CHANGED) & !TOLD;
    }

    pub fn describe(&self, now: u32, decay: &Decay) -> NodeHeat {
        let mut cooled = *self;
        cooled.cool(now, decay);
        NodeHeat {
            heat: cooled.reads.saturating_add(cooled.writes),
            reads: cooled.reads,
            writes: cooled.writes,
            visits: cooled.visits(),
            warm_half_lives: (1 << cooled.warm_level()) - 1,
            idle_seconds: now.saturating_sub(self.accessed),
            sequential_percent: percent(self.sequential),
            sync_percent: percent(self.synced),
            moved_seconds_ago: (self.moved != 0).then(|| now.saturating_sub(self.moved)),
        }
    }

    /// As it is saved.
    pub(crate) fn to_record(self, index: u8) -> HeatNode {
        HeatNode {
            index,
            reads: self.reads,
            writes: self.writes,
            accessed: self.accessed,
            moved: self.moved,
            visits: self.state & (VISITS_MASK | WARM_MAX << WARM_SHIFT),
            sequential: self.sequential,
            synced: self.synced,
        }
    }

    /// As it was saved.
    pub fn from_record(ino: u64, node: u32, record: &HeatNode) -> Self {
        let mut entry = Self {
            ino,
            node,
            reads: record.reads,
            writes: record.writes,
            accessed: record.accessed,
            moved: record.moved,
            state: 0,
            sequential: record.sequential,
            synced: record.synced,
            unsynced: 0,
        };
        entry.set_visits(record.visits & VISITS_MASK);
        entry.set_warm_level(record.visits >> WARM_SHIFT);
        entry
    }

    /// Adds the saved state of this node to the accesses since.
    pub(crate) fn merge(&mut self, saved: &Self, decay: &Decay) {
        let mut saved = *saved;
        if self.reads == 0 && self.writes == 0 {
            self.sequential = saved.sequential;
        }
        let moment = self.accessed.max(saved.accessed);
        self.cool(moment, decay);
        saved.cool(moment, decay);
        self.reads = self.reads.saturating_add(saved.reads);
        self.writes = self.writes.saturating_add(saved.writes);
        self.accessed = moment;
        self.moved = self.moved.max(saved.moved);
        self.set_visits(self.visits() + saved.visits());
        self.set_warm_level(self.warm_level().max(saved.warm_level()));
        self.synced = self.synced.max(saved.synced);
    }
}

/// Goes one part of the way.
fn nearer(from: u8, to: u8, part: i16) -> u8 {
    let (from, to) = (i16::from(from), i16::from(to));
    // At least one, so that it arrives.
    let step = match (to - from) / part {
        0 => (to - from).signum(),
        step => step,
    };
    u8::try_from(from + step).expect("between two bytes lies a byte")
}

fn percent(share: u8) -> u8 {
    u8::try_from((u16::from(share) * 100 + 127) / 255).expect("at most a hundred")
}
