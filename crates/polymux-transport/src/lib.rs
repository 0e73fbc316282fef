//! The kernel's FUSE protocol and the ways its requests come and go. Nothing here knows a file system.
//!
//! ```text
//!  kernel ──/dev/fuse──► classic ──► wire ──► connection ──► a Service ──► Reply ──► /dev/fuse ──► kernel
//!         ──io_uring───► uring ────► wire ──►                         ──► Reply ──► mailbox of the queue ──► kernel
//! ```
//!
//! Invariants:
//! * A request is answered exactly once, by the holder of its [`Reply`], on any thread.
//! * Nothing here holds a lock while it waits for the kernel or for a [`Service`].
//! * A connection can outlive the process that serves it (`keeping`).

#![deny(unsafe_op_in_unsafe_fn)]

mod backing;
mod buffer;
mod classic;
mod connection;
mod counters;
mod device;
mod keeping;
mod mounting;
mod negotiation;
mod pace;
mod planted_death;
mod pool;
mod processor_latency;
mod processor_list;
mod reply;
mod served;
mod turns;
mod unprivileged;
pub mod uring;
pub mod wire;

pub use classic::Worker;
pub use connection::{Connection, ConnectionState, Patience, Service};
pub use counters::MessageCounters;
pub use device::Device;
pub use keeping::{Keeper, Keeping};
pub use mounting::table::{Mount, MountTable};
pub use mounting::{MountAudience, MountSettings, Unmount, mount, unmount};
pub use negotiation::{Agreement, Wishes, negotiate};
pub use processor_latency::{Bursts, ProcessorLatency};
pub use reply::Reply;
pub use rustix::mount::MountFlags;
pub use served::{FlatDirectory, FlatFiles, Served};
