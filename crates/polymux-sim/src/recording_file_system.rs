//! A file system that records the operations on it, and makes the states that a power failure may leave.
//!
//! Properties:
//! * It is mounted by FUSE, so that code which does its file I/O by itself is recorded as it is. It keeps everything in
//!   memory. It holds any number of *recorded directories*, each with a record of its own: every change of a file or a
//!   name, and every sync, in the order in which programs made them.
//! * [`CrashStates`] goes through a record and lists the possible states at each operation; its module states the rules. An
//!   [`Image`] of such a state is loaded as a recorded directory of its own, and so a recovery can be crashed again.
//! * A recorded directory can be stopped at any operation, as if the process had been killed there: all later operations
//!   fail, until it goes on. Nothing is lost by that; data that was not durable still is not.
//!
//! ```text
//!  program ──► kernel ──► server ──► tree ──► record ──► crash states ──► image ──load──► another recorded directory
//! ```

mod content;
mod crash_states;
mod record;
mod server;
mod tree;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use polymux_transport::{Served, Wishes};
use tempfile::TempDir;

use self::server::Server;
use self::tree::Tree;

pub use content::Content;
pub use crash_states::{CrashStates, Fate, NameOrder};
pub use record::{Change, Durability, Image, Node, NodeId, NodeKind, Operation, Record};

/// A mounted file system; unmounted when it is dropped.
pub struct RecordingFileSystem {
    tree: Arc<Mutex<Tree>>,
    session: Option<Served>,
    mountpoint: TempDir,
}

impl RecordingFileSystem {
    /// Mounts one at a temporary directory.
    ///
    /// # Errors
    ///
    /// The kernel has no FUSE, or this user may not mount.
    pub fn mount() -> io::Result<Self> {
        let mountpoint = tempfile::tempdir()?;
        let tree = Arc::new(Mutex::new(Tree::new()));
        let server = Server { tree: tree.clone() };
        let session = Served::mount(server, mountpoint.path(), "polymux-recording", Wishes::default(), 1)?;
        Ok(Self { tree, session: Some(session), mountpoint })
    }

    /// As [`RecordingFileSystem::mount`]. Without root or `/dev/fuse` there is none, and the reason is printed past the test
    /// harness, which captures the output of a passing test.
    ///
    /// # Panics
    ///
    /// Root cannot mount although there is a `/dev/fuse`.
    #[must_use]
    pub fn mount_or_skip() -> Option<Self> {
        let reason = if !rustix::process::geteuid().is_root() {
            "only root mounts the recording file system"
        } else if !Path::new("/dev/fuse").exists() {
            "there is no /dev/fuse"
        } else {
            return Some(Self::mount().expect("root can mount"));
        };
        let _ = writeln!(io::stderr(), "skipped: {reason}");
        None
    }

    /// A recorded directory that begins with an image, all of it durable.
    #[must_use]
    pub fn load(&self, image: &Image) -> RecordedDirectory {
        let root = self.tree.lock().load(image);
        let path = self.mountpoint.path().join(root.0.to_string());
        RecordedDirectory { tree: self.tree.clone(), root, path }
    }
}

impl Drop for RecordingFileSystem {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.unmount()
        {
            eprintln!("{} stays mounted: {error}", self.mountpoint.path().display());
        }
    }
}

/// A directory whose operations are recorded; gone when this is dropped.
pub struct RecordedDirectory {
    tree: Arc<Mutex<Tree>>,
    root: NodeId,
    path: PathBuf,
}

impl RecordedDirectory {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Operations recorded so far; the position of the next one.
    #[must_use]
    pub fn position(&self) -> usize {
        self.tree.lock().record(self.root).operations.len()
    }

    /// The operations so far.
    #[must_use]
    pub fn record(&self) -> Record {
        self.tree.lock().record(self.root).clone()
    }

    /// Tells each later operation to `observer`, in the order of the record and before the program goes on. It must not use
    /// this file system.
    pub fn observe(&self, observer: impl Fn(&Operation) + Send + Sync + 'static) {
        self.tree.lock().observe(self.root, Arc::new(observer));
    }

    /// All operations fail from this position on, as for a process that was killed.
    pub fn stop_at(&self, position: usize) {
        self.tree.lock().stop_at(self.root, position);
    }

    /// Operations succeed again.
    pub fn go_on(&self) {
        self.tree.lock().stop_at(self.root, usize::MAX);
    }
}

impl Drop for RecordedDirectory {
    fn drop(&mut self) {
        self.tree.lock().unload(self.root);
    }
}
