//! Words that a daemon and programs share about leases (docs/design/0046): tickets, maps and reads.

/// Bytes of a file that one object has, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRun {
    /// First byte.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
    /// Place of the object among those that are leased; `None` for zeros.
    pub object: Option<usize>,
}

/// Reads of one range node that devices served and the daemon did not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutsideReads {
    /// Short ones at random.
    pub random: u64,
    /// Bytes read in order or in long pieces.
    pub stream_bytes: u64,
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
