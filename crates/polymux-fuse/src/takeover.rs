//! Taking over a connection whose daemon died (docs/design/0037).
//!
//! Invariants:
//! * Answers that programs received stay valid: the kernel goes on with its inodes, open file descriptions and dirty pages, and all of these
//!   are present again before the first request is read. Before that, too, the kernel is asked for the requests that an earlier daemon read and
//!   did not answer: it sends again all that are unanswered at that moment, no matter which daemon read them.
//! * References that were counted by an earlier daemon are not known. So the kernel is asked which of the files without a name it has; each of the
//!   others goes at once.
//! * Numbers of descriptions are never used again: those of each daemon begin where no earlier one came to.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use polymux_fs::{FileSystem, HandleId, OpenOptions};
use polymux_transport::wire::Capabilities;
use polymux_transport::{Agreement, Device, Keeper, Keeping};
use polymux_types::{Errno, Ino};

use crate::adapter::Adapter;
use crate::convert;
use crate::open_files::OpenFiles;
use crate::options::FuseOptions;
use crate::session::Session;
use crate::write_back::WriteBack;

/// Most descriptions of one daemon.
const HANDLES_OF_DAEMON: u64 = 1 << 40;

/// Resources that a supervisor gives to each daemon of a mount.
#[derive(Debug)]
pub struct Supervision {
    /// The process.
    pub keeper: Arc<dyn Keeper>,
    /// Memory in which open files are on record.
    pub open_files: File,
    /// Number of daemons before this one.
    pub generation: u64,
}

impl Supervision {
    fn first_handle(&self) -> HandleId {
        HandleId(self.generation * HANDLES_OF_DAEMON + 1)
    }
}

/// State of the daemon before this one, as its supervisor kept it.
#[derive(Debug)]
pub struct Inheritance {
    /// Descriptors of the connection, the one that it was mounted with first.
    pub devices: Vec<OwnedFd>,
    /// The agreement with the kernel ([`Session::state_to_keep`]).
    pub agreement: Vec<u8>,
}

/// Serves the mount of a daemon that died. `fs` was mounted for that ([`polymux_fs::KernelConnection::TakenOver`]).
///
/// # Errors
/// The inherited state has an unknown version or cannot be read; or the file system cannot be used.
pub fn take_over(
    fs: Arc<FileSystem>,
    mountpoint: &Path,
    options: &FuseOptions,
    supervision: Supervision,
    inheritance: Inheritance,
) -> io::Result<Session> {
    let agreement = Agreement::decode(&inheritance.agreement)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the earlier daemon was of another version"))?;
    let mut devices = inheritance.devices.into_iter();
    let first = devices.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no connection"))?;
    let keeping = Keeping::new(Arc::clone(&supervision.keeper), devices.collect());
    fs.set_kernel_collects_writes();
    fs.begin_handles_at(supervision.first_handle());
    let open_files = OpenFiles::within(supervision.open_files);
    let orphans = fs.pin_orphans().map_err(|error| io::Error::other(error.to_string()))?;
    let adapter = Adapter::new(fs, options.extended_attributes, Arc::new(Device::from(first)), &agreement);
    restore(&adapter, &open_files)?;
    let adapter = Adapter { open_files: Arc::new(open_files), ..adapter };
    Ok(Session::of_taken_over(agreement, adapter, keeping, mountpoint.to_owned(), options, orphans))
}

/// Restores the open descriptions that the kernel has.
fn restore(adapter: &Adapter, open_files: &OpenFiles) -> io::Result<()> {
    let open = open_files.take_up()?;
    let count = open.len();
    adapter.programs.know_no_removals();
    for file in open {
        let options = OpenOptions { exclusive: false, truncate: false, ..convert::open_options(file.flags) };
        match adapter.fs.restore_handle(file.handle, file.ino, options) {
            Ok(()) if options.execute => adapter.programs.go_on(file.ino, file.handle.0),
            Ok(()) => {}
            Err(error) => {
                // One that is missing was closed and deleted, and the daemon died before it was taken off the record.
                if error.errno() != Errno::ENOENT {
                    log::error!("inode {}: it is open and cannot be used any more: {error}", file.ino.get());
                }
                open_files.forget(file.handle);
            }
        }
    }
    log::info!("{count} files are open since before this daemon");
    Ok(())
}

/// Why a connection ends with its daemon; `None` where it can outlive it.
pub(crate) fn obstacle(fs: &FileSystem, agreement: &Agreement) -> Option<&'static str> {
    if WriteBack::of(agreement) == WriteBack::Off {
        return Some("the kernel does not collect writes on it");
    }
    if !agreement.capabilities.contains(Capabilities::HAS_RESEND) {
        return Some("the kernel does not send requests again (Linux 6.9)");
    }
    if agreement.capabilities.contains(Capabilities::OVER_IO_URING) {
        return Some("requests come through io_uring");
    }
    (!fs.outlives_its_process()).then_some("no memory outlives the daemon")
}

/// Lets go of the files without a name that the kernel does not have. It is asked by a thread of its own, because it may answer late.
pub(crate) fn ask_for_orphans(adapter: &Adapter, orphans: Vec<Ino>) -> io::Result<()> {
    if orphans.is_empty() {
        return Ok(());
    }
    let adapter = adapter.clone();
    let ask = move || {
        let unknown: Vec<Ino> = orphans.iter().copied().filter(|ino| !adapter.device.has_inode(ino.get())).collect();
        log::info!("{} files without a name are in use, {} are not", orphans.len() - unknown.len(), unknown.len());
        unknown.into_iter().for_each(|ino| adapter.forget_inode(ino, 1));
    };
    thread::Builder::new().name("fuse-orphans".to_owned()).spawn(ask).map(drop)
}
