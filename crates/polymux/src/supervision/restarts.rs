//! Whether and when another daemon is started. Pure.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

/// A daemon that served longer did not die of the state it found.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// Pause before the next daemon after the first short life, which doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// So many short lives in a row are enough.
const SHORT_LIVES_MAX: u32 = 10;

/// The next step after the end of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another one, after this time.
    StartAfter(Duration),
    /// None: they end one after the other.
    GiveUp,
}

/// Daemons that ended soon after they began, by themselves, in a row.
#[derive(Debug, Default)]
pub struct Restarts {
    short_lives: u32,
}

impl Restarts {
    /// The next step after a daemon that ended so, after it served so long, or never. One that served and was killed (by an
    /// administrator, or for want of memory) did nothing wrong.
    pub fn after(&mut self, ended: ExitStatus, served: Option<Duration>) -> Next {
        let was_killed = served.is_some() && ended.signal() == Some(Signal::KILL.as_raw());
        if was_killed || served.is_some_and(|served| served >= SHORT_LIFE) {
            self.short_lives = 0;
        }
        if was_killed {
            return Next::StartAfter(Duration::ZERO);
        }
        self.short_lives += 1;
        if self.short_lives > SHORT_LIVES_MAX {
            return Next::GiveUp;
        }
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.short_lives - 1));
        Next::StartAfter(doubled.min(PAUSE_MAX))
    }

    /// How many ended soon in a row.
    pub fn short_lives(&self) -> u32 {
        self.short_lives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEFLY: Option<Duration> = Some(Duration::from_millis(1));

    #[test]
    fn a_daemon_that_served_and_was_killed_is_replaced_at_once_however_often() {
        let mut restarts = Restarts::default();
        let killed = ExitStatus::from_raw(Signal::KILL.as_raw());
        assert!((0..100).all(|_| restarts.after(killed, BRIEFLY) == Next::StartAfter(Duration::ZERO)));
        assert_eq!(restarts.short_lives(), 0);
    }

    #[test]
    fn daemons_that_end_by_themselves_are_replaced_ever_later_and_then_no_more() {
        for (ended, served) in [
            (ExitStatus::from_raw(Signal::ABORT.as_raw()), BRIEFLY),
            (ExitStatus::from_raw(1 << 8), None),
            (ExitStatus::from_raw(Signal::KILL.as_raw()), None),
        ] {
            let mut restarts = Restarts::default();
            let pauses: Vec<Next> = (0..10).map(|_| restarts.after(ended, served)).collect();
            let expected = [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000];
            assert_eq!(pauses, expected.map(|pause_ms| Next::StartAfter(Duration::from_millis(pause_ms))));
            assert_eq!(restarts.after(ended, served), Next::GiveUp);
            // One that served longer is the first of a new row, and one that was killed is no part of any.
            let crashed = ExitStatus::from_raw(Signal::ABORT.as_raw());
            assert_eq!(restarts.after(crashed, Some(SHORT_LIFE)), Next::StartAfter(FIRST_PAUSE));
            assert_eq!(restarts.after(crashed, BRIEFLY), Next::StartAfter(2 * FIRST_PAUSE));
            restarts.after(ExitStatus::from_raw(Signal::KILL.as_raw()), BRIEFLY);
            assert_eq!(restarts.after(crashed, BRIEFLY), Next::StartAfter(FIRST_PAUSE));
        }
    }
}
