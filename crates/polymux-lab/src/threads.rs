//! Which threads write to which device: PolyStore's static mapping (P7), its Algorithm 1 as it is printed (P11), and the same
//! climb with another objective.
//!
//! Invariants:
//! * State and arithmetic only. An epoch's measurements go in, the next mapping comes out; nothing is called and nothing waits.
//! * A mapping says how many threads each device has, in speed order. No step makes or loses one.
//! * The printed rule compares the bandwidth of the faster device with that of the epoch before, and stops where it changed by
//!   less than half. One thread of `n` is `1/n` of a device's load, so with three threads and more on a device no step reaches
//!   that, and the rule is stable after its first epoch wherever it stands. [`Climb`] compares the work of all devices together with the share that
//!   a thread should bring, and so sees each step.

use polymux_types::limits::TIERS_MAX;

const DEVICES: usize = TIERS_MAX as usize;

/// Change of bandwidth between two epochs, in percent, from which it counts (`X_dev` and `X_global` of the paper).
pub const THRESHOLD_PERCENT: u64 = 50;

/// Threads on each device, in speed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    count: usize,
    threads: [u32; DEVICES],
}

impl Mapping {
    /// No threads on so many devices. Panics beyond the largest number of tiers.
    #[must_use]
    pub fn empty(devices: usize) -> Self {
        assert!(devices <= DEVICES, "a volume has no more tiers");
        Self { count: devices, threads: [0; DEVICES] }
    }

    /// The static mapping (P7): the fastest device gets as many threads as saturate it, then the next one; those that are left
    /// over are shared out in the same proportion. `saturating` says for each device how many threads saturate it.
    #[must_use]
    pub fn fill_fastest_first(threads: u32, saturating: &[u32]) -> Self {
        let mut mapping = Self::empty(saturating.len());
        let mut left = threads;
        let all: u32 = saturating.iter().sum();
        while left > 0 && all > 0 {
            for (device, wanted) in saturating.iter().enumerate() {
                let given = left.min(*wanted);
                mapping.threads[device] += given;
                left -= given;
            }
        }
        mapping
    }

    /// Threads on each device.
    #[must_use]
    pub fn threads(&self) -> &[u32] {
        &self.threads[..self.count]
    }

    /// The device of the thread of a number: threads are numbered from the fastest device on.
    #[must_use]
    pub fn device_of(&self, thread: u32) -> Option<usize> {
        let mut first = 0;
        self.threads().iter().position(|threads| {
            let is_here = thread < first + threads;
            first += threads;
            is_here
        })
    }

    fn move_one(&mut self, from: usize, to: usize) -> bool {
        if self.threads[from] == 0 {
            return false;
        }
        self.threads[from] -= 1;
        self.threads[to] += 1;
        true
    }
}

/// The measurements of an epoch: bytes per second of each device, in speed order.
pub type Bandwidths<'a> = &'a [u64];

/// State of an adjacent pair of devices in Algorithm 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairState {
    /// Threads go from the slower device to the faster one. The initial state.
    #[default]
    LowToHigh,
    /// Threads go from the faster device to the slower one.
    HighToLow,
    /// Nothing moves.
    Stable,
}

/// The effect of one line of Algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairStep {
    /// Nothing.
    None,
    /// One thread goes to the faster device.
    ToHigh,
    /// One thread goes to the slower device.
    ToLow,
    /// Back to the initial mapping.
    Reset,
}

/// How a bandwidth changed from the last epoch to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It improved by the threshold or more.
    Improved,
    /// It dropped by the threshold or more.
    Dropped,
    /// Neither.
    Same,
}

impl Change {
    /// Compares two epochs; half and one and a half times as much count.
    #[must_use]
    pub fn between(before: u64, now: u64) -> Self {
        let (before, now) = (u128::from(before), u128::from(now));
        let threshold = before * u128::from(THRESHOLD_PERCENT) / 100;
        match () {
            () if now > before && now - before >= threshold => Self::Improved,
            () if now < before && before - now >= threshold => Self::Dropped,
            () => Self::Same,
        }
    }
}

