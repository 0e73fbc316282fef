//! Simulated tiers and stores, for tests only.
//!
//! Invariants:
//! * Everything passes the same conformance suites as the real thing.
//! * A simulated medium has two images: the acknowledged one and the durable one. A crash leaves the durable
//!   one, so a test that forgets a sync loses its bytes, as it would on a real disk.
//! * A fault happens only where a test asked for it.

#![forbid(unsafe_code)]

pub mod crash_states;
mod faults;
mod faulty_tier;
mod memory_ground;
mod memory_object;
mod memory_store;
mod memory_tier;
pub mod recording;
pub mod recording_file_system;
mod simulated_device;
mod virtual_time;

pub use faults::OperationKind;
pub use faulty_tier::FaultyTier;
pub use memory_store::MemoryStore;
pub use memory_tier::MemoryTier;
pub use simulated_device::{DeviceSpeed, Served, SimulatedDevice};
pub use virtual_time::{Actor, VirtualTime};
