//! Memory and messages that a daemon and a program share while the program uses a file past the mount (docs/design/0046, docs/design/0048).
//!
//! Invariants:
//! * A map is written once, before it is handed out. It is true until its state word says that it is recalled, or the daemon is dead; both are
//!   final, and a program looks at both after it has read an object and before it believes the bytes.
//! * A program can write to its counters of uses and to nothing else. The daemon believes them no more than it believes reads; by the number of writes under way a program can
//!   keep it waiting, for a bounded time.
//! * Shared memory never changes its length, so that neither side can be made to fault.
//! * Neither side trusts lengths, indices or versions of the other.
//!
//! A program asks for a ticket on the open file ([`command`]), which only a process that the kernel let open the file can do; shows the ticket at the door of
//! the daemon ([`message`]), a socket; and gets descriptors: the word that ends with the daemon ([`Life`]), the map ([`LeasedMap`]), the counters
//! ([`UseCounts`]) and the objects, opened to be read, or to be written, too, where the file was.

pub mod command;
mod counts;
mod life;
mod map;
mod memory;
pub mod message;

pub use counts::UseCounts;
pub use life::{Life, LifeKeeper};
pub use map::{Changes, LeasedMap, RUNS_MAX, Written};
pub use memory::{Access, SharedMemory};

/// Version of everything in this crate. Another version is refused, and the program goes through the kernel.
pub const VERSION: u32 = 2;
