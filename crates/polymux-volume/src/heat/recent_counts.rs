//! Counts in each of the last units of time, seconds or minutes for one, the present one included.
//!
//! Invariant: a unit that is remembered no more counts nothing, and its place belongs to the one that comes `PLACES` units later.

/// The last `PLACES` units.
#[derive(Debug)]
pub(super) struct RecentCounts<const PLACES: usize> {
    /// The present unit, since mounting.
    now: u64,
    /// By unit modulo `PLACES`.
    counts: [u64; PLACES],
}

impl<const PLACES: usize> Default for RecentCounts<PLACES> {
    fn default() -> Self {
        Self { now: 0, counts: [0; PLACES] }
    }
}

fn place_of<const PLACES: usize>(unit: u64) -> usize {
    usize::try_from(unit % PLACES as u64).expect("less than the number of places")
}

impl<const PLACES: usize> RecentCounts<PLACES> {
    /// Begins the units up to `unit`, and forgets the ones that lie `PLACES` before them.
    pub(super) fn follow(&mut self, unit: u64) {
        let first = (self.now + 1).max((unit + 1).saturating_sub(PLACES as u64));
        (first..=unit).for_each(|new| self.counts[place_of::<PLACES>(new)] = 0);
        self.now = self.now.max(unit);
    }

    /// The first unit that is remembered.
    pub(super) fn oldest(&self) -> u64 {
        (self.now + 1).saturating_sub(PLACES as u64)
    }

    /// The present unit.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Adds to a unit, which becomes the present one if it is later; changes nothing if it is remembered no more.
    pub(super) fn add(&mut self, unit: u64, count: u64) {
        self.follow(unit);
        if unit >= self.oldest() {
            self.counts[place_of::<PLACES>(unit)] += count;
        }
    }

    /// The count of a unit that is remembered.
    pub(super) fn of(&self, unit: u64) -> u64 {
        self.counts[place_of::<PLACES>(unit)]
    }

    /// All counts, the oldest first and the present one last. Before as many units passed the first ones are 0.
    pub(super) fn in_order(&self) -> [u64; PLACES] {
        let first = place_of::<PLACES>(self.now + 1);
        std::array::from_fn(|place| self.counts[(first + place) % PLACES])
    }
}
