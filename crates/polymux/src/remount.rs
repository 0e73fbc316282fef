//! `mount -o remount`: changes the permitted uses of a mounted volume, without unmounting it.
//!
//! Invariants:
//! * Everything that a remount can change lies in the kernel: read-only or not, `nosuid`, `nodev`, `noexec`, `nosymfollow`. The kernel
//!   refuses `ro` with EBUSY while a file is open for writing. All other options are of the daemon, and are refused.
//! * An option that is not named stays as it is: mount(8) gives helpers the options that it reads in the mount table, and a user who
//!   calls the helper directly gives none.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use polymux_config::request::OpenRequest;
use polymux_fs::Access;
use polymux_fuse::MountFlags;
use rustix::fs::StatVfsMountFlags;

use crate::client;
use crate::mount_options::RequestedOptions;
use crate::mount_table::{MountTable, is_polymux};
use crate::protocol::{Answer, Request};
use polymux_config::registry::Registry;

/// The option itself.
const REMOUNT: &str = "remount";

fn split(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).map(str::trim)
}

/// Whether these options ask for it.
pub fn is_asked_for(lists: &[String]) -> bool {
    split(lists).any(|option| option == REMOUNT)
}

/// Options that the mount table shows of every volume, and that stay as they are.
fn is_of_mount_table(option: &str) -> bool {
    let starts = ["user_id=", "group_id=", "fsname=", "subtype=", "source="];
    matches!(option, "default_permissions" | "allow_other" | "relatime")
        || starts.iter().any(|start| option.starts_with(start))
}

/// The changes that are asked of the kernel; all other options are refused.
fn requested(lists: &[String]) -> Result<RequestedOptions> {
    let changes = split(lists).filter(|option| *option != REMOUNT && !is_of_mount_table(option));
    let requested = RequestedOptions::parse(changes)?;
    let of_kernel = RequestedOptions {
        volume: OpenRequest { access: requested.volume.access, ..OpenRequest::default() },
        restrictions: requested.restrictions,
        ..RequestedOptions::default()
    };
    if requested != of_kernel {
        let volume = OpenRequest { access: None, ..requested.volume };
        let others = RequestedOptions { volume, restrictions: Default::default(), ..requested };
        bail!("`{}` cannot be changed while the volume is mounted: unmount it, and mount it again", others.to_list());
    }
    Ok(requested)
}

/// The flags that hold, of those that a mount has.
fn present_flags(flags: StatVfsMountFlags) -> MountFlags {
    let known = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        // Not in statvfs(3) of the C library; the kernel has it since Linux 5.10.
        (StatVfsMountFlags::from_bits_retain(0x2000), MountFlags::NOSYMFOLLOW),
    ];
    known.into_iter().filter(|(shown, _)| flags.contains(*shown)).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}

/// Changes the options of the volume that is mounted on a directory.
///
/// # Errors
/// No volume is mounted there, an option cannot be changed, or the kernel refuses.
pub fn run(registry: &Registry, mount_point: &Path, lists: &[String]) -> Result<()> {
    let requested = requested(lists)?;
    let place = mount_point.canonicalize().with_context(|| mount_point.display().to_string())?;
    let mount = MountTable::read()?
        .at(&place)
        .filter(|mount| is_polymux(mount))
        .cloned()
        .ok_or_else(|| anyhow!("no volume is mounted on {}", place.display()))?;
    if requested.volume.access == Some(Access::ReadWrite)
        && let Some(Answer::Status(status)) = client::ask(registry, &mount.source, &Request::Status)?
        && status.read_only
    {
        bail!(
            "volume `{}` was mounted read-only, and its daemon changes nothing: unmount it, and mount it again",
            mount.source
        );
    }
    let present = present_flags(rustix::fs::statvfs(&place)?.f_flag);
    let mut flags = requested.restrictions.over(present);
    match requested.volume.access {
        Some(Access::ReadOnly) => flags |= MountFlags::RDONLY,
        Some(Access::ReadWrite) => flags -= MountFlags::RDONLY,
        None => {}
    }
    rustix::mount::mount_remount(&place, flags, c"").map_err(|error| match error {
        rustix::io::Errno::BUSY => anyhow!("{} is in use: a file is open for writing", place.display()),
        error => anyhow!("{}: {error}", place.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &str) -> Result<RequestedOptions> {
        requested(&[list.to_owned()])
    }

    #[test]
    fn what_mount_repeats_from_its_table_changes_nothing() {
        let found = of("rw,remount,ro,relatime,user_id=0,group_id=0,default_permissions,allow_other,noexec").unwrap();
        assert_eq!(found.volume.access, Some(Access::ReadOnly));
        assert_eq!(found.restrictions.on, MountFlags::NOEXEC);
    }

    #[test]
    fn options_of_the_daemon_are_refused_by_name() {
        for option in ["passthrough=off", "noatime", "degraded", "extended_attributes=off"] {
            let error = of(&format!("remount,ro,{option}")).unwrap_err().to_string();
            assert!(error.contains(option) && !error.contains("ro,"), "{error}");
        }
        assert!(of("remount,sync").is_err());
    }

    #[test]
    fn flags_that_hold_are_kept() {
        let shown = StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOSUID | StatVfsMountFlags::RELATIME;
        assert_eq!(present_flags(shown), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME);
    }
}
