//! Attributes that every type of file has.

use polymux_types::Timestamp;

/// Attributes under the lock `Inode::common`.
#[derive(Clone, Debug)]
pub struct Common {
    /// Permission bits with set-id and sticky bits (`07777`).
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// It has an access ACL that says more than the mode.
    pub has_access_acl: bool,
    /// It has a default ACL.
    pub has_default_acl: bool,
    /// Bits as `FS_IOC_SETFLAGS` has them.
    pub attribute_flags: u32,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the content or of the attributes.
    pub changed: Timestamp,
}

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

impl Common {
    /// Whether relatime asks for a new access time: the old one is not later than the last change, or a day old.
    pub fn access_time_is_due(&self, now: Timestamp) -> bool {
        self.accessed <= self.modified
            || self.accessed <= self.changed
            || now.seconds.saturating_sub(self.accessed.seconds) >= SECONDS_PER_DAY
    }
}
