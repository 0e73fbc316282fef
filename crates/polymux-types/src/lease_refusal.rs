//! Why a program gets no lease on a file, as daemons and programs tell one another (docs/design/0046).

crate::enum_with_all! {
    /// Why a program gets no lease on a file, and reads it through the kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u32)]
    pub enum LeaseRefusal {
        /// Leases are off on this mount.
        Off = 1,
        /// A description may change the file: its bytes may be in the page cache of the kernel alone.
        OpenForChanges = 2,
        /// This description can neither be read nor be written as a lease is.
        NotForReading = 3,
        /// The kernel reads the one object itself.
        PassedThrough = 4,
        /// No object has the bytes: they are in the metadata store, or there are none.
        NoObject = 5,
        /// Some of its bytes are lost.
        Damaged = 6,
        /// It is being moved or changed right now.
        Busy = 7,
        /// Bytes that it gave up on an object wait to be freed.
        Unfreed = 8,
        /// A tier is missing, fails, is remote, or has no files that can be opened.
        Tier = 9,
        /// This user, or all of them, have as many leases as there may be.
        TooMany = 10,
        /// The ticket is unknown: it was shown before, or too late.
        UnknownTicket = 11,
        /// An error, which the log of the daemon has.
        Failed = 12,
        /// A description that may change the file gets leases only where the kernel does not collect writes.
        CollectsWrites = 13,
        /// This description appends, or its writes are durable when they return.
        WritesElsewhere = 14,
        /// It was used through the mount just now: leases would end as soon as they are given.
        UsedThroughMount = 15,
        /// Programs that write the file would keep privileges that it grants: set-id bits or capabilities.
        Privileged = 16,
        /// A program of this user kept the daemon waiting for a write past the mount.
        Late = 17,
        /// A program in another mount namespace could do more to an object than to the file.
        OtherNamespace = 18,
        /// Before Linux 6.16 pages that the kernel writes back may arrive after it has forgotten them.
        OldKernel = 19,
        /// Programs that can use leases called the kernel while this one was given: they are to keep pages away for a moment, and ask again.
        Contended = 20,
        /// It is immutable or append-only.
        Protected = 21,
        /// The answer to an inquiry: no program has or wants a lease on the file while it changes.
        NotWanted = 22,
        /// The answer to an inquiry: programs do.
        Wanted = 23,
        /// The daemon is of another version.
        OtherVersion = 0xffff_ffff,
    }
}

impl LeaseRefusal {
    /// The number that stands for it; never 0.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The refusal with a number; a number of a later version stands for an error.
    #[must_use]
    pub fn from_code(code: u32) -> Self {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code).unwrap_or(Self::Failed)
    }

    /// In words, after "through the kernel: ".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Off => "leases are off on this mount (`leases = \"on\"`)",
            Self::OpenForChanges => "it is open for changes",
            Self::NotForReading => "this descriptor is not open for data",
            Self::PassedThrough => "the kernel reads its object itself",
            Self::NoObject => "it has no object: it is small, new or empty",
            Self::Damaged => "some of its bytes are lost",
            Self::Busy => "it is being moved or changed",
            Self::Unfreed => "bytes that it gave up on a tier wait to be freed",
            Self::Tier => "one of its tiers is missing, failing or remote",
            Self::TooMany => "there are as many leases as there may be",
            Self::UnknownTicket => "the request for a lease took too long",
            Self::Failed => "the daemon failed, and its log says why",
            Self::CollectsWrites => "the kernel of this mount collects writes (`io = \"passthrough\"`)",
            Self::WritesElsewhere => "this descriptor appends, or its writes are synchronous",
            Self::UsedThroughMount => "it is used through the mount, too",
            Self::Privileged => "it has set-id bits or capabilities",
            Self::Late => "a program of this user was waited for too long",
            Self::Protected => "it is immutable or append-only",
            Self::NotWanted => "no program wants a lease on it",
            Self::Wanted => "it was asked about, and no lease was asked for",
            Self::Contended => "other programs ask for leases at the same time",
            Self::OldKernel => "it is open for changes, and the kernel is older than Linux 6.16",
            Self::OtherNamespace => "programs in another mount namespace may not change objects",
            Self::OtherVersion => "the daemon is of another version",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_a_number_of_its_own() {
        for refusal in LeaseRefusal::ALL {
            assert_eq!(LeaseRefusal::from_code(refusal.code()), refusal);
            assert_ne!(refusal.code(), 0);
        }
        assert_eq!(LeaseRefusal::from_code(4_000), LeaseRefusal::Failed);
    }
}
