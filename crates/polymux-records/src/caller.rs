//! Who asks, and how patient they are. Every operation of `FileSystem` takes a [`Caller`].

use polymux_types::StreamId;

pub use polymux_tier::Wait;

/// Where permission is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// Here, by mode bits, POSIX ACLs, sticky directories and set-id rules.
    Checked,
    /// By the front end: the kernel, under `default_permissions`. Tasks that the kernel leaves to the file system
    /// (inheritance of groups and default ACLs, for instance) is still done here.
    CheckedByKernel,
}

/// The subject of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Effective user id; 0 has every capability.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups. A front end under [`Permissions::CheckedByKernel`] may leave them empty.
    pub groups: Vec<u32>,
    /// Bits that creation clears from the mode where the directory has no default ACL.
    pub umask: u32,
    /// Which I/O stream this belongs to.
    pub stream: StreamId,
    /// Whether the operation may wait for a tier, a flush or another operation. Under [`Wait::Never`] it returns
    /// [`crate::error::ErrorKind::WouldBlock`] before any side effect instead.
    pub wait: Wait,
    /// Where permission is checked.
    pub permissions: Permissions,
}

impl Caller {
    /// Root, patient, with permissions checked here.
    #[must_use]
    pub fn root() -> Self {
        Self::user(0, 0)
    }

    /// A user without supplementary groups, patient, with permissions checked here and an empty umask.
    #[must_use]
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Vec::new(),
            umask: 0,
            stream: StreamId(0),
            wait: Wait::Allowed,
            permissions: Permissions::Checked,
        }
    }

    /// Whether the caller has every capability, as uid 0 does.
    #[must_use]
    #[inline]
    pub fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is a member of a group.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether permission is checked here.
    #[must_use]
    #[inline]
    pub fn checks_permissions(&self) -> bool {
        self.permissions == Permissions::Checked
    }
}
