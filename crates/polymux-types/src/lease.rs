//! Words that a daemon and programs share about leases (docs/design/0046): tickets, maps and uses.

/// Bytes of a file that one object has, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRun {
    /// First byte.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
    /// Place of the object among those that are leased; `None` for zeros.
    pub object: Option<usize>,
    /// Whether these bytes may be overwritten in the object: it has blocks for all of them.
    pub is_writable: bool,
}

/// Uses of one range node that the daemon did not see: reads that devices served, and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutsideUse {
    /// Short ones at random.
    pub random: u64,
    /// Bytes read in order or in long pieces.
    pub stream_bytes: u64,
    /// Writes.
    pub writes: u64,
}

/// Leases that a program can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LeaseWish {
    /// For files that nothing changes meanwhile.
    UnchangedFile = 0,
    /// For any file: where a lease is refused or ends, the program reads and writes past the page cache for a while, so that it does not end the leases of others.
    AnyFile = 1,
    /// None yet: the answer says whether programs have or want leases on a file that changes. If so this one is about to ask, and counts as one of them.
    Inquiry = 2,
}

/// The one who asks for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseApplicant {
    /// The user of the process.
    pub uid: u32,
    /// Leases that its program can use.
    pub wish: LeaseWish,
}

/// A number that cannot be guessed.
pub type Secret = [u8; 16];

/// Entitles a program that has a file open to a lease on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeaseTicket {
    /// Name of the door of the daemon.
    pub door: Secret,
    /// To be shown there.
    pub ticket: Secret,
    /// By which the program recognises the daemon.
    pub proof: Secret,
}

impl std::fmt::Debug for LeaseTicket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Secrets do not belong into logs.
        formatter.debug_struct("LeaseTicket").finish_non_exhaustive()
    }
}
