//! How the reads of a file were served, and why.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_types::LeaseRefusal;

/// How a read or a write was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Past the mount.
    Directly,
    /// Through the kernel: the file is on no volume that gives leases.
    NoVolume,
    /// Through the kernel, before a lease was asked for.
    NoLeaseYet,
    /// Through the kernel: the daemon refused a lease, for the reason that [`Report::refused`] has.
    Refused,
    /// Through the kernel: the map changed, and the lease ended.
    Recalled,
    /// Through the kernel: bytes that the lease does not cover, at the end of the file most of all, and holes for programs that know nothing of leases. Writes that would take space, go to
    /// two objects, or are long.
    Beyond,
    /// Through the kernel: the tier failed, or had less than the map says. The kernel's answer is the right one.
    Failed,
    /// Through the kernel: the descriptor is that of another file by now, or was made to append.
    OtherFile,
    /// Refused, as the kernel would: behind the limit of the size of files (`RLIMIT_FSIZE`). The signal was sent.
    TooLarge,
}

impl Way {
    const ALL: [Self; 9] = [
        Self::Directly,
        Self::NoVolume,
        Self::NoLeaseYet,
        Self::Refused,
        Self::Recalled,
        Self::Beyond,
        Self::Failed,
        Self::OtherFile,
        Self::TooLarge,
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Directly => "directly",
            Self::NoVolume => "through the kernel (no volume that gives leases)",
            Self::NoLeaseYet => "through the kernel (no lease was asked for yet)",
            Self::Refused => "through the kernel (no lease)",
            Self::Recalled => "through the kernel (the lease was recalled)",
            Self::Beyond => "through the kernel (beyond the lease)",
            Self::Failed => "through the kernel (a tier failed)",
            Self::OtherFile => "through the kernel (another file under this number)",
            Self::TooLarge => "refused (the limit of the size of files)",
        }
    }
}

type ByWay = [u64; Way::ALL.len()];

/// Reads and writes of a file, by the way in which they were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    reads: ByWay,
    writes: ByWay,
    /// Leases that the daemon gave.
    pub leases: u64,
    /// Why it last refused one.
    pub refused: Option<LeaseRefusal>,
}

impl Report {
    /// Reads that were served in one way.
    #[must_use]
    pub fn reads(&self, way: Way) -> u64 {
        self.reads[way as usize]
    }

    /// Writes that were served in one way.
    #[must_use]
    pub fn writes(&self, way: Way) -> u64 {
        self.writes[way as usize]
    }

    /// Adds the calls of another report, of the same file or of others.
    pub fn add(&mut self, other: &Self) {
        for (counts, more) in [(&mut self.reads, other.reads), (&mut self.writes, other.writes)] {
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        self.leases += other.leases;
        self.refused = other.refused.or(self.refused);
    }
}

/// Calls by their way; `None` where there are none.
fn describe(title: &str, counts: &ByWay) -> Option<String> {
    let counted = Way::ALL.into_iter().filter(|way| counts[*way as usize] > 0);
    let parts: Vec<String> = counted.map(|way| format!("{} {}", counts[way as usize], way.describe())).collect();
    (!parts.is_empty()).then(|| format!("{title}: {}", parts.join(", ")))
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> =
            [describe("reads", &self.reads), describe("writes", &self.writes)].into_iter().flatten().collect();
        match calls.is_empty() {
            true => formatter.write_str("no reads")?,
            false => formatter.write_str(&calls.join("; "))?,
        }
        match self.refused {
            Some(refusal) => write!(formatter, "; last refusal: {}", refusal.describe()),
            None => Ok(()),
        }
    }
}

/// Calls past the mount, or of one lane of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectCalls {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// Calls on one file through the kernel, by the reason. Those past the mount are counted in its lanes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reads: [AtomicU64; Way::ALL.len()],
    writes: [AtomicU64; Way::ALL.len()],
}

impl Counts {
    pub(crate) fn note_reads(&self, way: Way, reads: u64) {
        self.reads[way as usize].fetch_add(reads, Ordering::Relaxed);
    }

    pub(crate) fn note_writes(&self, way: Way, writes: u64) {
        self.writes[way as usize].fetch_add(writes, Ordering::Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.reads.iter().chain(&self.writes).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub(crate) fn report(&self, direct: DirectCalls, leases: u64, refused: Option<LeaseRefusal>) -> Report {
        let loaded = |counts: &[AtomicU64], direct: u64| {
            let mut loaded: ByWay = std::array::from_fn(|place| counts[place].load(Ordering::Relaxed));
            loaded[Way::Directly as usize] = direct;
            loaded
        };
        let (reads, writes) = (loaded(&self.reads, direct.reads), loaded(&self.writes, direct.writes));
        Report { reads, writes, leases, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_happened_in_one_line() {
        let counts = Counts::default();
        assert_eq!(counts.report(DirectCalls::default(), 0, None).to_string(), "no reads");
        counts.note_reads(Way::Refused, 1);
        assert_eq!(
            counts.report(DirectCalls { reads: 2, writes: 0 }, 1, Some(LeaseRefusal::OpenForChanges)).to_string(),
            "reads: 2 directly, 1 through the kernel (no lease); last refusal: it is open for changes"
        );
        counts.note_writes(Way::Beyond, 1);
        assert_eq!(
            counts.report(DirectCalls { reads: 0, writes: 3 }, 1, None).to_string(),
            "reads: 1 through the kernel (no lease); writes: 3 directly, 1 through the kernel (beyond the lease)"
        );
    }
}
