//! Comparing two sets that are walked in different orders, without keeping either: a sum of hashes for each group.
//!
//! Invariants: where the sums of a group are equal, the two sets are equal in it but for a chance of 2^-64; where they
//! differ, the members of that group are compared one by one. The sums guard against damage, not against an adversary.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Sums of two sides, by group.
pub(super) struct Sums {
    groups: Vec<(u64, u64)>,
}

/// Which of the two sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Sums {
    pub(super) fn new(groups: usize) -> Self {
        Self { groups: vec![(0, 0); groups] }
    }

    /// Adds a member of one of the sets.
    pub(super) fn add(&mut self, side: Side, group: usize, member: &impl Hash) {
        let hash = hash_of(member);
        let (left, right) = &mut self.groups[group];
        match side {
            Side::Left => *left = left.wrapping_add(hash),
            Side::Right => *right = right.wrapping_add(hash),
        }
    }

    pub(super) fn differs(&self, group: usize) -> bool {
        let (left, right) = self.groups[group];
        left != right
    }

    pub(super) fn any_differs(&self) -> bool {
        self.groups.iter().any(|(left, right)| left != right)
    }
}

/// A hash that is not zero, so that a set of one member never sums up to that of none.
pub(super) fn hash_of(member: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    member.hash(&mut hasher);
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_in_another_order_have_equal_sums_and_others_have_not() {
        let mut sums = Sums::new(2);
        for member in 0..100_u64 {
            sums.add(Side::Left, 0, &member);
            sums.add(Side::Right, 0, &(99 - member));
        }
        assert!(!sums.any_differs());
        sums.add(Side::Left, 1, &7_u64);
        assert!(sums.differs(1) && !sums.differs(0));
        sums.add(Side::Right, 1, &8_u64);
        assert!(sums.differs(1));
    }
}
