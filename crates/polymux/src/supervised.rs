//! The daemon's side of a supervised mount: its link to the supervisor, and the state inherited from the previous daemon (docs/design/0037).
//!
//! Invariants:
//! * A daemon that takes over owns the volume's lock from the beginning: the supervisor has a copy of the locked descriptor, so that no other
//!   mount comes between two daemons.
//! * Until `keep_state` the supervisor has nothing to start another daemon for; after `let_go` it does not start one any more.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use polymux_fs::{FileSystem, KernelConnection};
use polymux_fuse::{FuseOptions, Keeper, Session, Supervision, take_over};

use crate::supervision::link::{Inheritance, Link};

/// The supervisor of this daemon.
pub struct Supervised {
    link: Arc<Link>,
    generation: u64,
    open_files: File,
    inheritance: Option<Inheritance>,
}

impl Supervised {
    /// The supervisor that started this process, whose socket is standard input.
    pub fn connect() -> Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned().context("the supervisor's socket")?;
        let (link, beginning) = Link::connect(socket).context("the supervisor of this mount")?;
        Ok(Self {
            link,
            generation: beginning.generation,
            open_files: beginning.open_files,
            inheritance: beginning.inheritance,
        })
    }

    /// The connection to it.
    pub fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    /// The kernel's connection of the volume.
    pub fn connection(&self) -> KernelConnection {
        if self.inheritance.is_some() { KernelConnection::TakenOver } else { KernelConnection::New }
    }

    /// The lock of the volume, where an earlier daemon took it.
    pub fn take_lock(&mut self) -> Option<OwnedFd> {
        self.inheritance.as_mut()?.lock.take()
    }

    /// Mounts, or takes the mount of an earlier daemon over.
    pub fn serve(self, fs: Arc<FileSystem>, mount_point: &Path, options: &FuseOptions) -> io::Result<Session> {
        let keeper: Arc<dyn Keeper> = self.link;
        let supervision = Supervision { keeper, open_files: self.open_files, generation: self.generation };
        match self.inheritance {
            None => polymux_fuse::mount(fs, mount_point, options, Some(supervision)),
            Some(Inheritance { devices, state, .. }) => {
                let inheritance = polymux_fuse::Inheritance { devices, agreement: state };
                take_over(fs, mount_point, options, supervision, inheritance)
            }
        }
    }
}

/// Has the supervisor keep a mount that can outlive this process. Returns why it does not, where it does not.
pub fn keep(link: Option<&Arc<Link>>, session: &Session) -> Result<Option<String>> {
    match (link, session.state_to_keep()) {
        (Some(link), Ok(state)) => match link.keep_state(&state) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Some("its supervisor is gone".to_owned())),
            Err(error) => Err(error).context("the supervisor of this mount"),
        },
        (link, Err(reason)) => {
            if let Some(link) = link {
                link.let_go();
            }
            Ok(Some(reason.to_owned()))
        }
        (None, Ok(_)) => Ok(Some("no supervisor keeps it".to_owned())),
    }
}
