//! Why a volume does not open.

use std::io;

use polymux_config::refusal::{Cause, Refusal};
use polymux_fs::VolumeError;
use polymux_tier::TierError;
use polymux_types::Errno;

/// Why a volume does not open: a sentence for people, and an error number for programs.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct OpenError {
    errno: Errno,
    message: String,
}

impl OpenError {
    /// The error number: `EBUSY` where the volume is in use (the message names the process), `ENOENT` where it has no configuration,
    /// `ENODEV` where a tier is missing, `EINVAL` where its configuration or the state of its tiers is refused, otherwise
    /// the one of the call that failed.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

impl From<anyhow::Error> for OpenError {
    fn from(error: anyhow::Error) -> Self {
        Self { errno: errno_of(&error), message: format!("{error:#}") }
    }
}

fn errno_of(error: &anyhow::Error) -> Errno {
    let refused = error.downcast_ref::<Refusal>().map(|refusal| match &refusal.cause {
        Cause::InUse => Errno::EBUSY,
        Cause::Volume(error) => errno_of_volume(error),
        Cause::Tier(error) => errno_of_tier(error),
    });
    let of_volume = || error.downcast_ref::<VolumeError>().map(errno_of_volume);
    refused.or_else(of_volume).or_else(|| error.chain().find_map(errno_of_call)).unwrap_or(Errno::EINVAL)
}

fn errno_of_volume(error: &VolumeError) -> Errno {
    match error {
        VolumeError::TierMissing { .. } => Errno::ENODEV,
        VolumeError::FileSystem(error) => error.errno(),
        _ => Errno::EINVAL,
    }
}

fn errno_of_tier(error: &TierError) -> Errno {
    match error {
        TierError::InUse(_) => Errno::EBUSY,
        TierError::ReadOnly => Errno::EROFS,
        TierError::NoSpace => Errno::ENOSPC,
        TierError::Io { errno, .. } => *errno,
        _ => Errno::EINVAL,
    }
}

fn errno_of_call(cause: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let of_library = || Some(cause.downcast_ref::<rustix::io::Errno>()?.raw_os_error());
    cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error).or_else(of_library).map(Errno::from_raw)
}
