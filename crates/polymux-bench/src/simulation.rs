//! Programs over a volume of two tiers in virtual time: the file system, its policies, planner and movers are those of the product; tiers, devices,
//! page cache and programs are simulated.
//!
//! Invariants:
//! * A program reads blocks. A block in the page cache costs it a moment; another one is read from the file system, where a simulated device
//!   takes its time, and is in the page cache from then on.
//! * Time stands still while a thread computes that has to do with it, so that the speed and load of the machine change next to nothing.
//! * Programs are threads. The order in which two of them come to the same device at the same moment is left to the machine, so that two runs
//!   differ as two runs on devices do, only less.
//!
//! ```text
//! readers ─► page cache ─► FileSystem::read ─► MemoryTier ─► SimulatedDevice ─► VirtualTime
//!                          volume_step, move_step, tier_step: a thread each, as in a daemon
//! ```

mod page_cache;
mod programs;
mod volume;

pub use programs::{Caches, Readers, Simulation};
pub use volume::DeviceOf;
