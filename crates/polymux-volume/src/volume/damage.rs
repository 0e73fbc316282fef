//! Files with damaged ranges, as far as they were looked at.

use std::collections::BTreeSet;

use polymux_types::Ino;

/// State known of files with damaged ranges.
#[derive(Debug, Default)]
pub struct KnownDamage {
    /// Files that had some when they were looked at; they may be whole again.
    pub files: BTreeSet<Ino>,
    /// Those that still had some at the last look, which goes through `files` in turns and is at `checked_up_to`.
    pub confirmed: BTreeSet<Ino>,
    pub checked_up_to: u64,
    /// Inodes whose records cannot be read.
    pub unreadable: BTreeSet<Ino>,
    /// Number of the last inode that was looked at.
    pub looked_up_to: u64,
    /// All were.
    pub is_complete: bool,
}
