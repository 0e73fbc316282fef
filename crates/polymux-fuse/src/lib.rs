//! FUSE front end of Polymux: a [`polymux_fs::FileSystem`] served to the kernel.
//!
//! ```text
//!  kernel ──► polymux-transport ──► dispatch ──► names, files, directories, xattrs ──► FileSystem
//! ```
//!
//! Invariants:
//! * The node id that the kernel sees is the inode number; the root is 1. Numbers are never reused, so the generation
//!   is constant (1, and 0 for the root, as the kernel wants it).
//! * Every entry that is answered pins its inode before the answer is sent; only the kernel's forget unpins it.
//! * All changes pass through this mount, so the kernel may keep names, attributes and pages for as long as it likes.
//! * The kernel checks permissions (`default_permissions`), keeps locks, and computes the offset of appends. The parts that it
//!   leaves to the file system (default ACLs, umask, group inheritance) are done by `polymux-fs`.
//! * A thread that hangs in a tier which does not answer is made up for by another one, and its request is answered with an
//!   error after a while (docs/design/0014), so that the mount always answers.
//! * No thread that serves requests waits for the kernel: the one notification that they send (attributes are outdated) neither touches
//!   pages nor takes the lock of an inode. `pending` has a thread of its own for that which has pages written back. The rename of a directory to another
//!   parent has the kernel forget its listing; it may wait for a program that is given names from there, and is served by a thread that may wait. No request handler holds a lock of this
//!   crate but those of `programs`, `listings` and the queue of `pending`, and none of them over a call of the file system.
//! * A connection may outlive its daemon: then the kernel's inodes and open files are on record (`open_files`), the next daemon takes it over
//!   (`takeover`), and carries out nothing twice (`resent`).
//! * A panic below a request becomes `EIO` for that request and an error in the log; the mount goes on.

mod adapter;
mod admission;
mod attribute_flags;
mod convert;
mod directories;
mod dispatch;
mod files;
mod held_writes;
mod leases;
mod listings;
mod names;
mod open_files;
mod options;
mod passthrough;
mod pending;
mod programs;
mod requests;
mod resent;
mod room;
mod session;
mod set_id;
mod takeover;
mod threads;
mod unversioned;
mod watcher;
mod wishes;
mod write_back;
mod xattrs;

pub use options::{ExtendedAttributes, FuseOptions, IoStyle, Sharing, Transport};
pub use polymux_transport::{Bursts, ConnectionState, Keeper, Mount, MountFlags, MountTable, ProcessorLatency};
pub use session::{Session, Unmounter, mount};
pub use takeover::{Inheritance, Supervision, take_over};
