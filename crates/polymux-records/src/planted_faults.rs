//! Orders and syncs that are left out on purpose, one at a time, to prove that the tests of crash states see it.
//!
//! Invariants: without the feature `planted-faults`, which no ordinary build has, nothing can be planted and every
//! question is answered at compile time. With it, a fault holds for the thread that planted it, until it plants another one.

polymux_types::enum_with_all! {
    /// The step that is left out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(not(feature = "planted-faults"), allow(dead_code, reason = "asked for and never planted"))]
    pub enum PlantedFault {
        /// An fsync flushes the log and not the data that the records speak of.
        FsyncWithoutData,
        /// Bytes are freed before the record of the pending free is durable.
        PunchBeforeCommit,
        /// The record of a pending free is removed before its tier was synced.
        RecordGoneBeforeTierSync,
        /// An fsync of a directory does not flush the log.
        DirectorySyncWithoutLog,
        /// The mover does not learn of writes beside its copy.
        WritersBesideCopyUnnoticed,
        /// Blocks that were copied again are not synced again before the map is switched.
        CopiedAgainNotSynced,
        /// A copy is not synced before the map is switched.
        CopyNotSynced,
        /// The range on the target of a move does not become a durable pending free before the first byte.
        ClaimNotFlushed,
        /// An append continues on the next tier, and the size of the earlier appends is not settled.
        SpreadAppendNotSettled,
        /// A settled size is logged before the bytes up to it are durable.
        SettledBeforeSync,
        /// An object replaces inline data that may be durable, before it is synced.
        ObjectNotSyncedBeforeRecord,
        /// An object is cut before the record allows its new size.
        CutBeforeRecord,
        /// A file takes the place of another one before its data is durable.
        ReplacedBeforeSync,
        /// After an unclean stop an object is not cut to the size of its file.
        GhostsNotCut,
        /// The close of a truncated file does not wait for its written data.
        CloseAfterEmptyingWithoutSync,
        /// Possible data loss by a failed sync is not recorded.
        FailedSyncForgotten,
        /// A spread file drops its size authority although its bytes were promised to be durable.
        SpreadPromiseForgotten,
        /// A sync of a spread file does not put its size on record.
        SpreadSizeNotRecorded,
        /// The size authority of a spread file gets bytes behind the place where others took over, before its record is durable.
        SpreadSwitchNotAwaited,
        /// A file that grows beyond its first range on the same tier keeps that tier as its size authority, so that a crash asks an
        /// object for the size whose later pages may be durable without the earlier ones.
        SpreadExtenderGoesOn,
        /// A request that yields to urgent ones waits while there are any, without a limit.
        DeferrableStarves,
        /// Bytes are freed before the second copy of the store has the record of the pending free.
        FreedBeforeCopy,
        /// No note is made of bytes of a small file that are not logged.
        InlineNoteForgotten,
        /// A note stays although a transaction says something newer.
        InlineNoteStays,
        /// The objects of a spread file are not asked for its size.
        SpreadSizeNotAsked,
        /// Set-id bits that a write takes away are not logged before it is answered.
        SetIdNotLogged,
    }
}

/// The tests that have to find a planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-faults"), allow(dead_code, reason = "asked for and never planted"))]
pub enum FoundBy {
    /// Those of all crash states of a volume.
    CrashStates,
    /// Those of crash states with a second copy of the store.
    SecondCopy,
    /// Those in which only the daemon dies and the machine goes on.
    DeathOfTheDaemon,
    /// Those of the scheduler: no crash shows it.
    Scheduler,
}

impl PlantedFault {
    /// Where it shows.
    #[must_use]
    #[cfg_attr(not(feature = "planted-faults"), allow(dead_code, reason = "asked for and never planted"))]
    pub const fn found_by(self) -> FoundBy {
        match self {
            Self::FsyncWithoutData
            | Self::PunchBeforeCommit
            | Self::RecordGoneBeforeTierSync
            | Self::DirectorySyncWithoutLog
            | Self::WritersBesideCopyUnnoticed
            | Self::CopiedAgainNotSynced
            | Self::CopyNotSynced
            | Self::ClaimNotFlushed
            | Self::SpreadAppendNotSettled
            | Self::SettledBeforeSync
            | Self::ObjectNotSyncedBeforeRecord
            | Self::CutBeforeRecord
            | Self::ReplacedBeforeSync
            | Self::GhostsNotCut
            | Self::CloseAfterEmptyingWithoutSync
            | Self::FailedSyncForgotten
            | Self::SpreadPromiseForgotten
            | Self::SpreadSizeNotRecorded
            | Self::SpreadSwitchNotAwaited
            | Self::SpreadExtenderGoesOn => FoundBy::CrashStates,
            Self::FreedBeforeCopy => FoundBy::SecondCopy,
            Self::InlineNoteForgotten | Self::InlineNoteStays | Self::SpreadSizeNotAsked | Self::SetIdNotLogged => {
                FoundBy::DeathOfTheDaemon
            }
            Self::DeferrableStarves => FoundBy::Scheduler,
        }
    }
}

#[cfg(feature = "planted-faults")]
mod planted {
    use std::cell::Cell;

    use super::PlantedFault;

    thread_local! {
        static PLANTED: Cell<Option<PlantedFault>> = const { Cell::new(None) };
    }

    impl PlantedFault {
        /// Plants a fault on this thread, or none.
        pub fn plant(fault: Option<Self>) {
            PLANTED.set(fault);
        }
    }

    /// Whether a fault is planted on this thread.
    pub fn is_planted(fault: PlantedFault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "planted-faults")]
pub use planted::is_planted;

/// Whether a fault is planted: never, in an ordinary build.
#[cfg(not(feature = "planted-faults"))]
pub const fn is_planted(_: PlantedFault) -> bool {
    false
}
