//! Steady loads: which ranges are used in a second.
//!
//! Invariants: the rates never change. *Independent* draws are independent of one another, as the requests of many users are;
//! *regular* ones come at equal intervals for each range, with a phase of its own that the seed chooses, so that nothing but
//! the rates tells ranges apart. A scan is regular by nature.

/// Requests of 128 KiB in a range.
const REQUESTS_PER_RANGE: usize = 16;
/// One request of a regular load.
const ONE: u64 = 1 << 32;

/// How often each range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// With a weight of 1/rank.
    Zipf,
    /// All ranges in turn, in a stream.
    Scan,
    /// All alike.
    Uniform,
    /// Half Zipf, a quarter scan, a quarter uniform; a third are synchronous writes.
    Mixed,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    Independent,
    Regular,
}

/// A steady load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub shape: Shape,
    pub draws: Draws,
    /// Requests in a second.
    pub per_second: u64,
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub range: usize,
    pub is_write: bool,
    pub is_sequential: bool,
}

/// Where accesses come from.
pub struct Source {
    random: u64,
    /// Weights of the Zipf load by range, in an order that the seed chooses, and their sums up to each.
    weights: Vec<u64>,
    sums: Vec<u64>,
    /// The credit of each range towards its next regular access, and how many accesses it had.
    credits: Vec<u64>,
    counts: Vec<u64>,
    scanned: usize,
}

impl Source {
    pub fn new(ranges: usize, seed: u64) -> Self {
        let weights = (1..=ranges as u64).map(|rank| 1_000_000_000 / rank).collect();
        let empty = || vec![0; ranges];
        let mut source = Self { random: seed, weights, sums: empty(), credits: empty(), counts: empty(), scanned: 0 };
        for at in (1..ranges).rev() {
            let other = source.below(at + 1);
            source.weights.swap(at, other);
        }
        let mut sum = 0;
        for at in 0..ranges {
            sum += source.weights[at];
            source.sums[at] = sum;
            source.credits[at] = source.next(ONE);
            source.counts[at] = source.next(3);
        }
        source
    }

    /// A number below `limit` (SplitMix64).
    fn next(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next(limit as u64)).expect("below a number of ranges")
    }

    /// The accesses of one second.
    pub fn second(&mut self, load: Load, mut tell: impl FnMut(Access)) {
        let scanned = match load.shape {
            Shape::Scan => load.per_second,
            Shape::Mixed => load.per_second / 4,
            Shape::Zipf | Shape::Uniform => 0,
        };
        for number in 0..scanned {
            self.scanned = (self.scanned + 1) % (self.weights.len() * REQUESTS_PER_RANGE);
            let is_write = load.shape == Shape::Mixed && number.is_multiple_of(3);
            tell(Access { range: self.scanned / REQUESTS_PER_RANGE, is_write, is_sequential: true });
        }
        match load.draws {
            Draws::Independent => self.draw(load.shape, load.per_second - scanned, tell),
            Draws::Regular => self.pay_out(load, load.per_second - scanned, tell),
        }
    }

    fn draw(&mut self, shape: Shape, count: u64, mut tell: impl FnMut(Access)) {
        let ranges = self.weights.len();
        for _ in 0..count {
            let is_uniform = shape == Shape::Uniform || (shape == Shape::Mixed && self.next(3) == 0);
            let range = if is_uniform {
                self.below(ranges)
            } else {
                let drawn = self.next(self.sums[ranges - 1]);
                self.sums.partition_point(|sum| *sum <= drawn)
            };
            let is_write = shape == Shape::Mixed && self.next(3) == 0;
            tell(Access { range, is_write, is_sequential: false });
        }
    }

    fn pay_out(&mut self, load: Load, count: u64, mut tell: impl FnMut(Access)) {
        if count == 0 {
            return;
        }
        let (ranges, total) = (self.weights.len(), self.sums[self.weights.len() - 1]);
        for range in 0..ranges {
            let zipf = u128::from(ONE * count) * u128::from(self.weights[range]) / u128::from(total);
            let zipf = u64::try_from(zipf).expect("a part of the load");
            let uniform = ONE * count / ranges as u64;
            self.credits[range] += match load.shape {
                Shape::Uniform => uniform,
                Shape::Mixed => (2 * zipf + uniform) / 3,
                Shape::Zipf | Shape::Scan => zipf,
            };
            while self.credits[range] >= ONE {
                self.credits[range] -= ONE;
                self.counts[range] += 1;
                let is_write = load.shape == Shape::Mixed && self.counts[range].is_multiple_of(3);
                tell(Access { range, is_write, is_sequential: false });
            }
        }
    }

    /// How often a range is used compared with others; the accesses of streams are left out where there are others.
    pub fn weight(&self, load: Load, range: usize) -> u64 {
        let uniform = self.sums[self.weights.len() - 1] / self.weights.len() as u64;
        match load.shape {
            Shape::Zipf => self.weights[range],
            Shape::Mixed => 2 * self.weights[range] + uniform,
            Shape::Scan | Shape::Uniform => uniform,
        }
    }
}
