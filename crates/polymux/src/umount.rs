//! `polymux umount`: takes a volume out of the tree and waits until its daemon has written everything back and is gone, so that
//! nothing of it keeps the next mount away.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::client;
use crate::mount_table::{MountTable, is_polymux, volumes};
use polymux_config::lock::UNCLEAN_END;
use polymux_config::process_end::{PROGRAM_MARK, ProcessEnd};
use polymux_config::registry::Registry;

/// How long the daemon may take to write back before this stops waiting (the daemon goes on).
const DAEMON_PATIENCE: Duration = Duration::from_secs(120);

/// How open files are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Refuse.
    WhenIdle,
    /// Take the volume out of the tree now; the daemon ends when the last file is closed.
    Lazy,
}

/// Unmounts a volume given by its name or mount point.
pub fn run(registry: &Registry, volume: &str, mode: UnmountMode) -> Result<()> {
    let name = client::volume_name(registry, volume)?;
    let mount_point = mount_point_of(&name, volume)?;
    let daemon = daemon_of(registry, &name);
    unmount(&mount_point, mode)?;
    if mode == UnmountMode::Lazy {
        return Ok(());
    }
    wait_for_lock(registry, &name)?;
    match daemon {
        Some(daemon) if !daemon.is_over_within(DAEMON_PATIENCE) => bail!(
            "{name} is unmounted and everything is written back, but process {} of its daemon has not ended after {} s",
            daemon.id(),
            DAEMON_PATIENCE.as_secs()
        ),
        _ => Ok(()),
    }
}

/// The daemon that serves a volume now. `None` where it is dead, or another user's.
fn daemon_of(registry: &Registry, name: &str) -> Option<ProcessEnd> {
    let mut lock = File::open(registry.lock_path(name)).ok()?;
    if lock.try_lock_shared().is_ok() {
        // The process it names is gone, and another process may have its number.
        return None;
    }
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    ProcessEnd::of_holder(&text)
}

/// The directory that a volume is mounted on, from the kernel's table, which is right also when the daemon is dead.
fn mount_point_of(name: &str, volume: &str) -> Result<PathBuf> {
    let table = MountTable::read()?;
    if let Ok(path) = client::mount_point_path(Path::new(volume))
        && table.at(&path).is_some_and(|mount| is_polymux(mount) && mount.source == name)
    {
        return Ok(path);
    }
    let found: Vec<PathBuf> =
        volumes(&table).filter(|mount| mount.source == name).map(|mount| mount.mount_point.clone()).collect();
    match found.as_slice() {
        [] => Err(anyhow!("volume `{name}` is not mounted")),
        [one] => Ok(one.clone()),
        several => {
            let places: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            bail!("volume `{name}` is mounted on {}: name the mount point", places.join(" and "))
        }
    }
}

fn unmount(mount_point: &Path, mode: UnmountMode) -> Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if mode == UnmountMode::Lazy {
        flags |= UnmountFlags::DETACH;
    }
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => bail!(busy(mount_point)),
        Err(Errno::PERM) => unmount_by_helper(mount_point, mode),
        Err(error) => Err(error).with_context(|| format!("cannot unmount {}", mount_point.display())),
    }
}

/// Users other than root may unmount only through the set-id helper of the system.
fn unmount_by_helper(mount_point: &Path, mode: UnmountMode) -> Result<()> {
    let how = if mode == UnmountMode::Lazy { "-uz" } else { "-u" };
    let output = Command::new("fusermount3")
        .arg(how)
        .arg("--")
        .arg(mount_point)
        .stdin(Stdio::null())
        .output()
        .context("cannot run fusermount3 (Debian's package fuse3 has it)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else if said.contains("busy") {
        bail!(busy(mount_point))
    } else {
        bail!("cannot unmount {}: {}", mount_point.display(), said.trim())
    }
}

fn busy(mount_point: &Path) -> String {
    let place = mount_point.display();
    format!("{place} is busy: a file there is open or somebody's working directory (`fuser -vm {place}` says whose)")
}

/// Waits until the daemon has let go of its lock, which it does when everything is on the tiers.
fn wait_for_lock(registry: &Registry, name: &str) -> Result<()> {
    let Ok(lock) = File::open(registry.lock_path(name)) else {
        // Another user's daemon, or none: the kernel has let go, and there is nothing to wait on.
        return Ok(());
    };
    let start = Instant::now();
    while lock.try_lock_shared().is_err() {
        if std::fs::read_to_string(registry.lock_path(name)).is_ok_and(|used| used.starts_with(PROGRAM_MARK)) {
            // The daemon has ended, and a program that waited for that has the volume now.
            return Ok(());
        }
        if start.elapsed() > DAEMON_PATIENCE {
            bail!(
                "{name} is unmounted, but its daemon still writes back after {} s; it goes on, see {}",
                DAEMON_PATIENCE.as_secs(),
                registry.log_path(name).display()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut said = String::new();
    // No process writes the lock file any more, and a daemon that ended in order left its place and number.
    match (&lock).read_to_string(&mut said) {
        Ok(_) => match said.trim().strip_prefix(UNCLEAN_END) {
            Some(reason) => bail!("{name} is unmounted, but did not end cleanly: {reason}"),
            None => Ok(()),
        },
        Err(error) => Err(error).with_context(|| format!("cannot read {}", registry.lock_path(name).display())),
    }
}
