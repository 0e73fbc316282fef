//! Policies that exist for comparison, and the command `polymux-lab`: the command `polymux` with them.
//!
//! Invariants: nothing of the product depends on this crate. The policies obey the limits of `polymux-policy`, and pass its tests. What they are
//! compared for is in docs/design/0018 and docs/BENCHMARKS.md.

#![forbid(unsafe_code)]

mod mapped;
mod promote_always;
pub mod thread_maps;
pub mod threads;

use polymux_policy::{PolicyKind, RegisteredPolicy};

use crate::mapped::Mapped;
use crate::promote_always::PromoteAlways;
use crate::threads::ThreadRule;

static MAPPED: [Mapped; 3] = [
    Mapped {
        name: "poly-static",
        description: "Writes large files to the tier of the writing thread, and moves no thread; for comparison.",
        rule: ThreadRule::Fixed,
    },
    Mapped {
        name: "poly-dynamic",
        description: "As poly-static, with threads moved by the rule that PolyStore printed; for comparison.",
        rule: ThreadRule::Printed,
    },
    Mapped {
        name: "poly-climb",
        description: "As poly-static, with threads moved to where all tiers together do more.",
        rule: ThreadRule::Climb,
    },
];

static POLICIES: [RegisteredPolicy; 4] = [
    RegisteredPolicy::new(&MAPPED[0]),
    RegisteredPolicy::new(&MAPPED[1]),
    RegisteredPolicy::new(&MAPPED[2]),
    RegisteredPolicy::new(&PromoteAlways),
];

/// New ranges of large files go to the tier of the thread that writes them; threads are mapped again only where one comes or ends (P7).
/// Otherwise as `poly`.
pub const POLY_STATIC: PolicyKind = PolicyKind::Registered(POLICIES[0]);
/// As `poly-static`, with threads that are moved by Algorithm 1 as it is printed (P11).
pub const POLY_DYNAMIC: PolicyKind = PolicyKind::Registered(POLICIES[1]);
/// As `poly-static`, with threads that are moved to where all tiers together do more.
pub const POLY_CLIMB: PolicyKind = PolicyKind::Registered(POLICIES[2]);
/// Promotes every used range, whatever it displaces: the baseline for the other policies.
pub const PROMOTE_ALWAYS: PolicyKind = PolicyKind::Registered(POLICIES[3]);

/// Every policy of this crate.
pub const ALL: [PolicyKind; 4] = [POLY_STATIC, POLY_DYNAMIC, POLY_CLIMB, PROMOTE_ALWAYS];

/// Makes the policies known by their names, in this process.
pub fn register() {
    polymux_policy::register(&POLICIES);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn policies_are_found_by_their_names_beside_the_built_in_ones() {
        register();
        let names: HashSet<&str> = PolicyKind::all().map(PolicyKind::name).collect();
        assert_eq!(names.len(), PolicyKind::ALL.len() + ALL.len(), "no name is used twice");
        for kind in ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert!(kind.description().ends_with('.'));
        }
        assert!("sprad".parse::<PolicyKind>().unwrap_err().to_string().contains("poly-climb"));
    }
}
