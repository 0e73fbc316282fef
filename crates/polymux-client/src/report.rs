//! How the reads of a file were served, and why.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_types::LeaseRefusal;

/// How a read was served.
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
    /// Through the kernel: bytes that the lease does not cover, at the end of the file most of all, and holes for programs that know nothing of leases.
    Beyond,
    /// Through the kernel: the tier failed, or had less than the map says. The kernel's answer is the right one.
    Failed,
    /// Through the kernel: the descriptor is that of another file by now.
    OtherFile,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::Directly,
        Self::NoVolume,
        Self::NoLeaseYet,
        Self::Refused,
        Self::Recalled,
        Self::Beyond,
        Self::Failed,
        Self::OtherFile,
    ];

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
        }
    }
}

/// Reads of a file, by the way in which they were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    counts: [u64; Way::ALL.len()],
    /// Leases that the daemon gave.
    pub leases: u64,
    /// Why it last refused one.
    pub refused: Option<LeaseRefusal>,
}

impl Report {
    /// Reads that were served in one way.
    #[must_use]
    pub fn reads(&self, way: Way) -> u64 {
        self.counts[way as usize]
    }

    /// Adds the reads of another report, of the same file or of others.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.leases += other.leases;
        self.refused = other.refused.or(self.refused);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = Way::ALL.into_iter().filter(|way| self.reads(*way) > 0);
        let parts: Vec<String> = counted.map(|way| format!("{} {}", self.reads(way), way.describe())).collect();
        match parts.is_empty() {
            true => formatter.write_str("no reads")?,
            false => write!(formatter, "reads: {}", parts.join(", "))?,
        }
        match self.refused {
            Some(refusal) => write!(formatter, "; last refusal: {}", refusal.describe()),
            None => Ok(()),
        }
    }
}

/// Reads of one file through the kernel, by the reason. Those past the mount are counted in its lanes.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; Way::ALL.len()]);

impl Counts {
    pub(crate) fn note(&self, way: Way, reads: u64) {
        self.0[way as usize].fetch_add(reads, Ordering::Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub(crate) fn report(&self, direct: u64, leases: u64, refused: Option<LeaseRefusal>) -> Report {
        let mut counts = std::array::from_fn(|place| self.0[place].load(Ordering::Relaxed));
        counts[Way::Directly as usize] = direct;
        Report { counts, leases, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_happened_in_one_line() {
        let counts = Counts::default();
        assert_eq!(counts.report(0, 0, None).to_string(), "no reads");
        counts.note(Way::Refused, 1);
        assert_eq!(
            counts.report(2, 1, Some(LeaseRefusal::OpenForChanges)).to_string(),
            "reads: 2 directly, 1 through the kernel (no lease); last refusal: it is open for changes"
        );
    }
}
