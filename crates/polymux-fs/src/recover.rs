//! Making a volume, taking it into service, bringing it back after an unclean stop, and leaving it clean.
//!
//! The epoch protocol (DESIGN section 4): the store logs durably that labels are being raised from N to N+1, the labels
//! rise, the store logs that it is done. In between both are current. So a label that is older than recorded is a stale
//! tier, and one that is newer means that the metadata is old.

mod check;
mod come_back;
mod dependents;
mod forget;
mod format;
mod join;
mod leave;
mod mount;
mod passes;

pub(crate) use check::{check_mounted, check_unmounted};
pub(crate) use format::format;
pub(crate) use mount::mount;
