//! Choices of one mount, and what they mean to the kernel.
//!
//! The kernel always checks permissions: there is no way to switch `default_permissions` off.

use fuser::{Config, MountOption, SessionACL};
use polymux_fs::Access;

/// Who may use the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Only the user who mounted it.
    OwnerOnly,
    /// Every user, within the permissions of the files (`allow_other`).
    Everybody,
}

/// Whether set-id bits and device nodes work on the mount. Without root they never do: `fusermount3` adds
/// `nosuid,nodev` whatever is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFiles {
    /// They work as on any local file system.
    Honoured,
    /// They are kept, but have no effect (`nosuid`, `nodev`).
    Ignored,
}

/// Choices of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// Name of the volume; shown as the source of the mount (`fsname`). The type is shown as `fuse.polymux`.
    pub volume_name: String,
    /// Who may use the mount.
    pub sharing: Sharing,
    /// Whether the mount may be written.
    pub access: Access,
    /// Whether set-id bits and device nodes work.
    pub special_files: SpecialFiles,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
}

/// Fewest and most threads that are chosen by default: several wait for devices while others serve; no more than sixteen,
/// because each takes its own reading buffer.
const THREADS_DEFAULT: std::ops::RangeInclusive<usize> = 8..=16;
/// Threads for each processor: a thread that waits for a device holds no processor.
const THREADS_PER_PROCESSOR: usize = 4;

impl FuseOptions {
    /// What suits the user who runs this: a volume mounted by root is for everybody and honours special files, one
    /// mounted by an ordinary user is that user's own.
    #[must_use]
    pub fn new(volume_name: impl Into<String>, access: Access) -> Self {
        let (sharing, special_files) = if is_root() {
            (Sharing::Everybody, SpecialFiles::Honoured)
        } else {
            (Sharing::OwnerOnly, SpecialFiles::Ignored)
        };
        Self { volume_name: volume_name.into(), sharing, access, special_files, threads: default_threads() }
    }

    pub(crate) fn to_config(&self) -> Config {
        let mut options = vec![
            MountOption::FSName(self.volume_name.clone()),
            // Not `MountOption::Subtype`, which fuser withholds from the kernel when it mounts without a helper.
            MountOption::CUSTOM("subtype=polymux".to_owned()),
            MountOption::DefaultPermissions,
        ];
        options.push(match self.access {
            Access::ReadWrite => MountOption::RW,
            Access::ReadOnly => MountOption::RO,
        });
        options.extend(match self.special_files {
            SpecialFiles::Honoured => [MountOption::Suid, MountOption::Dev],
            SpecialFiles::Ignored => [MountOption::NoSuid, MountOption::NoDev],
        });
        let mut config = Config::default();
        config.mount_options = options;
        config.acl = match self.sharing {
            Sharing::OwnerOnly => SessionACL::Owner,
            Sharing::Everybody => SessionACL::All,
        };
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = true;
        config
    }
}

fn default_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(*THREADS_DEFAULT.start(), usize::from);
    (processors * THREADS_PER_PROCESSOR).clamp(*THREADS_DEFAULT.start(), *THREADS_DEFAULT.end())
}

fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_always_checks_permissions() {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let config = FuseOptions::new("media", access).to_config();
            assert!(config.mount_options.contains(&MountOption::DefaultPermissions));
        }
    }

    #[test]
    fn a_read_only_volume_is_mounted_read_only() {
        let config = FuseOptions::new("media", Access::ReadOnly).to_config();
        assert!(config.mount_options.contains(&MountOption::RO));
        assert!(!config.mount_options.contains(&MountOption::RW));
    }

    #[test]
    fn at_least_two_threads_serve_by_default_and_never_none() {
        assert!(FuseOptions::new("media", Access::ReadWrite).threads >= 2);
        let mut options = FuseOptions::new("media", Access::ReadWrite);
        options.threads = 0;
        assert_eq!(options.to_config().n_threads, Some(1));
    }
}
