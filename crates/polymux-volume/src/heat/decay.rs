//! Exponential decay in whole numbers, so that it is the same on every machine.

/// Steps of the table for one half-life.
const STEPS: usize = 256;

/// Halves a number with each half-life.
#[derive(Debug)]
pub(crate) struct Decay {
    half_life_seconds: u64,
    /// Half-lives in a second, with 64 binary places: a multiplication is several times as fast as a division.
    per_second: u64,
    /// `2^(-i/256)`, with 32 binary places.
    factors: [u64; STEPS + 1],
}

impl Decay {
    /// Panics where the half-life is zero.
    pub fn new(half_life_seconds: u32) -> Self {
        assert!(half_life_seconds > 0, "heat has a half-life");
        // The root of one half, 256 times: eight square roots of 2^-1 with 62 binary places.
        let mut step = 1_u64 << 61;
        for _ in 0..8 {
            step = u64::try_from((u128::from(step) << 62).isqrt()).expect("the root of a fraction is one");
        }
        let mut exact = 1_u64 << 62;
        let factors = std::array::from_fn(|_| {
            let factor = (exact + (1 << 29)) >> 30;
            exact = u64::try_from((u128::from(exact) * u128::from(step)) >> 62).expect("it only shrinks");
            factor
        });
        let half_life_seconds = u64::from(half_life_seconds);
        Self { half_life_seconds, per_second: u64::MAX / half_life_seconds, factors }
    }

    pub(crate) fn half_lives(&self, seconds: u32) -> u32 {
        u32::try_from(u64::from(seconds) / self.half_life_seconds).expect("a quotient is not greater")
    }

    /// Several numbers at once, decayed by some time.
    pub fn after<const N: usize>(&self, values: [u32; N], seconds: u32) -> [u32; N] {
        if seconds == 0 {
            return values;
        }
        // In half-lives with 32 binary places; `seconds` has 32 bits, so that nothing is lost above.
        let place = (u128::from(seconds) * u128::from(self.per_second)) >> 32;
        let place = u64::try_from(place).expect("32 bits times 64, less 32");
        let whole = place >> 32;
        // Up to 33 half-lives half a unit can be left of the greatest number, and half a unit counts as one.
        if whole > 32 {
            return [0; N];
        }
        let step = usize::try_from((place >> 24) & 255).expect("eight bits fit");
        let between = place & ((1 << 24) - 1);
        let (high, low) = (self.factors[step], self.factors[step + 1]);
        let factor = high - (((high - low) * between) >> 24);
        values.map(|value| {
            let left = (u64::from(value) * factor) >> whole;
            u32::try_from((left + (1 << 31)) >> 32).expect("decay adds nothing")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_decay_is_the_exact_one_to_half_a_unit(
            value: u32, seconds in 0_u32..1_000_000, half_life in 1_u32..3_000_000,
        ) {
            let [found] = Decay::new(half_life).after([value], seconds);
            let exact = f64::from(value) * (-f64::from(seconds) / f64::from(half_life)).exp2();
            prop_assert!((f64::from(found) - exact).abs() <= 0.51 + exact * 2e-6, "{found} is not {exact}");
        }

        #[test]
        fn many_small_decays_are_one_large_one_nearly(steps in prop::collection::vec(1_u32..200, 1..60)) {
            let decay = Decay::new(3600);
            let found = steps.iter().fold(1_000_000, |value, seconds| decay.after([value], *seconds)[0]);
            let exact = 1e6 * (-f64::from(steps.iter().sum::<u32>()) / 3600.0).exp2();
            let slack = 0.51 * steps.len() as f64 + exact * 1e-5;
            prop_assert!((f64::from(found) - exact).abs() <= slack, "{found} {exact}");
        }
    }

    #[test]
    fn nothing_decays_in_no_time_and_everything_in_the_end() {
        let decay = Decay::new(60);
        assert_eq!(decay.after([u32::MAX, 1], 0), [u32::MAX, 1]);
        assert_eq!(decay.after([1000], 60), [500]);
        assert_eq!(decay.after([u32::MAX], 34 * 60), [0]);
        assert_eq!(Decay::new(1).after([u32::MAX], u32::MAX), [0]);
    }

    #[test]
    fn a_great_number_is_rounded_also_after_more_than_32_half_lives() {
        // 32.008 half-lives: 0.5103 of a unit is left, which is one.
        assert_eq!(Decay::new(26_805).after([2_204_355_462, u32::MAX, 1], 857_985), [1, 1, 0]);
    }
}
