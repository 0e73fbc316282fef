//! Loss of data with a tier: reporting it, forgetting the tier, accepting the loss (docs/design/0027).

use std::ops::ControlFlow;

use polymux_records::error::Result;
use polymux_records::parts::VolumeError;
use polymux_records::report::{DamagedFiles, ForgottenTier, LostFile};
use polymux_types::Ino;

use super::FileSystem;

impl FileSystem {
    /// Takes a tier that is lost for good out of the volume. Data of files on it is damaged from then on: it reads as EIO
    /// until it is written, cut off, or accepted with [`FileSystem::accept_lost_bytes`]. Everything else stays as it is.
    ///
    /// `unlist` takes the tier out of the configuration, durably. Where it fails, everything is taken back; after it nothing
    /// is, and where the rest fails or the daemon dies, the same call or the next mount goes on.
    ///
    /// # Errors
    /// The tier is unknown, works, holds the metadata store or is the last one that takes files: nothing was changed. ENOSPC,
    /// EIO and others: some files could not let go of it yet.
    pub fn forget_tier(
        &self,
        name: &str,
        unlist: impl FnOnce() -> std::result::Result<(), String>,
    ) -> std::result::Result<ForgottenTier, VolumeError> {
        self.mounted.forget_tier(name, unlist)
    }

    /// Tells of each file that would lose bytes with a tier, in the order of inode numbers, until `visit` breaks off.
    ///
    /// # Errors
    /// The tier may not be forgotten (see [`FileSystem::forget_tier`]), or records cannot be read.
    pub fn files_lost_with(
        &self,
        tier: &str,
        visit: &mut dyn FnMut(LostFile) -> ControlFlow<()>,
    ) -> std::result::Result<(), VolumeError> {
        self.mounted.files_lost_with(tier, visit)
    }

    /// Files with damaged ranges, the first `listed_max` by name. Looks at some thousand records, and goes on with others when it
    /// is called again.
    pub fn damaged_files(&self, listed_max: usize) -> Result<DamagedFiles> {
        self.mounted.find_damaged_files(listed_max)
    }

    /// Makes the damaged ranges of a file zeros, durably, so that they can be read. Returns them: start and end.
    ///
    /// # Errors
    /// ENOENT: there is no such file. Errors of the tiers that hold the rest of it.
    pub fn accept_lost_bytes(&self, ino: Ino) -> Result<Vec<(u64, u64)>> {
        self.logged("accept", self.mounted.accept_lost_bytes(ino))
    }
}
