//! State of the planner between its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_policy::{PolicyKind, TierFill};
use polymux_types::sync::Mutex;
use polymux_types::{Ino, TierId};
use polymux_volume::tier_reads::RoomWanted;

/// State of the planner between steps.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Tiers that rose above their high mark and are not at their low mark yet.
    pub(crate) evicting: BTreeSet<TierId>,
    /// Tiers on which something hot waits for something colder to be found.
    pub(crate) wants_victims: BTreeSet<TierId>,
    pub(crate) searches: BTreeMap<TierId, Search>,
    /// Heat and idle time of the coldest that was found lately.
    pub(crate) coldest: BTreeMap<TierId, (u32, u32)>,
    /// The last inode of the walk for rules, while there is one.
    pub(crate) walk: Option<Ino>,
    pub(crate) walk_due: u64,
    /// Something changed that all files are to be looked at for, where anything is demanded of them.
    pub(crate) is_walk_wanted: bool,
}

impl Planner {
    /// Whether it walks over all files for moves that rules and pins demand.
    pub(crate) fn is_walking(&self) -> bool {
        self.state.lock().walk.is_some()
    }

    /// Whether a tier is evicted from: from when it rises above its high mark until it is at its low one.
    pub(crate) fn is_evicted_from(&self, fill: &TierFill) -> bool {
        let was = || self.state.lock().evicting.contains(&TierId(fill.tier));
        fill.used > fill.high_mark || fill.used > fill.low_mark && was()
    }

    /// Remembers whether a tier is evicted from.
    pub(crate) fn note_fill(&self, fill: &TierFill) {
        let (is_evicted_from, tier) = (self.is_evicted_from(fill), TierId(fill.tier));
        let mut state = self.state.lock();
        match is_evicted_from {
            true => state.evicting.insert(tier),
            false => state.evicting.remove(&tier),
        };
    }
}

/// A node that could leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) score: u64,
    pub(crate) ino: Ino,
    pub(crate) node: u64,
    pub(crate) bytes: u64,
    pub(crate) is_whole: bool,
    /// It would come back within minutes.
    pub(crate) returns: bool,
    pub(crate) heat: u32,
    pub(crate) idle_seconds: u32,
}

/// Bytes to evict from a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needed {
    /// Down to the low mark, or for ranges that are to come.
    pub(crate) bytes: u64,
    /// As many of them leave also if they would come back (`would_return`): those above the high mark, and for ranges that are to come.
    pub(crate) pressing: u64,
}

impl Needed {
    /// Above the marks of a tier, with `wanted` bytes that are to come and without those that are leaving.
    pub(crate) fn on(fill: &TierFill, is_evicting: bool, wanted: u64, leaving: u64) -> Self {
        let above = |mark: u64, coming| fill.used.saturating_add(coming).saturating_sub(mark).saturating_sub(leaving);
        let pressing = above(fill.high_mark, wanted);
        let down_to_low = if is_evicting { above(fill.low_mark, 0) } else { 0 };
        Self { bytes: down_to_low.max(pressing), pressing }
    }

    /// Whether only data leaves that would not come back.
    pub(crate) const fn keeps_returning(self) -> bool {
        self.bytes > 0 && self.pressing == 0
    }
}

/// The walk over the files of one tier.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Everything up to this inode, and of the next one the nodes below this one, was seen.
    pub(crate) after: Ino,
    pub(crate) node: u64,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) bytes: u64,
    /// Where this window began.
    pub(crate) from: Option<Ino>,
    /// Ends of the walk that were reached in this window.
    pub(crate) ends: u32,
    /// Free space wanted for ranges that are to come, or came lately.
    pub(crate) makes_room: Option<RoomWanted>,
    /// What would come back is no candidate: bytes are to leave, and none of them must.
    pub(crate) keeps_returning: bool,
    /// Takes the place of the volume's policy, where the search is only for a report.
    pub(crate) policy: Option<PolicyKind>,
    /// Time that this window took.
    pub(crate) took: Duration,
    /// Something was passed over that may leave soon: it only came lately, or is open and passed through.
    pub(crate) may_find_soon: bool,
}

impl Search {
    /// A walk from the beginning, for a report.
    pub(crate) fn new(policy: Option<PolicyKind>, needed: Needed, makes_room: Option<RoomWanted>) -> Self {
        Self { policy, makes_room, keeps_returning: needed.keeps_returning(), ..Self::default() }
    }

    /// Whether this window has seen everything: it is behind its beginning again.
    pub(crate) fn has_seen_all(&self) -> bool {
        self.ends >= 2 || self.ends == 1 && self.from.is_some_and(|from| self.after > from)
    }
}
