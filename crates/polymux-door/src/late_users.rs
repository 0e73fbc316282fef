//! Users whose programs kept the daemon waiting for a write past the mount.
//!
//! Invariant: the number of users that are remembered is bounded. At the bound every user counts as late for a while.

use std::collections::HashMap;
use std::time::Instant;

use polymux_types::sync::Mutex;

use crate::limits::{LATE_USERS_MAX, LATENESS_REMEMBERED};

#[derive(Debug, Default)]
struct Known {
    of_users: HashMap<u32, Instant>,
    of_any: Option<Instant>,
}

/// When programs of users were waited for in vain.
#[derive(Debug, Default)]
pub struct LateUsers(Mutex<Known>);

fn is_remembered(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < LATENESS_REMEMBERED
}

impl LateUsers {
    /// A program of a user was waited for in vain.
    pub fn note(&self, uid: u32, now: Instant) {
        let mut known = self.0.lock();
        known.of_users.retain(|_, at| is_remembered(*at, now));
        if known.of_users.len() < LATE_USERS_MAX {
            known.of_users.insert(uid, now);
        } else {
            known.of_any = Some(now);
        }
    }

    /// Whether that is remembered.
    pub fn has(&self, uid: u32, now: Instant) -> bool {
        let known = self.0.lock();
        known.of_users.get(&uid).into_iter().chain(&known.of_any).any(|at| is_remembered(*at, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_forgotten_and_too_many_late_users_make_all_of_them_late() {
        let (users, now) = (LateUsers::default(), Instant::now());
        users.note(7, now);
        assert!(users.has(7, now) && !users.has(8, now));
        assert!(!users.has(7, now + LATENESS_REMEMBERED));
        (0..=u32::try_from(LATE_USERS_MAX).unwrap()).for_each(|uid| users.note(1000 + uid, now));
        assert!(users.has(8, now));
        assert!(!users.has(8, now + LATENESS_REMEMBERED));
    }
}
