//! A mounted volume: from mounting until the kernel has let go of it.
//!
//! Unmounting is asked of the kernel by path and never waits for this process; [`Session::wait`] returns when the
//! kernel has closed the connection, whoever asked for it. A mount that somebody else made at the same path afterwards
//! is never touched.

use std::ffi::CString;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuser::SessionACL;
use polymux_fs::FileSystem;

use crate::adapter::Adapter;
use crate::connection::end_process_when_transport_panics;
use crate::options::FuseOptions;
use crate::requests::Requests;
use crate::watcher::Watcher;

/// How often whoever waits for the end of a thread looks whether it is worth it.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A mounted volume that is served once [`Session::wait`] runs; requests made before wait for it. Dropped without
/// that, it is unmounted.
pub struct Session {
    session: fuser::Session<Adapter>,
    adapter: Adapter,
    acl: SessionACL,
    mountpoint: PathBuf,
}

/// Asks the kernel to unmount, from any thread and any number of times.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
}

/// Mounts a file system. The mount point must exist.
///
/// # Errors
/// The mount point does not exist, `/dev/fuse` cannot be opened, or the kernel or `fusermount3` refuses.
pub fn mount(fs: Arc<FileSystem>, mountpoint: &Path, options: &FuseOptions) -> io::Result<Session> {
    end_process_when_transport_panics();
    let mountpoint = mountpoint.canonicalize()?;
    let adapter = Adapter { fs, requests: Arc::new(Requests::new()) };
    let config = options.to_config();
    let session = fuser::Session::new(adapter.clone(), &mountpoint, &config)?;
    Ok(Session { session, adapter, acl: config.acl, mountpoint })
}

impl Session {
    /// Serves requests until the volume is unmounted. Threads that hang in a tier which does not answer are left behind then.
    ///
    /// # Errors
    /// The connection to the kernel failed. The volume may then still be mounted, and answers `ENOTCONN`.
    pub fn wait(self) -> io::Result<()> {
        let connection = self.session.as_fd().try_clone_to_owned()?;
        let must_end = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            adapter: self.adapter.clone(),
            connection: connection.try_clone()?,
            acl: self.acl,
            must_end: Arc::clone(&must_end),
        };
        let watcher = thread::Builder::new().name("fuse-watch".to_owned()).spawn(move || watcher.run())?;
        // fuser 0.18 unmounts the path again when its session ends, although it is unmounted by then; by that time
        // another file system may be mounted there. So its handle of the mount is never dropped. What stays behind is
        // one descriptor of a connection that is closed.
        let background = ManuallyDrop::new(self.session.spawn()?);
        // SAFETY: `background` is neither used nor dropped after this, so that the thread's handle has one owner.
        let guard = unsafe { std::ptr::read(&raw const background.guard) };
        let mut outcome = end_of(guard, &connection, &self.adapter);
        must_end.store(true, Ordering::Release);
        let spare = watcher.join().map_err(|_| io::Error::other("the watcher of the FUSE transport panicked"))?;
        for thread in spare {
            outcome = outcome.and(end_of(thread, &connection, &self.adapter));
        }
        outcome
    }

    /// Something that can unmount this volume while [`Session::wait`] runs.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { mountpoint: self.mountpoint.clone() }
    }
}

/// Waits for a thread of the transport; not for one that hangs in a tier while there is no connection any more.
fn end_of(thread: JoinHandle<io::Result<()>>, connection: &OwnedFd, adapter: &Adapter) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let waiting = thread::Builder::new().name("fuse-end".to_owned()).spawn(move || {
        let outcome = thread.join().unwrap_or_else(|_| Err(io::Error::other("the FUSE transport panicked")));
        // Whoever waited may have gone.
        let _ = sender.send(outcome);
    });
    drop(waiting?);
    loop {
        match receiver.recv_timeout(LOOK_INTERVAL) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the FUSE transport ended")),
            Err(RecvTimeoutError::Timeout) => {
                if is_closed(connection) && !adapter.fs.tiers_not_answering().is_empty() {
                    log::warn!("threads that serve requests are left behind in a tier that does not answer");
                    return Ok(());
                }
            }
        }
    }
}

/// Whether the kernel has closed a connection.
fn is_closed(connection: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: connection.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: `asked` is one structure of the length given, and the descriptor is open for as long as it is borrowed.
    let answered = unsafe { libc::poll(&raw mut asked, 1, 0) };
    answered > 0 && asked.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

impl Unmounter {
    /// Unmounts. Fails with `EBUSY` while files are open or somebody's working directory lies within.
    ///
    /// # Errors
    /// As `umount(2)`; a mount point that is not mounted any more is no error.
    pub fn unmount(&self) -> io::Result<()> {
        unmount_path(&self.mountpoint, 0)
    }

    /// Takes the volume out of the tree at once; what is open goes on until it is closed.
    ///
    /// # Errors
    /// As `umount(2)`; a mount point that is not mounted any more is no error.
    pub fn detach(&self) -> io::Result<()> {
        unmount_path(&self.mountpoint, libc::MNT_DETACH)
    }

    /// The directory that the volume is mounted on.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

fn unmount_path(path: &Path, flags: i32) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` is a string that ends with a zero byte and lives beyond the call.
    if unsafe { libc::umount2(name.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOENT) => Ok(()),
        Some(libc::EPERM) => unmount_by_helper(path, flags),
        _ => Err(error),
    }
}

/// Users other than root may unmount only through the set-id helper of the system.
fn unmount_by_helper(path: &Path, flags: i32) -> io::Result<()> {
    let how = if flags & libc::MNT_DETACH == 0 { "-u" } else { "-uz" };
    let mut last = io::Error::from_raw_os_error(libc::EPERM);
    for helper in ["fusermount3", "fusermount"] {
        match Command::new(helper).arg(how).arg("--").arg(path).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmounting_what_is_not_mounted_is_no_error() {
        let directory = std::env::temp_dir().join(format!("polymux-fuse-not-mounted-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let unmounter = Unmounter { mountpoint: directory.clone() };
        let outcome = unmounter.unmount();
        std::fs::remove_dir(&directory).unwrap();
        // Only root is told so by the kernel; others by the helper, in words.
        // SAFETY: geteuid has no arguments and cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            outcome.unwrap();
        }
    }
}
