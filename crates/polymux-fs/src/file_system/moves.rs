//! Moving blocks between tiers.

use std::ops::Range;

use polymux_records::report::{
    DrainReport, JobId, JobReport, MoveRefusal, MoverLimits, MoverPoliteness, MoversState, MovesReport,
};
use polymux_types::Ino;

use super::FileSystem;

impl FileSystem {
    /// Asks for a file, or the 2 MiB nodes that hold a range of its bytes, to be moved to a tier. Returns at once; the job
    /// is carried out by [`FileSystem::move_step`]. A range that ends at `u64::MAX` ends where the file does.
    ///
    /// # Errors
    /// The file is not a regular one, the tier does not take it, or the range begins or ends behind the end of the file.
    pub fn migrate(&self, ino: Ino, tier: &str, range: Option<Range<u64>>) -> std::result::Result<JobId, MoveRefusal> {
        self.mounted.mover.migrate(ino, tier, range)
    }

    /// Everything that is to be moved, is being moved, and was moved last.
    #[must_use]
    pub fn moves(&self) -> MovesReport {
        self.mounted.mover.moves_report()
    }

    /// One job; `None` where it ended long ago or never was.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobReport> {
        self.mounted.mover.job_report(id)
    }

    /// Cancels a job; ranges that it has already moved stay where they are. Returns whether there was such a job.
    pub fn cancel_job(&self, id: JobId) -> bool {
        self.mounted.mover.cancel_job(id) > 0
    }

    /// Pauses movers, or resumes them. Moves under way come to their end.
    pub fn set_movers(&self, state: MoversState) {
        self.mounted.mover.set_movers(state);
    }

    /// How far the emptying of each tier is that is being emptied.
    #[must_use]
    pub fn drains(&self) -> Vec<DrainReport> {
        self.mounted.mover.drain_reports()
    }

    /// One of the paths of an inode from the root of the volume, without a leading slash; `None` where it has no name any
    /// more. No tier is asked.
    pub fn path_of(&self, ino: Ino) -> crate::Result<Option<Vec<u8>>> {
        self.mounted.volume.path_of(ino)
    }

    /// Number and name of each tier in speed order. No tier is asked.
    #[must_use]
    pub fn tier_names(&self) -> Vec<(polymux_types::TierId, String)> {
        self.mounted.volume.tiers.all().iter().map(|tier| (tier.id, tier.name.clone())).collect()
    }

    /// Sets the limits of migration on a tier.
    ///
    /// # Errors
    /// There is no such tier.
    pub fn set_mover_limits(&self, tier: &str, limits: MoverLimits) -> std::result::Result<(), MoveRefusal> {
        self.mounted.mover.set_mover_limits(tier, limits)
    }

    /// How movers behave beside programs.
    pub fn set_politeness(&self, politeness: MoverPoliteness) {
        self.mounted.mover.set_politeness(politeness);
    }
}
