//! Where the last openings of a store began to append, in the header of its log.
//!
//! Invariant: an opening goes on where replay found the end of the log. So an opening that began before a position
//! which an earlier one had made durable proves that the store lost it, also when its log has grown beyond that position
//! since. A second copy that was away meanwhile is weighed by this (`copy/knowledge.rs`).

/// Openings that are known at most.
const COUNT: usize = 32;

/// Bytes in the header.
pub(super) const LENGTH: usize = COUNT * 8;

/// Positions at which the last openings began, the present one first; 0 where one is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Openings([u64; COUNT]);

impl Openings {
    /// Nothing is known of any.
    pub(crate) const UNKNOWN: Self = Self([0; COUNT]);

    /// These, and one more that begins at `first`.
    pub(crate) fn and_then(self, first: u64) -> Self {
        let mut positions = [first; COUNT];
        positions[1..].copy_from_slice(&self.0[..COUNT - 1]);
        Self(positions)
    }

    /// The least position at which an opening later than `generation` began, where `present` is the last one. `None` where
    /// not all of them are known.
    pub(crate) fn least_after(&self, present: u32, generation: u32) -> Option<u64> {
        let later = usize::try_from(present.saturating_sub(generation)).unwrap_or(usize::MAX);
        let known = self.0.get(..later)?;
        let all_known = known.iter().all(|position| *position != 0);
        all_known.then(|| known.iter().copied().min().unwrap_or(u64::MAX))
    }

    pub(super) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        for (target, position) in bytes.chunks_exact_mut(8).zip(self.0) {
            target.copy_from_slice(&position.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let mut positions = [0; COUNT];
        for (position, source) in positions.iter_mut().zip(bytes.chunks_exact(8)) {
            *position = u64::from_le_bytes(source.try_into().expect("eight bytes"));
        }
        Self(positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_beginning_counts_of_the_openings_after_one_and_only_where_all_are_known() {
        let openings = Openings::UNKNOWN.and_then(64).and_then(640).and_then(320).and_then(960);
        assert_eq!(openings.least_after(4, 4), Some(u64::MAX), "there is no later one");
        assert_eq!(openings.least_after(4, 3), Some(960));
        assert_eq!(openings.least_after(4, 2), Some(320));
        assert_eq!(openings.least_after(4, 0), Some(64));
        assert_eq!(openings.least_after(5, 0), None, "one that was not noted is not known");
        assert_eq!(openings.least_after(400, 0), None);
        assert_eq!(Openings::decode(&openings.encode()), openings);
    }
}
