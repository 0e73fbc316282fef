//! User requests to the mover.

use polymux_records::report::{
    Destination, JobId, JobReport, MoveReason, MoveRefusal, MoveWindow, MoverLimits, MoverPoliteness, MoversState,
    MovesReport,
};
use polymux_types::{Block, Ino};
use polymux_volume::sched::{GateState, MoverPace, TimeWindow, Windows};
use polymux_volume::space::TierHandle;

use crate::Mover;

type Answer<T> = std::result::Result<T, MoveRefusal>;

impl Mover {
    /// Moves a file, or the blocks of a range of bytes, to a tier; see `FileSystem::migrate`.
    pub fn migrate(&self, ino: Ino, tier: &str, range: Option<std::ops::Range<u64>>) -> Answer<JobId> {
        self.volume.check_writable()?;
        let inode = self.volume.inode(ino)?;
        let handle = self.tier_to_move_to(tier)?;
        let Some(file) = inode.file() else {
            return Err(MoveRefusal::NotRegular(format!("{:?}", inode.kind).to_lowercase()));
        };
        self.data.ensure_size(&inode, file)?;
        let size = file.size();
        let holds_parts = handle.present().is_some_and(|tier| tier.capabilities().holds_partial_files());
        let ranges = match range {
            None => None,
            Some(range) if range.start >= size || range.start >= range.end => {
                return Err(MoveRefusal::BeyondEnd { start: range.start, size });
            }
            Some(range) if range.end != u64::MAX && range.end > size => {
                return Err(MoveRefusal::EndsBeyondEnd { end: range.end, size });
            }
            Some(_) if !holds_parts => return Err(MoveRefusal::WholeFilesOnly(tier.to_owned())),
            Some(range) => {
                let blocks = Block::holding(range.start)..Block::at_or_after(range.end.min(size));
                Some(vec![polymux_records::blockmap::whole_nodes(&blocks)])
            }
        };
        let bytes = ranges
            .as_ref()
            .map_or(size, |ranges| ranges.iter().map(|range| Block::bytes_of(range.end - range.start)).sum());
        let submitted = self.submit_move(
            ino,
            ranges,
            Destination::To(handle.id),
            MoveReason::User,
            MoverPace::Polite,
            bytes.max(1),
        );
        Ok(submitted.expect("what people ask for is always taken in"))
    }

    /// A tier that something can be sent to.
    pub fn tier_to_move_to(&self, name: &str) -> Answer<std::sync::Arc<TierHandle>> {
        let handle = self.volume.tiers.by_name(name).ok_or_else(|| MoveRefusal::NoSuchTier(name.to_owned()))?;
        if handle.present().is_none() {
            return Err(MoveRefusal::Missing(name.to_owned()));
        }
        if handle.is_draining() {
            return Err(MoveRefusal::Draining(name.to_owned()));
        }
        Ok(handle)
    }

    /// The jobs of the mover and its limits, for `status`.
    pub fn moves_report(&self) -> MovesReport {
        let mut report = self.moves.report(self.volume.clock.elapsed());
        match self.gate.state(self.minute_of_week()) {
            GateState::Open => {}
            GateState::Paused => report.is_paused = true,
            GateState::Shut(minutes) => report.window_opens_in_minutes = Some(minutes.unwrap_or(u32::MAX)),
        }
        report
    }

    /// The state of one job; `None` once it is forgotten.
    pub fn job_report(&self, id: JobId) -> Option<JobReport> {
        self.moves.job(id, self.volume.clock.elapsed())
    }

    /// Cancels a job that a person asked for; returns the number of its files that were still to move.
    pub fn cancel_job(&self, id: JobId) -> usize {
        self.moves.cancel(|job| job.id == id, self.volume.clock.elapsed())
    }

    /// Pauses all movers, or lets them go on.
    pub fn set_movers(&self, state: MoversState) {
        match state {
            MoversState::Paused => self.gate.pause(),
            MoversState::Working => self.gate.resume(),
        }
    }

    /// When movers may work: always where there is no window.
    pub fn set_move_windows(&self, windows: &[MoveWindow], utc_offset_seconds: i32) {
        let window = |window: &MoveWindow| TimeWindow {
            days: window.days,
            from_minute: window.from_minute,
            to_minute: window.to_minute,
        };
        self.gate.set_windows(Windows(windows.iter().map(window).collect()));
        self.utc_offset_seconds.store(utc_offset_seconds, std::sync::atomic::Ordering::Relaxed);
    }

    /// Looks at a file that was pinned or unpinned; of a directory, at all files.
    pub fn follow_pin(&self, ino: Ino) -> polymux_records::error::Result<()> {
        if self.volume.inode(ino)?.is_directory() {
            self.want_walk();
        } else {
            self.plan_rules(ino, &self.planning_table())?;
        }
        Ok(())
    }

    /// Sets the limits of movers on a tier.
    pub fn set_mover_limits(&self, tier: &str, limits: MoverLimits) -> Answer<()> {
        let handle = self.volume.tiers.by_name(tier).ok_or_else(|| MoveRefusal::NoSuchTier(tier.to_owned()))?;
        handle.speed.schedule.set_limits(polymux_volume::sched::MoverLimits {
            bytes_per_second: limits.bytes_per_second,
            operations_per_second: limits.operations_per_second,
        });
        self.placement.write_budget.set_limit(handle.id, limits.promoted_bytes_per_day);
        Ok(())
    }

    /// How movers behave on all tiers.
    pub fn set_politeness(&self, politeness: MoverPoliteness) {
        let politeness = match politeness {
            MoverPoliteness::Polite => polymux_volume::sched::Politeness::Default,
            MoverPoliteness::FullSpeed => polymux_volume::sched::Politeness::FullSpeed,
        };
        self.volume.tiers.all().iter().for_each(|tier| tier.speed.schedule.set_politeness(politeness));
    }
}
