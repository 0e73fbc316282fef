//! Medians, percentiles, means and spreads.
//!
//! Invariant: every function here takes a non-empty sample of finite numbers; an empty one is a programmer's error.

/// Median and spread of the rounds of one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value; the mean of the two middle ones of an even number.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of a sample.
    ///
    /// # Panics
    /// Where the sample is empty.
    #[must_use]
    pub fn of(sample: &[f64]) -> Self {
        let sorted = sorted(sample);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Self { median, min: sorted[0], max: sorted[sorted.len() - 1] }
    }
}

impl Spread {
    /// The smallest and the largest, in words.
    #[must_use]
    pub fn range(&self, decimals: usize) -> String {
        format!("{:.decimals$} to {:.decimals$}", self.min, self.max)
    }
}

fn sorted(sample: &[f64]) -> Vec<f64> {
    assert!(!sample.is_empty(), "a figure has at least one measurement");
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Arithmetic mean.
#[must_use]
pub fn mean(sample: &[f64]) -> f64 {
    assert!(!sample.is_empty(), "a figure has at least one measurement");
    sample.iter().sum::<f64>() / count(sample.len())
}

/// Geometric mean of positive numbers: the one mean of ratios that does not depend on which side is the divisor.
#[must_use]
pub fn geometric_mean(sample: &[f64]) -> f64 {
    mean(&sample.iter().map(|value| value.ln()).collect::<Vec<_>>()).exp()
}

/// The value that `percent` per cent of the sample do not exceed (nearest rank).
#[must_use]
pub fn percentile(sample: &[f64], percent: usize) -> f64 {
    let sorted = sorted(sample);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank.min(sorted.len()) - 1]
}

/// A count as a number to reckon with; exact up to 2^53.
#[must_use]
pub fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]), Spread { median: 3.0, min: 1.0, max: 9.0 });
        assert_eq!(Spread::of(&[7.0]).median, 7.0);
    }

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let sample: Vec<f64> = (1..=200).map(count).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&sample, percent)), [100.0, 198.0, 200.0]);
        assert_eq!(percentile(&[5.0], 1), 5.0);
    }

    #[test]
    fn the_geometric_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!((geometric_mean(&[4.0, 0.25]) - 1.0).abs() < 1e-12);
    }
}
