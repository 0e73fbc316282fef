//! Traffic of devices over time, and how soon it reached a given rate.
//!
//! A rate is that of one second, and counts from the moment at which this second is over. A second that began
//! before the last change of the devices is ignored: so the least time in which a rate can be reached is one second.

/// Traffic of the devices up to a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Seconds since the beginning.
    pub second: f64,
    /// Bytes since the beginning, of each device.
    pub bytes: Vec<u64>,
}

/// Samples in their order; the first is that of the beginning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(pub Vec<Sample>);

/// Seconds over which a rate is taken.
const WINDOW_SECONDS: f64 = 1.0;

/// Less than a sample may be late or early.
const JITTER_SECONDS: f64 = 0.02;

impl Series {
    /// Bytes of each device until a moment; between two samples in proportion.
    fn bytes_at(&self, second: f64) -> Vec<f64> {
        let after = self.0.partition_point(|sample| sample.second < second);
        let of = |sample: &Sample| sample.bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<f64>>();
        match (after.checked_sub(1).and_then(|before| self.0.get(before)), self.0.get(after)) {
            (Some(before), Some(after)) => {
                let part = (second - before.second) / (after.second - before.second);
                of(before).iter().zip(of(after)).map(|(before, after)| before + (after - before) * part).collect()
            }
            (None, Some(only)) | (Some(only), None) => of(only),
            (None, None) => Vec::new(),
        }
    }

    /// Bytes per second of each device between two moments.
    #[must_use]
    pub fn rates(&self, from: f64, to: f64) -> Vec<f64> {
        let span = (to - from).max(1e-9);
        self.bytes_at(from).iter().zip(self.bytes_at(to)).map(|(before, after)| (after - before) / span).collect()
    }

    /// Bytes per second of all devices in each second that lies between two moments, with the moment at which it was over.
    fn windows(&self, since: f64, until: f64) -> impl Iterator<Item = (f64, f64)> {
        let is_inside =
            move |second: &f64| *second >= since + WINDOW_SECONDS - JITTER_SECONDS && *second <= until + JITTER_SECONDS;
        let ends = self.0.iter().map(|sample| sample.second).filter(is_inside);
        ends.map(|end| (end, self.rates(end - WINDOW_SECONDS, end).iter().sum()))
    }

    /// Seconds from `since` until all devices together took as much; `None`: not before `until`.
    #[must_use]
    pub fn reached(&self, since: f64, until: f64, bytes_per_second: f64) -> Option<f64> {
        self.windows(since, until).find(|(_, rate)| *rate >= bytes_per_second).map(|(end, _)| end - since)
    }

    /// Seconds from `since` until all devices together took as much and did so until `until`; `None`: not at the end.
    #[must_use]
    pub fn settled(&self, since: f64, until: f64, bytes_per_second: f64) -> Option<f64> {
        let mut settled = None;
        for (end, rate) in self.windows(since, until) {
            settled = if rate >= bytes_per_second { settled.or(Some(end - since)) } else { None };
        }
        settled
    }

    /// The least rate in any second between two moments.
    #[must_use]
    pub fn least(&self, since: f64, until: f64) -> Option<f64> {
        self.windows(since, until).map(|(_, rate)| rate).min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten samples a second of two devices, which take so many bytes in each tenth.
    fn series(tenths: &[[u64; 2]]) -> Series {
        let mut samples = vec![Sample { second: 0.0, bytes: vec![0, 0] }];
        for (at, bytes) in (1_u32..).zip(tenths) {
            let before = samples[samples.len() - 1].bytes.clone();
            let bytes = before.iter().zip(bytes).map(|(before, bytes)| before + bytes).collect();
            samples.push(Sample { second: f64::from(at) / 10.0, bytes });
        }
        Series(samples)
    }

    fn is_near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-6)
    }

    #[test]
    fn a_rate_is_reached_when_a_whole_second_had_it() {
        // Nothing for half a second, then 100 a second together.
        let series = series(&[[[0, 0]; 5].as_slice(), &[[7, 3]; 20]].concat());
        assert!(is_near(series.reached(0.0, 2.5, 90.0), 1.4));
        assert!(is_near(series.reached(0.0, 2.5, 100.0), 1.5));
        assert_eq!(series.reached(0.0, 2.5, 101.0), None);
        assert_eq!(series.reached(0.0, 1.3, 90.0), None);
        let rates = series.rates(1.0, 2.0);
        assert!((rates[0] - 70.0).abs() < 1e-6 && (rates[1] - 30.0).abs() < 1e-6, "{rates:?}");
    }

    #[test]
    fn what_came_before_a_change_does_not_count_after_it() {
        let series = series(&[[[100, 0]; 10].as_slice(), &[[0, 0]; 3], &[[1, 1]; 17]].concat());
        assert!(is_near(series.reached(1.0, 3.0, 18.0), 1.2), "{:?}", series.reached(1.0, 3.0, 18.0));
        assert!(is_near(series.least(1.0, 3.0), 14.0));
        assert!(is_near(series.settled(0.0, 3.0, 18.0), 2.2) && is_near(series.settled(0.0, 1.0, 18.0), 1.0));
        assert_eq!(series.settled(0.0, 3.0, 21.0), None);
        assert!(is_near(series.least(1.5, 3.0), 20.0));
    }

    #[test]
    fn a_moment_between_two_samples_has_its_part_of_the_bytes() {
        let series = Series(vec![
            Sample { second: 0.0, bytes: vec![0] },
            Sample { second: 1.0, bytes: vec![100] },
            Sample { second: 3.0, bytes: vec![500] },
        ]);
        assert_eq!(series.bytes_at(2.0), [300.0]);
        assert_eq!((series.bytes_at(-1.0), series.bytes_at(9.0)), (vec![0.0], vec![500.0]));
        assert!(Series::default().rates(0.0, 1.0).is_empty());
    }
}
