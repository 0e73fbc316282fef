//! Medians, percentiles, means and spreads.
//!
//! Invariant: every function here takes a non-empty sample of finite numbers; an empty one is a programmer's error.

use serde::{Deserialize, Serialize};

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

/// The ratio of pairs that the interval of a comparison has to exclude: a loss of 5 %.
pub const RATIO_EXCLUDED: f64 = 1.05;

/// 97.5 % of Student's distribution with 5, 10, 19, 30 and 60 degrees of freedom: the greatest number that is not above ours counts,
/// which makes the interval wider, never narrower.
const STUDENT: [(usize, f64); 5] = [(60, 2.000), (30, 2.042), (19, 2.093), (10, 2.228), (5, 2.571)];

/// A mean between the ends of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The mean.
    pub middle: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Of the mean of a sample.
    ///
    /// # Panics
    /// Where the sample has fewer than two values.
    #[must_use]
    pub fn of(sample: &[f64]) -> Self {
        assert!(sample.len() >= 2, "an interval needs two measurements");
        let middle = mean(sample);
        let degrees = sample.len() - 1;
        let variance = sample.iter().map(|value| (value - middle).powi(2)).sum::<f64>() / count(degrees);
        let quantile = STUDENT.iter().find(|(of, _)| *of <= degrees).map_or(12.71, |(_, quantile)| *quantile);
        let half = quantile * (variance / count(sample.len())).sqrt();
        Self { low: middle - half, middle, high: middle + half }
    }

    /// Of the geometric mean of the ratios of pairs, ours to the other.
    ///
    /// # Panics
    /// Where there are fewer than two pairs.
    #[must_use]
    pub fn of_ratios(ours: &[f64], others: &[f64]) -> Self {
        let logarithms: Vec<f64> = ours.iter().zip(others).map(|(ours, other)| (ours / other).ln()).collect();
        let Self { low, middle, high } = Self::of(&logarithms);
        Self { low: low.exp(), middle: middle.exp(), high: high.exp() }
    }
}

/// Pairs below which a signed-rank interval of 95 % does not exist.
const RANKED_PAIRS_MIN: usize = 6;

impl Interval {
    /// Of the median ratio of pairs, ours to the other: the Hodges-Lehmann estimate and the interval of Wilcoxon's signed-rank test, by its
    /// normal approximation, rounded to the wider side. It needs no normal distribution, and single outliers hardly move it; in pairs whose
    /// order alternates the logarithms of ratios lie symmetrically around their median, as it assumes. Of fewer than six pairs nothing is
    /// known: the interval has no ends.
    ///
    /// # Panics
    /// Where there are no pairs.
    #[must_use]
    pub fn of_ratios_by_rank(ours: &[f64], others: &[f64]) -> Self {
        let logarithms: Vec<f64> = ours.iter().zip(others).map(|(ours, other)| (ours / other).ln()).collect();
        let pairs = logarithms.len();
        let of_all = (0..pairs).flat_map(|first| (first..pairs).map(move |second| (first, second)));
        let averages: Vec<f64> =
            of_all.map(|(first, second)| f64::midpoint(logarithms[first], logarithms[second])).collect();
        let averages = sorted(&averages);
        let middle = Spread::of(&averages).median.exp();
        if pairs < RANKED_PAIRS_MIN {
            return Self { low: 0.0, middle, high: f64::INFINITY };
        }
        let number = count(pairs);
        let deviation = (number * (number + 1.0) * (2.0 * number + 1.0) / 24.0).sqrt();
        let from_end = number * (number + 1.0) / 4.0 - 1.96 * deviation;
        // As many averages lie below the lower end, and above the upper one, less one.
        let outside = (1..averages.len()).take_while(|outside| count(outside + 1) <= from_end).count();
        Self { low: averages[outside].exp(), middle, high: averages[averages.len() - 1 - outside].exp() }
    }
}

/// Median, quartiles and ends of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// A quarter of the sample is below.
    pub quartile_1: f64,
    /// A quarter of the sample is above.
    pub quartile_3: f64,
}

