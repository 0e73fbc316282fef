//! Tells the kernel about objects that it uses itself, and which descriptions do (DESIGN section 10, docs/design/0017).
//!
//! Invariant: an open is answered as the file system decided, and the open file description is counted there before the answer.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polymux_fs::{
    BackingId, ClosingHeard, FileSystem, HandleId, IoDecision, IoMode, PagesKept, PagesPort, PassthroughPort,
};
use polymux_transport::Device;
use polymux_transport::wire::{OpenFlags, OpenReply};
use polymux_types::Ino;

/// The connection to the kernel, as far as its pages are concerned.
pub(crate) struct Pages(pub(crate) Arc<Device>);

impl PagesPort for Pages {
    fn write_back_and_forget(&self, ino: Ino) -> bool {
        self.0.has_written_back(ino.get())
    }
}

/// The connection to the kernel, as far as objects are concerned.
pub(crate) struct Backings {
    device: Arc<Device>,
    /// The kernel refused, and will again.
    is_refused: AtomicBool,
}

impl Backings {
    /// Tries a registration once, so that a refusal is known from the beginning. The kernel never accepts the device used for this, but only
    /// a caller without `CAP_SYS_ADMIN` gets a permission error.
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let backings = Self { device, is_refused: AtomicBool::new(false) };
        let trial = std::fs::File::open("/dev/null").ok().and_then(|trial| backings.register(trial.as_fd()));
        trial.into_iter().for_each(|backing| backings.forget(backing));
        backings
    }
}

impl PassthroughPort for Backings {
    fn register(&self, object: BorrowedFd<'_>) -> Option<BackingId> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        match self.device.register_backing(object) {
            Ok(number) => Some(BackingId(number)),
            Err(error) => {
                let is_for_ever = error.kind() == std::io::ErrorKind::PermissionDenied;
                if is_for_ever && !self.is_refused.swap(true, Ordering::Relaxed) {
                    log::info!("files are not passed through: the kernel wants CAP_SYS_ADMIN for that ({error})");
                } else if !is_for_ever {
                    log::debug!("an object is not passed through: {error}");
                }
                None
            }
        }
    }

    fn refuses(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    fn forget(&self, backing: BackingId) {
        // A connection that is closed has forgotten it already.
        if let Err(error) = self.device.forget_backing(backing.0)
            && !self.device.is_closed()
        {
            log::warn!("the kernel does not give back object {}: {error}", backing.0);
        }
    }
}

/// The answer to an open.
pub(crate) fn describe(fs: &FileSystem, handle: HandleId) -> polymux_fs::Result<OpenReply> {
    let decision = fs.decide_io_mode(handle).inspect_err(|_| {
        let _ = fs.take_back(handle);
    })?;
    Ok(OpenReply {
        handle: handle.0,
        flags: flags_of(&decision),
        backing: decision.backing.map_or(0, |backing| backing.0),
    })
}

fn flags_of(decision: &IoDecision) -> OpenFlags {
    let through_daemon = OpenFlags::DIRECT_IO.and(OpenFlags::PARALLEL_DIRECT_WRITES);
    let flags = match (decision.mode, decision.pages) {
        (IoMode::Cached, PagesKept::Yes) => OpenFlags::KEEP_CACHE,
        (IoMode::Cached, PagesKept::No) => OpenFlags::default(),
        (IoMode::Direct, _) => through_daemon,
        (IoMode::Passthrough, _) => OpenFlags::PASSTHROUGH,
        (IoMode::PassthroughDirect, _) => OpenFlags::PASSTHROUGH.and(through_daemon),
    };
    match decision.closing {
        ClosingHeard::Yes => flags,
        ClosingHeard::No => flags.and(OpenFlags::NO_FLUSH),
    }
}