/// Lines 8 to 30 of Algorithm 1 as they are printed: the next state of a pair, and the step.
#[must_use]
pub fn printed_step(state: PairState, high: Change, global: Change) -> (PairState, PairStep) {
    match (state, high) {
        // Lines 9 and 10; 11 to 13; 14 and 15.
        (PairState::LowToHigh, Change::Improved) => (PairState::LowToHigh, PairStep::ToHigh),
        (PairState::LowToHigh, Change::Dropped) => (PairState::HighToLow, PairStep::ToLow),
        (PairState::LowToHigh | PairState::HighToLow, Change::Same) => (PairState::Stable, PairStep::None),
        // Lines 17 and 18; 19 to 21; 22 and 23 are above.
        (PairState::HighToLow, Change::Improved) => (PairState::HighToLow, PairStep::ToLow),
        (PairState::HighToLow, Change::Dropped) => (PairState::LowToHigh, PairStep::ToHigh),
        // Lines 25 and 26; 27 and 28; 29 and 30.
        (PairState::Stable, Change::Improved) => (PairState::Stable, PairStep::None),
        (PairState::Stable, Change::Dropped) => (PairState::LowToHigh, PairStep::None),
        (PairState::Stable, Change::Same) if global == Change::Dropped => (PairState::Stable, PairStep::Reset),
        (PairState::Stable, Change::Same) => (PairState::Stable, PairStep::None),
    }
}

/// Algorithm 1 over all devices.
#[derive(Clone, Copy, Debug)]
pub struct Printed {
    initial: Mapping,
    mapping: Mapping,
    states: [PairState; DEVICES],
    before: Option<[u64; DEVICES]>,
}

impl Printed {
    /// Begins with a mapping, which is the static one in the paper.
    #[must_use]
    pub fn new(initial: Mapping) -> Self {
        Self { initial, mapping: initial, states: [PairState::LowToHigh; DEVICES], before: None }
    }

    /// The mapping of the epoch that begins now.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// State of the pair whose faster device is `high`.
    #[must_use]
    pub fn state(&self, high: usize) -> PairState {
        self.states[high]
    }

    /// An epoch ended.
    pub fn end_epoch(&mut self, measured: Bandwidths<'_>) {
        let mut now = [0; DEVICES];
        now.iter_mut().zip(measured).for_each(|(now, measured)| *now = *measured);
        let Some(before) = self.before.replace(now) else { return };
        let sum = |of: &[u64; DEVICES]| of.iter().fold(0_u64, |sum, one| sum.saturating_add(*one));
        let global = Change::between(sum(&before), sum(&now));
        for high in 0..self.mapping.count.saturating_sub(1) {
            let (state, step) = printed_step(self.states[high], Change::between(before[high], now[high]), global);
            self.states[high] = state;
            match step {
                PairStep::None => {}
                PairStep::ToHigh => _ = self.mapping.move_one(high + 1, high),
                PairStep::ToLow => _ = self.mapping.move_one(high, high + 1),
                PairStep::Reset => {
                    *self = Self { before: self.before, ..Self::new(self.initial) };
                    return;
                }
            }
        }
    }
}

/// Epochs whose mean is compared: a step is judged by more than one sample.
const EPOCHS_PER_JUDGEMENT: u32 = 2;

/// Percent by which the global bandwidth may differ by chance.
const NOISE_PERCENT: u64 = 2;

/// Judgements for which a pair in which neither direction helped is left alone.
const REST: u32 = 16;

/// The corrected objective: one thread moves, and stays where all devices together gained at least half of the bandwidth that a thread brings on
/// average; otherwise it goes back, and the next direction is tried.
#[derive(Clone, Copy, Debug)]
pub struct Climb {
    mapping: Mapping,
    /// The move on trial: from which device to which, and the global bandwidth before it.
    trial: Option<(usize, usize, u64)>,
    /// Where the next trial is: pairs in turn, each in both directions.
    turn: usize,
    /// Trials in a row that did not help.
    failed: u32,
    resting: u32,
    sum: u64,
    epochs: u32,
    settled_at: u64,
}

