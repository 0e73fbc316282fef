//! Whether moves may run at all: pauses, and windows of the week.

use polymux_types::sync::{AtomicBool, Ordering, RwLock};

const DAY_MINUTES: u32 = 24 * 60;
const WEEK_MINUTES: u32 = 7 * DAY_MINUTES;

/// A span of the day on some days of the week. One whose end is not after its beginning goes on into the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWindow {
    /// Days on which it opens: bit 0 is Monday.
    pub days: u8,
    /// Minutes of the day, `0..1440`: open from the first, shut from the second.
    pub from_minute: u16,
    /// The minute of the day at which it ends.
    pub to_minute: u16,
}

impl TimeWindow {
    /// How long it stays open, in minutes: 1 to a whole day.
    fn length(&self) -> u32 {
        let (from, to) = (u32::from(self.from_minute), u32::from(self.to_minute));
        assert!(from < DAY_MINUTES && to < DAY_MINUTES, "a minute of the day is below 1440");
        if to > from { to - from } else { to + DAY_MINUTES - from }
    }

    /// Minutes of the week at which it opens.
    fn openings(&self) -> impl Iterator<Item = u32> {
        let Self { days, from_minute, .. } = *self;
        (0..7).filter(move |day| days >> day & 1 == 1).map(move |day| day * DAY_MINUTES + u32::from(from_minute))
    }

    fn is_open(&self, minute_of_week: u32) -> bool {
        let length = self.length();
        self.openings().any(|opening| (minute_of_week + WEEK_MINUTES - opening) % WEEK_MINUTES < length)
    }
}

/// When moves may run. Without any window: always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(pub Vec<TimeWindow>);

impl Windows {
    /// Whether moves may run at a minute of the week (0: Monday 0:00, local time).
    pub fn is_open(&self, minute_of_week: u32) -> bool {
        assert!(minute_of_week < WEEK_MINUTES, "a week has 10080 minutes");
        self.0.is_empty() || self.0.iter().any(|window| window.is_open(minute_of_week))
    }

    /// Minutes until they may: 0 where they may now, `None` where no window ever opens.
    pub(crate) fn minutes_to_opening(&self, minute_of_week: u32) -> Option<u32> {
        if self.is_open(minute_of_week) {
            return Some(0);
        }
        let openings = self.0.iter().flat_map(TimeWindow::openings);
        openings.map(|opening| (opening + WEEK_MINUTES - minute_of_week) % WEEK_MINUTES).min()
    }
}

/// Whether moves may run, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Movers may run.
    Open,
    /// Until they are resumed.
    Paused,
    /// Until a window opens, in minutes; `None`: none ever does.
    Shut(Option<u32>),
}

/// Pause and windows of a volume.
#[derive(Debug, Default)]
pub struct Gate {
    is_paused: AtomicBool,
    windows: RwLock<Windows>,
}

impl Gate {
    /// A gate with these windows, not paused.
    pub fn new(windows: Windows) -> Self {
        Self { is_paused: AtomicBool::new(false), windows: RwLock::new(windows) }
    }

    /// Keeps movers from running, whatever the windows say.
    pub fn pause(&self) {
        self.is_paused.store(true, Ordering::Release);
    }

    /// Lets movers run within the windows.
    pub fn resume(&self) {
        self.is_paused.store(false, Ordering::Release);
    }

    /// Replaces the windows.
    pub fn set_windows(&self, windows: Windows) {
        *self.windows.write() = windows;
    }

    /// Whether moves may run at a minute of the week.
    pub fn state(&self, minute_of_week: u32) -> GateState {
        if self.is_paused.load(Ordering::Acquire) {
            return GateState::Paused;
        }
        match self.windows.read().minutes_to_opening(minute_of_week) {
            Some(0) => GateState::Open,
            wait => GateState::Shut(wait),
        }
    }
}

/// Minute of the week of a moment, for an offset of the local time in seconds.
pub fn minute_of_week(seconds_since_1970: i64, offset_seconds: i32) -> u32 {
    // 1970 began on a Thursday.
    let seconds = seconds_since_1970.saturating_add(i64::from(offset_seconds)).saturating_add(3 * 86_400);
    u32::try_from(seconds.div_euclid(60).rem_euclid(i64::from(WEEK_MINUTES))).expect("a minute of the week fits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn windows() -> impl Strategy<Value = Windows> {
        let window = (0_u8..128, 0_u16..1440, 0_u16..1440);
        let window = window.prop_map(|(days, from_minute, to_minute)| TimeWindow { days, from_minute, to_minute });
        prop::collection::vec(window, 0..4).prop_map(Windows)
    }

    proptest! {
        #[test]
        fn the_next_opening_is_the_first_minute_that_is_open(windows in windows(), now in 0..WEEK_MINUTES) {
            let open = |after: &u32| windows.is_open((now + after) % WEEK_MINUTES);
            prop_assert_eq!(windows.minutes_to_opening(now), (0..WEEK_MINUTES).find(open));
        }

        #[test]
        fn a_week_is_open_as_long_as_its_windows_say(window in windows()) {
            if let Some(window) = window.0.first() {
                let open = (0..WEEK_MINUTES).filter(|minute| window.is_open(*minute)).count();
                prop_assert_eq!(u32::try_from(open), Ok(window.days.count_ones() * window.length()));
            }
        }
    }

    #[test]
    fn windows_go_over_midnight_and_over_the_end_of_the_week() {
        let sunday_night = Windows(vec![TimeWindow { days: 0b100_0000, from_minute: 22 * 60, to_minute: 6 * 60 }]);
        let sunday = 6 * DAY_MINUTES;
        assert!(!sunday_night.is_open(sunday + 22 * 60 - 1) && sunday_night.is_open(sunday + 22 * 60));
        assert!(sunday_night.is_open(0) && sunday_night.is_open(6 * 60 - 1) && !sunday_night.is_open(6 * 60));
        assert_eq!(sunday_night.minutes_to_opening(6 * 60), Some(sunday + 16 * 60));
        assert_eq!(Windows(vec![TimeWindow { days: 0, from_minute: 0, to_minute: 1 }]).minutes_to_opening(5), None);
        assert_eq!(Windows::default().minutes_to_opening(5), Some(0));
    }

    #[test]
    fn a_pause_comes_before_any_window() {
        let gate = Gate::new(Windows(vec![TimeWindow { days: 1, from_minute: 0, to_minute: 60 }]));
        assert_eq!((gate.state(0), gate.state(60)), (GateState::Open, GateState::Shut(Some(WEEK_MINUTES - 60))));
        gate.pause();
        assert_eq!((gate.state(0), gate.state(60)), (GateState::Paused, GateState::Paused));
        gate.resume();
        gate.set_windows(Windows::default());
        assert_eq!(gate.state(60), GateState::Open);
    }

    #[test]
    fn the_minute_of_the_week_is_that_of_the_local_time() {
        assert_eq!(minute_of_week(0, 0), 3 * DAY_MINUTES);
        assert_eq!(minute_of_week(-1, 0), 3 * DAY_MINUTES - 1);
        // Monday, 5 January 1970, one in the morning in Berlin.
        assert_eq!(minute_of_week(4 * 86_400, 3600), 60);
    }
}
