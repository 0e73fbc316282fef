//! `polymux-bench move`, `move-interference`, `move-latency`, `move-hot-set`, `move-watermarks`: how fast files change their tier, at
//! which cost to applications, and where they end.
//!
//! Method:
//! * Devices are those of [`crate::throttled`]; the speed of a device is measured natively in the same run.
//! * The volume is prepared without limits, and nothing of it is in memory when the clock starts: the file systems below
//!   were mounted anew.
//! * A move ends when its job is done, all of it is durable, and the source's bytes are freed.

pub mod hot_set;
pub mod interference;
pub mod latency;
pub mod native;
pub mod open_loop;
pub mod rates;
pub mod single_server;
pub mod tiered;
pub mod watermarks;
