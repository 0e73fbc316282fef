//! Restricts the access of the kernel to an object on behalf of programs to that of a user without the blocks that a file system keeps for
//! root.
//!
//! Invariants:
//! * The kernel writes to a registered object with the credentials of the thread that registered it, as they were then
//!   (`fuse_backing_open` in fs/fuse/passthrough.c). ext4 gives its last blocks to user 0 and to `CAP_SYS_RESOURCE` only
//!   (`ext4_has_free_clusters`), so a program that is root for us must not be root there.
//! * The credentials of a thread are its own, and they are as before when the guard goes.

use std::io;

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Owner of no file: the user `nobody` of Linux.
const NOBODY: u32 = 65_534;

/// The calling thread without the rights of root to blocks that are set aside.
pub(crate) struct Unprivileged {
    capabilities: CapabilitySets,
    user: Option<u32>,
    dumpable: Option<DumpableBehavior>,
    /// Not `Send`: the changed credentials are those of this thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Unprivileged {
    /// Gives the rights up until the guard is dropped.
    ///
    /// # Errors
    /// As `capset(2)`.
    pub(crate) fn begin() -> io::Result<Self> {
        let capabilities = rustix::thread::capabilities(None)?;
        let effective = capabilities.effective - CapabilitySet::SYS_RESOURCE;
        rustix::thread::set_capabilities(None, CapabilitySets { effective, ..capabilities })?;
        // A process that changes its user leaves no core any more, until it says so again.
        let dumpable = rustix::process::dumpable_behavior().ok();
        let user = set_file_system_user(NOBODY);
        let user = (user != NOBODY).then_some(user);
        Ok(Self { capabilities, user, dumpable, _thread: std::marker::PhantomData })
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if let Some(user) = self.user {
            set_file_system_user(user);
        }
        rustix::thread::set_capabilities(None, self.capabilities).expect("a thread may use what it is permitted");
        if self.dumpable == Some(DumpableBehavior::Dumpable) {
            // Without it there is no core of a crash; nothing else depends on it.
            let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
        }
    }
}

/// Sets the file-system user of this thread; returns the previous one.
fn set_file_system_user(user: u32) -> u32 {
    // SAFETY: the call takes a number and touches no memory; it concerns the calling thread alone.
    let before = unsafe { libc::setfsuid(user) };
    before.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_system_user() -> u32 {
        // A number that is no user changes nothing.
        set_file_system_user(u32::MAX)
    }

    #[test]
    fn the_rights_of_a_thread_are_given_up_and_come_back() {
        let before = (rustix::thread::capabilities(None).unwrap(), file_system_user());
        {
            let _guard = Unprivileged::begin().unwrap();
            let now = rustix::thread::capabilities(None).unwrap();
            assert!(!now.effective.contains(CapabilitySet::SYS_RESOURCE));
            assert!(before.1 != 0 || file_system_user() == NOBODY, "root is nobody for file systems");
            let others = std::thread::spawn(|| rustix::thread::capabilities(None).unwrap().effective);
            assert!(before.0.effective.contains(others.join().unwrap()));
        }
        let after = (rustix::thread::capabilities(None).unwrap(), file_system_user());
        assert_eq!((after.0.effective, after.1), (before.0.effective, before.1));
        assert_eq!(after.0.permitted, before.0.permitted);
    }
}
