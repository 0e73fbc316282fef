//! Bytes that may be promoted to a tier in a logical day, so that flash lasts (DESIGN section 9).

use polymux_types::TierId;
use polymux_types::sync::Mutex;

/// Seconds of a logical day.
const DAY_SECONDS: u64 = 86_400;

/// Daily write budgets of the tiers that have one, and the bytes used today.
#[derive(Debug, Default)]
pub struct WriteBudget {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    day: u64,
    /// Ascending by tier: bytes a day; none without a budget.
    limits: Vec<(TierId, u64)>,
    /// Ascending by tier.
    spent: Vec<(TierId, u64)>,
}

impl State {
    fn enter_day(&mut self, logical_now: u64) {
        let day = logical_now / DAY_SECONDS;
        if day > self.day {
            self.day = day;
            self.spent.clear();
        }
    }

    fn spent(&self, tier: TierId) -> u64 {
        self.spent.iter().find(|(known, _)| *known == tier).map_or(0, |(_, bytes)| *bytes)
    }
}

impl WriteBudget {
    /// Budgets in bytes a day, and the use of today saved in the store: see `LogicalClock::resume`.
    pub fn new(limits: Vec<(TierId, u64)>, spent: Vec<(TierId, u64)>, logical_now: u64) -> Self {
        let budget = Self::default();
        *budget.state.lock() = State { day: logical_now / DAY_SECONDS, limits, spent };
        budget
    }

    /// Sets or removes the budget of a tier.
    pub fn set_limit(&self, tier: TierId, bytes_per_day: Option<u64>) {
        let mut state = self.state.lock();
        state.limits.retain(|(known, _)| *known != tier);
        state.limits.extend(bytes_per_day.map(|bytes| (tier, bytes)));
    }

    /// Bytes that may still be promoted to a tier today; as many as there are where it has no budget.
    pub fn budget_left(&self, tier: TierId, logical_now: u64) -> u64 {
        let mut state = self.state.lock();
        state.enter_day(logical_now);
        match state.limits.iter().find(|(known, _)| *known == tier) {
            Some((_, limit)) => limit.saturating_sub(state.spent(tier)),
            None => u64::MAX,
        }
    }

    /// Bytes were promoted to a tier.
    pub fn charge(&self, tier: TierId, bytes: u64, logical_now: u64) {
        let mut state = self.state.lock();
        state.enter_day(logical_now);
        match state.spent.binary_search_by_key(&tier, |(known, _)| *known) {
            Ok(place) => state.spent[place].1 = state.spent[place].1.saturating_add(bytes),
            Err(place) => state.spent.insert(place, (tier, bytes)),
        }
    }

    /// The bytes promoted today, ascending by tier, for `LogicalClock::save`.
    pub fn spent(&self, logical_now: u64) -> Vec<(TierId, u64)> {
        let mut state = self.state.lock();
        state.enter_day(logical_now);
        state.spent.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_is_gone_for_the_day_also_after_remounting() {
        let (one, other) = (TierId(1), TierId(0));
        let budget = WriteBudget::new(vec![(one, 100)], vec![], 5);
        budget.charge(one, 60, 10);
        budget.charge(other, 60, 10);
        assert_eq!((budget.budget_left(one, 20), budget.budget_left(other, 20)), (40, u64::MAX));
        let budget = WriteBudget::new(vec![(one, 100)], budget.spent(20), 21);
        budget.charge(one, 60, 30);
        assert_eq!(budget.budget_left(one, DAY_SECONDS - 1), 0);
        assert_eq!(budget.budget_left(one, DAY_SECONDS), 100);
        assert_eq!(budget.spent(DAY_SECONDS), []);
        budget.set_limit(one, None);
        assert_eq!(budget.budget_left(one, DAY_SECONDS), u64::MAX);
    }
}
