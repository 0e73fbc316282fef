//! Copying between objects of one file system without bringing the bytes into this process.

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::PosixTier;
use crate::error::TierError;
use crate::object::ObjectRef;

impl PosixTier {
    /// A description of the object that the caller may keep.
    pub(super) fn share(&self, object: ObjectRef) -> Option<OwnedFd> {
        self.object(object).ok()?.descriptor.try_clone().ok()
    }

    /// As far as the source reaches. Bytes copied before an error count.
    pub(super) fn copy_from(
        &self,
        object: ObjectRef,
        offset: u64,
        length: u64,
        source: &OwnedFd,
    ) -> Result<u64, TierError> {
        let open = self.object(object)?;
        let mut copied = 0;
        let outcome = open.changing(|| {
            while copied < length {
                let (mut from, mut to) = (offset + copied, offset + copied);
                let rest = usize::try_from(length - copied).unwrap_or(usize::MAX);
                match rustix::fs::copy_file_range(source, Some(&mut from), &open.descriptor, Some(&mut to), rest) {
                    Ok(0) => break,
                    Ok(count) => copied += count as u64,
                    Err(Errno::INTR) => {}
                    Err(_) if copied > 0 => break,
                    // Other file systems, other types of files, old kernels: the bytes go through this process.
                    Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF | Errno::PERM) => {
                        return Err(TierError::Unsupported("copying within the file system"));
                    }
                    Err(errno) => return Err(self.error("copying", object, errno)),
                }
            }
            Ok(())
        });
        self.account(&open);
        outcome.map(|()| copied)
    }
}
