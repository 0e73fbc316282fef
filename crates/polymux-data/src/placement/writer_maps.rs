//! The maps of writers to tiers of those policies that have one.
//!
//! Invariants: each policy has one map, made when it is first asked for and kept until the unmount; the lock is a leaf, and built-in policies
//! do not take it.

use std::collections::HashMap;
use std::sync::Arc;

use polymux_policy::{PolicyKind, RegisteredPolicy, WriterMap};
use polymux_types::sync::Mutex;

type Found = Option<Arc<dyn WriterMap>>;

/// See the module.
#[derive(Debug, Default)]
pub struct WriterMaps {
    maps: Mutex<HashMap<RegisteredPolicy, Found>>,
}

impl WriterMaps {
    /// The map of a policy, where it gives each writer of large files a tier.
    pub fn of(&self, policy: PolicyKind) -> Found {
        let PolicyKind::Registered(registered) = policy else { return None };
        let mut maps = self.maps.lock();
        maps.entry(registered).or_insert_with(|| registered.writer_map().map(Arc::from)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_policies_map_no_writers() {
        let maps = WriterMaps::default();
        assert!(PolicyKind::ALL.into_iter().all(|policy| maps.of(policy).is_none()));
    }
}