impl Summary {
    /// Of a sample; a quantile between two values lies between them in proportion.
    ///
    /// # Panics
    /// Where the sample is empty.
    #[must_use]
    pub fn of(sample: &[f64]) -> Self {
        let sorted = sorted(sample);
        let last = sorted.len() - 1;
        let quarter = |number: usize| {
            let (whole, rest) = (last * number / 4, last * number % 4);
            let next = sorted[(whole + 1).min(last)];
            sorted[whole] + (next - sorted[whole]) * count(rest) / 4.0
        };
        Self { median: quarter(2), min: sorted[0], max: sorted[last], quartile_1: quarter(1), quartile_3: quarter(3) }
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
    fn quartiles_lie_between_the_values_beside_them() {
        let summary = Summary::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((summary.min, summary.quartile_1, summary.median), (1.0, 2.0, 3.0));
        assert_eq!((summary.quartile_3, summary.max), (4.0, 5.0));
        let summary = Summary::of(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!((summary.quartile_1, summary.median, summary.quartile_3), (1.75, 2.5, 3.25));
        let one = Summary::of(&[7.0]);
        assert!([one.min, one.quartile_1, one.median, one.quartile_3, one.max].iter().all(|value| *value == 7.0));
    }

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let sample: Vec<f64> = (1..=200).map(count).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&sample, percent)), [100.0, 198.0, 200.0]);
        assert_eq!(percentile(&[5.0], 1), 5.0);
    }

    #[test]
    fn the_interval_of_twenty_values_is_that_of_students_distribution() {
        let sample: Vec<f64> = (0..20).map(|value| if value % 2 == 0 { 1.0 } else { 3.0 }).collect();
        let Interval { low, middle, high } = Interval::of(&sample);
        // 2.093 times the root of 20/19 by 20.
        assert!((middle - 2.0).abs() < 1e-12);
        assert!((high - middle - 0.480_17).abs() < 1e-4 && (middle - low - (high - middle)).abs() < 1e-12);
        let ratio = Interval::of_ratios(&sample, &[2.0; 20]);
        assert!(
            (ratio.middle - 0.75_f64.sqrt()).abs() < 1e-12 && ratio.low < ratio.middle && ratio.middle < ratio.high
        );
    }

    #[test]
    fn the_signed_rank_interval_of_twenty_pairs_has_the_52nd_average_from_each_end() {
        // The critical value for twenty pairs is 52: table of the signed-rank test, two-sided, 5 %.
        let ours: Vec<f64> = (0..20).map(|value| count(value).exp()).collect();
        let interval = Interval::of_ratios_by_rank(&ours, &[1.0; 20]);
        let sums: Vec<f64> = {
            let mut sums: Vec<f64> =
                (0..20).flat_map(|first| (first..20).map(move |second| count(first + second) / 2.0)).collect();
            sums.sort_by(f64::total_cmp);
            sums
        };
        let expected = (sums[51], sums[210 - 52]);
        assert!((interval.low.ln() - expected.0).abs() < 1e-9 && (interval.high.ln() - expected.1).abs() < 1e-9);
        assert!((interval.middle.ln() - 9.5).abs() < 1e-9);
    }

    #[test]
    fn an_outlier_widens_the_interval_of_the_mean_and_not_that_of_ranks() {
        let ours: Vec<f64> =
            (0..24).map(|value| if value == 7 { 3.0 } else { 1.0 + count(value % 5) / 100.0 }).collect();
        let (mean, ranks) = (Interval::of_ratios(&ours, &[1.0; 24]), Interval::of_ratios_by_rank(&ours, &[1.0; 24]));
        assert!(mean.high > 1.15 && ranks.high < 1.04 && ranks.low > 1.0, "{mean:?} {ranks:?}");
        assert_eq!(Interval::of_ratios_by_rank(&ours[..5], &[1.0; 5]).high, f64::INFINITY);
    }

    #[test]
    fn the_geometric_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!((geometric_mean(&[4.0, 0.25]) - 1.0).abs() < 1e-12);
    }
}