impl Climb {
    /// Begins with a mapping.
    #[must_use]
    pub fn new(initial: Mapping) -> Self {
        let (trial, turn, failed, resting, sum, epochs, settled_at) = (None, 0, 0, 0, 0, 0, 0);
        Self { mapping: initial, trial, turn, failed, resting, sum, epochs, settled_at }
    }

    /// The mapping of the epoch that begins now.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// An epoch ended.
    pub fn end_epoch(&mut self, measured: Bandwidths<'_>) {
        self.sum = measured.iter().fold(self.sum, |sum, one| sum.saturating_add(*one));
        self.epochs += 1;
        if self.epochs < EPOCHS_PER_JUDGEMENT {
            return;
        }
        let global = self.sum / u64::from(self.epochs);
        (self.sum, self.epochs) = (0, 0);
        if let Some((from, to, before)) = self.trial.take() {
            let threads = self.mapping.threads().iter().sum::<u32>().max(1);
            // Half of the bandwidth that a thread brings on average, and more than noise.
            let wanted = (before / u64::from(threads) / 2).max(before * NOISE_PERCENT / 100);
            if global >= before.saturating_add(wanted) {
                self.failed = 0;
            } else {
                self.mapping.move_one(to, from);
                self.turn += 1;
                self.failed += 1;
                // It is judged against the bandwidth after it has gone back.
                return;
            }
        }
        self.begin_trial(global);
    }

    fn begin_trial(&mut self, global: u64) {
        let directions = 2 * self.mapping.count.saturating_sub(1);
        if directions == 0 {
            return;
        }
        if usize::try_from(self.failed).is_ok_and(|failed| failed >= directions) {
            // Nothing helps: this is the top, until the hill changes.
            (self.failed, self.resting, self.settled_at) = (0, REST, global);
        }
        let has_changed = Change::between(self.settled_at, global) != Change::Same;
        if self.resting > 0 && !has_changed {
            self.resting -= 1;
            return;
        }
        self.resting = 0;
        for _ in 0..directions {
            let (high, is_up) = (self.turn % directions / 2, self.turn % 2 == 1);
            let (from, to) = if is_up { (high + 1, high) } else { (high, high + 1) };
            if self.mapping.move_one(from, to) {
                self.trial = Some((from, to, global));
                return;
            }
            self.turn += 1;
        }
    }
}

/// How threads are mapped to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRule {
    /// They stay where the static mapping puts them (P7).
    Fixed,
    /// By Algorithm 1 as it is printed (P11).
    Printed,
    /// By the corrected objective.
    Climb,
}

/// One of the rules at work.
#[derive(Clone, Debug)]
pub enum ThreadController {
    /// See [`ThreadRule::Fixed`].
    Fixed(Mapping),
    /// See [`ThreadRule::Printed`].
    Printed(Box<Printed>),
    /// See [`ThreadRule::Climb`].
    Climb(Climb),
}

impl ThreadController {
    /// Begins with a mapping.
    #[must_use]
    pub fn new(rule: ThreadRule, initial: Mapping) -> Self {
        match rule {
            ThreadRule::Fixed => Self::Fixed(initial),
            ThreadRule::Printed => Self::Printed(Box::new(Printed::new(initial))),
            ThreadRule::Climb => Self::Climb(Climb::new(initial)),
        }
    }

    /// The mapping of the epoch that begins now.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        match self {
            Self::Fixed(mapping) => mapping,
            Self::Printed(printed) => printed.mapping(),
            Self::Climb(climb) => climb.mapping(),
        }
    }

    /// An epoch ended.
    pub fn end_epoch(&mut self, measured: Bandwidths<'_>) {
        match self {
            Self::Fixed(_) => {}
            Self::Printed(printed) => printed.end_epoch(measured),
            Self::Climb(climb) => climb.end_epoch(measured),
        }
    }
}

#[cfg(test)]
mod tests;
