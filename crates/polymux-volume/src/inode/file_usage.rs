//! How programs use a file.

use std::sync::atomic::{AtomicBool, AtomicU64};

use polymux_types::sync::Mutex;

use super::expected_use::ExpectedUse;
use super::read_streams::ReadStreams;
use super::small_syncs::SmallSyncs;
use super::write_streams::WriteStreams;

/// How programs use a file.
#[derive(Debug, Default)]
pub struct FileUsage {
    /// Streams of reads, while it is on several tiers. A leaf.
    pub read_streams: Mutex<ReadStreams>,
    /// Streams of writes, while it is not spread. A leaf.
    pub write_streams: Mutex<WriteStreams>,
    /// Small syncs that programs asked for in a row.
    pub small_syncs: SmallSyncs,
    /// Its directory was notified that programs wait for its writes.
    pub is_noted_waited_for: AtomicBool,
    /// Its directory was notified that it is a message.
    pub is_noted_message: AtomicBool,
    /// It was made in a directory of files whose writes programs wait for.
    pub expected: ExpectedUse,
    /// When the last description was closed, on the volume's clock in milliseconds; 0 before.
    pub closed_ms: AtomicU64,
}
