//! Reads and overwrites files of a mounted Polymux volume past the mount (docs/design/0046, docs/design/0048).
//!
//! A [`File`] is an open file like any other. After some reads it asks the daemon of its volume for a lease: a copy of the map that says which tier has which bytes, and
//! descriptors of the objects there. From then on a read, or a write of blocks that exist, is one call to the file system of the tier, instead of one to the kernel's FUSE and, of bytes that are not in memory, a
//! message to the daemon. A [`Reader`] does that for an open file of somebody else, such as a program that knows nothing of leases.
//!
//! Invariants:
//! * A read returns the bytes that the same read of the mounted file would return. Whatever is in the way (a file that is open for changes, a move, a daemon of another
//!   version, one that dies, a file that is on no volume), the read goes through the kernel.
//! * Bytes that were read past the mount are believed only if the map was still true afterwards, and the daemon alive.
//! * A write past the mount is announced to the daemon, which waits for it before it uses the bytes otherwise. One that took so long that the daemon went on is made again through the kernel, before
//!   the call returns.
//! * No thread is started, and no signal handled. All descriptors are closed on exec; a fork shares them, and the lease with them.
//!
//! ```no_run
//! let file = polymux_client::File::open("/media/data/table")?;
//! let mut block = [0; 4096];
//! let count = file.read_at(&mut block, 1 << 20)?;
//! println!("{count} bytes, {}", file.report());
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod file;
mod host;
mod lease;
mod reader;
mod report;

pub use file::{File, open_past_pages, wish_for};
pub use host::{FileIdentity, Host, Linked};
pub use lease::WRITE_MAX;
pub use polymux_types::LeaseWish;
pub use reader::{LANES, Reader};
pub use report::{Report, Way};
