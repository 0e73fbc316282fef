//! Options of one mount, and the corresponding settings of the kernel.
//!
//! The kernel always checks permissions: there is no way to switch `default_permissions` off.

use polymux_fs::Access;
use polymux_transport::{MountAudience, MountFlags, MountSettings, ProcessorLatency};

/// Who may use the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Only the user who mounted it.
    OwnerOnly,
    /// Every user, within the permissions of the files (`allow_other`).
    Everybody,
}

/// How requests of the kernel come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through `io_uring` where the kernel offers it, else as ever.
    #[default]
    Auto,
    /// As ever: threads read them from `/dev/fuse`.
    Classic,
    /// Through `io_uring`. Where the kernel does not offer it, the volume is mounted all the same, with a warning.
    IoUring,
}

/// How the kernel and the daemon share the work of reading and writing. For a whole mount it can be only one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoStyle {
    /// [`IoStyle::WriteBack`] where the mount outlives its daemon (docs/design/0037), so that nothing which the kernel collected is lost with that;
    /// else [`IoStyle::Passthrough`].
    #[default]
    Auto,
    /// The kernel reads and writes whole files on one tier directly where it may (docs/design/0017), and sends each write to the others as
    /// soon as a program makes it.
    Passthrough,
    /// The kernel collects writes in its page cache, as it does for a local file system, and sends them later, in large pieces
    /// (docs/design/0036).
    WriteBack,
}

/// Whether files have extended attributes, ACLs among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtendedAttributes {
    /// They do.
    #[default]
    Kept,
    /// Not on this mount: requests for them fail as not supported, and the kernel does not ask for capabilities of its
    /// own accord, which costs a message for each file that is written to and another for each that changes hands. Attributes
    /// from other mounts stay; ACLs among them do not count meanwhile.
    Refused,
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
    /// Restrictions by the kernel on files of the mount: `NOSUID`, `NODEV`, `NOEXEC`, `NOSYMFOLLOW`. Without root the
    /// first two always hold: `fusermount3` adds them in any case.
    pub restrictions: MountFlags,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// How requests come.
    pub transport: Transport,
    /// Whether idle processors are kept awake during bursts of requests.
    pub processor_latency: ProcessorLatency,
    /// How reads and writes are shared with the kernel.
    pub io: IoStyle,
    /// Whether files have extended attributes.
    pub extended_attributes: ExtendedAttributes,
}

/// Fewest and most threads that are chosen by default: several wait for devices while others serve; no more than sixteen,
/// because each takes its own reading buffer.
const THREADS_DEFAULT: std::ops::RangeInclusive<usize> = 8..=16;
/// Threads for each processor: a thread that waits for a device holds no processor.
const THREADS_PER_PROCESSOR: usize = 4;

impl FuseOptions {
    /// Defaults for the user who runs this: a volume mounted by root is for all users and honours special files, one
    /// mounted by an ordinary user is that user's own.
    #[must_use]
    pub fn new(volume_name: impl Into<String>, access: Access) -> Self {
        let (sharing, restrictions) = if is_root() {
            (Sharing::Everybody, MountFlags::empty())
        } else {
            (Sharing::OwnerOnly, MountFlags::NOSUID | MountFlags::NODEV)
        };
        Self {
            volume_name: volume_name.into(),
            sharing,
            access,
            restrictions,
            threads: default_threads(),
            transport: Transport::default(),
            processor_latency: ProcessorLatency::default(),
            io: IoStyle::default(),
            extended_attributes: ExtendedAttributes::default(),
        }
    }

    /// The settings of the mount.
    pub(crate) fn to_settings(&self) -> MountSettings {
        let mut flags = self.restrictions;
        if self.access == Access::ReadOnly {
            flags |= MountFlags::RDONLY;
        }
        let audience = match self.sharing {
            Sharing::OwnerOnly => MountAudience::Owner,
            Sharing::Everybody => MountAudience::Everybody,
        };
        MountSettings { source: self.volume_name.clone(), subtype: "polymux", audience, flags }
    }
}

fn default_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(*THREADS_DEFAULT.start(), usize::from);
    (processors * THREADS_PER_PROCESSOR).clamp(*THREADS_DEFAULT.start(), *THREADS_DEFAULT.end())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_volume_is_mounted_read_only() {
        for (access, is_read_only) in [(Access::ReadOnly, true), (Access::ReadWrite, false)] {
            let settings = FuseOptions::new("media", access).to_settings();
            assert_eq!(settings.flags.contains(MountFlags::RDONLY), is_read_only);
        }
    }

    #[test]
    fn restrictions_reach_the_kernel_and_no_others() {
        let mut options = FuseOptions::new("media", Access::ReadWrite);
        for restrictions in [MountFlags::empty(), MountFlags::NOSUID, MountFlags::NOEXEC | MountFlags::NOSYMFOLLOW] {
            options.restrictions = restrictions;
            assert_eq!(options.to_settings().flags, restrictions);
        }
    }

    #[test]
    fn several_threads_serve_by_default() {
        assert!(FuseOptions::new("media", Access::ReadWrite).threads >= 2);
    }
}
