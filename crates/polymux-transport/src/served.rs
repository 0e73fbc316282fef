//! A small file system that serves itself from mounting to unmounting, as tests and measurements need it.

mod flat_directory;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::MountFlags;

use crate::classic::Worker;
use crate::connection::{Connection, Service};
use crate::mounting::{MountAudience, MountSettings, Unmount, mount, unmount};
use crate::negotiation::{Wishes, negotiate};

pub use flat_directory::{FlatDirectory, FlatFiles};

/// A mounted file system that is served by threads of its own; [`Served::unmount`] ends it.
pub struct Served {
    mountpoint: PathBuf,
    connection: Arc<Connection>,
    workers: Vec<Worker>,
}

/// Mount settings of such a file system: access for its owner only, without set-id bits and devices.
fn settings_of_served(source: &str) -> MountSettings {
    MountSettings {
        source: source.to_owned(),
        subtype: "served",
        audience: MountAudience::Owner,
        flags: MountFlags::NOSUID | MountFlags::NODEV,
    }
}

impl Served {
    /// Mounts and serves a file system; `source` is shown as the source of the mount. The threads inherit the settings of the calling thread.
    ///
    /// # Errors
    /// It cannot be mounted, or there are no threads.
    pub fn mount(
        service: impl Service,
        mountpoint: &Path,
        source: &str,
        wishes: Wishes,
        workers: usize,
    ) -> io::Result<Self> {
        let mountpoint = mountpoint.canonicalize()?;
        let device = mount(&mountpoint, &settings_of_served(source))?;
        let served = negotiate(&device, |_| wishes).and_then(|agreement| {
            let connection = Arc::new(Connection::new(Arc::new(device), agreement, service));
            Ok((connection.start(workers)?, connection))
        });
        match served {
            Ok((workers, connection)) => Ok(Self { mountpoint, connection, workers }),
            Err(error) => {
                unmount(&mountpoint, Unmount::Detach)?;
                Err(error)
            }
        }
    }

    /// Unmounts it and waits for its threads.
    ///
    /// # Errors
    /// It is in use, or the connection failed.
    pub fn unmount(self) -> io::Result<()> {
        unmount(&self.mountpoint, Unmount::Idle)?;
        let end = |worker: Worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the transport panicked")))
        };
        // Once these have ended, none is added.
        self.workers.into_iter().try_for_each(end)?;
        self.connection.take_grown().into_iter().try_for_each(end)
    }
}
