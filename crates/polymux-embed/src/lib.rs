//! A volume inside a program, without a mount and without FUSE.
//!
//! [`Volume::open`] opens a volume by its name, as `polymux mount` would, and this process has it for itself until it is closed: a daemon
//! that serves it, or another program that has it open, is named in the error. Everything is done by calls within the process, so there is
//! no message to a daemon, no copy through the kernel's FUSE queue, and a split file costs no more than its tiers.
//!
//! ```no_run
//! use std::io::Write;
//!
//! use polymux_embed::{FileOptions, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::open("media")?;
//! volume.make_directory("/logs", 0o755)?;
//! let mut file = volume.open_file("/logs/today", &FileOptions::new().write().create(0o644).append())?;
//! file.write_all(b"started\n")?;
//! file.sync_data()?;
//! file.close()?;
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! * **Semantics** are those of the mount (`SEMANTICS.md`): the calls of the same names in POSIX, errors with their numbers, permissions
//!   checked for the user of this process ([`VolumeOptions::identity`]). Paths begin at the root of the volume, with or without a slash;
//!   a symbolic link with an absolute target is followed within the volume.
//! * **Durability**: [`File::sync_data`], [`File::sync_all`] and [`Volume::sync`] return when the tiers have the bytes. A program that
//!   dies without closing its volume is like a daemon that is killed: everything synced is there after the next open, and changes
//!   that were acknowledged without a sync survive as those of a killed daemon do.
//! * **Ownership**: a [`File`] or [`Directory`] keeps its volume open. [`Volume::close`] refuses while there are any. Dropping the last of
//!   them closes the volume, and only logs an error.
//! * **Threads**: everything may be used from any thread. The background work of the volume (write-back, moves between tiers, recovery)
//!   runs on threads of this process.
//! * **fork**: the child of a fork has none of those threads, and must not write to the tiers beside its parent. In the child every call
//!   fails with `ENOTCONN`, and dropping does nothing. A child that executes another program is no problem.
//!
//! Direction of calls: `volume` (paths) → `file`, `directory` → `resolution` → `opened`.

#![forbid(unsafe_code)]

mod directory;
mod file;
mod open_error;
mod opened;
mod options;
mod resolution;
mod volume;

pub use directory::Directory;
pub use file::{File, FileOptions};
pub use open_error::OpenError;
pub use options::VolumeOptions;
pub use resolution::LastLink;
pub use volume::{CloseError, Volume};

pub use polymux_fs::{
    Access, AllocateKind, Attributes, Caller, DirectoryEntry, Error, FileKind, FileSystem, MissingTiers, NodeKind,
    RenameMode, Result, SeekTarget, SetAttributes, SetTime, SyncKind, VolumeSpace, XattrMode,
};
pub use polymux_types::{Errno, Ino, Timestamp};
