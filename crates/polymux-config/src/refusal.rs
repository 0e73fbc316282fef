//! Why a volume is not opened, for people and for programs.

use polymux_fs::VolumeError;
use polymux_tier::TierError;

/// The cause of a refusal, for programs.
#[derive(Debug)]
pub enum Cause {
    /// Another process uses the volume.
    InUse,
    /// The volume cannot be mounted.
    Volume(VolumeError),
    /// A tier cannot be opened.
    Tier(TierError),
}

/// Why a volume is not opened: one line for people.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    message: String,
    /// The cause.
    pub cause: Cause,
}

impl Refusal {
    /// A refusal with its message.
    pub fn new(message: impl Into<String>, cause: Cause) -> Self {
        Self { message: message.into(), cause }
    }
}
