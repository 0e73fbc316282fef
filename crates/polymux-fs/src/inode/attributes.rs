//! Attributes that every type of file has.

use polymux_types::Timestamp;

/// Attributes under the lock `Inode::common`.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) permissions: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) has_access_acl: bool,
    pub(crate) has_default_acl: bool,
    /// Bits as `FS_IOC_SETFLAGS` has them.
    pub(crate) attribute_flags: u32,
    pub(crate) accessed: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
}

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

impl Common {
    /// Whether relatime asks for a new access time: the old one is not later than the last change, or a day old.
    pub(crate) fn access_time_is_due(&self, now: Timestamp) -> bool {
        self.accessed <= self.modified
            || self.accessed <= self.changed
            || now.seconds.saturating_sub(self.accessed.seconds) >= SECONDS_PER_DAY
    }
}
