//! How many leases and requests for them one user, and all users, may have at a time.
//!
//! Invariant: a permit is given back when it is dropped: after the descriptor of its connection is closed, however long that takes.

use std::collections::HashMap;
use std::sync::Arc;

use polymux_types::sync::{Mutex, MutexGuard};

use crate::limits::{LEASES_FOR_ROOT, LEASES_MAX, LEASES_OF_USER_MAX};

#[derive(Default)]
struct Given {
    of_users: HashMap<u32, usize>,
    all: usize,
}

impl Given {
    fn leave_one_for(&self, uid: u32) -> bool {
        // Users with many user numbers of their own could take all of them.
        let max = if uid == 0 { LEASES_MAX } else { LEASES_MAX - LEASES_FOR_ROOT };
        self.all < max && self.of_users.get(&uid).copied().unwrap_or(0) < LEASES_OF_USER_MAX
    }
}

/// All permits.
#[derive(Clone, Default)]
pub struct Permits(Arc<Mutex<Given>>);

/// Entitles a user to one lease.
pub struct Permit {
    permits: Permits,
    uid: u32,
}

impl Permits {
    fn lock(&self) -> MutexGuard<'_, Given> {
        self.0.lock()
    }

    /// Whether a user may have another one.
    pub fn are_left(&self, uid: u32) -> bool {
        self.lock().leave_one_for(uid)
    }

    /// One more for a user, unless there are too many.
    pub fn give(&self, uid: u32) -> Option<Permit> {
        let mut given = self.lock();
        if !given.leave_one_for(uid) {
            return None;
        }
        given.all += 1;
        *given.of_users.entry(uid).or_default() += 1;
        Some(Permit { permits: self.clone(), uid })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut given = self.permits.lock();
        given.all -= 1;
        let left = given.of_users.get_mut(&self.uid).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            given.of_users.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_gets_it_back() {
        let permits = Permits::default();
        let held: Vec<Permit> =
            (0..LEASES_OF_USER_MAX).map(|_| permits.give(1000).expect("within the share")).collect();
        assert!(permits.give(1000).is_none());
        assert!(permits.give(1001).is_some(), "others have theirs");
        drop(held);
        assert!(permits.give(1000).is_some());
        assert!(permits.lock().of_users.is_empty() && permits.lock().all == 0);
    }

    #[test]
    fn users_with_many_numbers_leave_some_to_root() {
        let permits = Permits::default();
        let held: Vec<Permit> =
            (1..=u32::try_from(LEASES_MAX).expect("few")).map_while(|uid| permits.give(uid)).collect();
        assert_eq!(held.len(), LEASES_MAX - LEASES_FOR_ROOT);
        assert!(permits.give(0).is_some());
    }
}
