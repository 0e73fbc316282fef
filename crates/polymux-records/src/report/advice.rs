//! Reads that devices served, and the share of them that a faster tier of another size would serve.

/// Reads that the fastest tier would serve with a given capacity, if the ranges on it were chosen with hindsight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdviceStep {
    /// Capacity for files in bytes.
    pub room_bytes: u64,
    /// Reads of the last ten minutes that it would serve.
    pub reads: u64,
}

/// The report of `policy advise`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Name of the fastest tier that is in service.
    pub tier: String,
    /// Capacity for files on it in bytes, up to its high mark.
    pub room_bytes: u64,
    /// Small reads that devices served in about the last ten minutes.
    pub reads: u64,
    /// Share of the device reads of the last ten minutes that this tier served, in percent; `None` where there were none.
    pub served_percent: Option<u64>,
    /// Ranges of two MiB that were read often enough to be distinguished. All other reads count as served by no tier of any size below.
    pub ranges: u64,
    /// Bytes of these ranges.
    pub range_bytes: u64,
    /// Half of the capacity, all of it, twice and four times as much.
    pub steps: Vec<AdviceStep>,
}
