//! Free space for writes that the kernel has collected and not sent yet (docs/design/0036).
//!
//! Invariants:
//! * Free space is *short* while the volume has less of it than twice the bytes that the kernel may hold back of a connection, and a margin.
//!   The thread of `pending` looks how much is available after each [`WriteRoom::look_after`] bytes that were written or reserved, and each
//!   second (every five seconds in an idle volume).
//! * While it is short, the kernel asks for attributes before each write to a file that it collects for (it may keep none), and that
//!   request is answered only after all collected data of the file was written (`pending`). Where too little is left then, the
//!   answer is `ENOSPC`, and the write returns it (`admission`).
//! * The kernel is notified of a file that is opened or made at the moment of the change when the file is opened, or at the next look.
//!
//! So concurrent writes of at most half the margin find free space when the kernel sends them, unless a mapping was stored to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::adapter::Adapter;
use crate::write_back::WriteBack;

/// Bytes on top of those that the kernel may hold back, for writes of others between two checks.
const SPARE: u64 = 64 << 20;
/// Share of the dirty data of the machine that the kernel lets one FUSE connection hold back (`max_ratio` of its
/// `backing_dev_info`, in per cent).
const SHARE_OF_CONNECTION_PERCENT: u64 = 1;
/// `vm.dirty_ratio` where it cannot be read, in per cent.
const DIRTY_RATIO_DEFAULT: u64 = 20;
/// Memory of the machine where it cannot be read: as much as few machines have.
const MEMORY_DEFAULT: u64 = 256 << 30;

/// Whether the kernel may collect writes of programs.
pub(crate) struct WriteRoom {
    /// Bytes of free space below which it is short.
    mark: u64,
    is_short: AtomicBool,
    /// Bytes that were written since the last look.
    unseen: AtomicU64,
}

impl WriteRoom {
    pub(crate) fn new() -> Self {
        Self {
            mark: held_back_max().saturating_mul(2).saturating_add(SPARE),
            is_short: AtomicBool::new(false),
            unseen: AtomicU64::new(0),
        }
    }

    /// The kernel may have to ask: it is not known yet whether space was short under an earlier daemon. The first check finds out.
    pub(crate) fn assume_short(&self) {
        self.is_short.store(true, Ordering::Release);
    }

    /// Whether the kernel has to ask before it collects a write.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Acquire)
    }

    fn look_after(&self) -> u64 {
        self.mark / 8
    }
}

impl Adapter {
    /// Bytes were written, or space was reserved.
    pub(crate) fn note_written(&self, bytes: u64) {
        if self.write_back == WriteBack::Off {
            return;
        }
        let unseen = self.room.unseen.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if unseen >= self.room.look_after() {
            self.room.unseen.store(0, Ordering::Relaxed);
            self.pending.wake();
        }
    }

    /// Checks the free space, and notifies the kernel where it is short. By one thread only.
    pub(crate) fn look_for_room(&self) {
        let Ok(space) = self.fs.space() else { return };
        // Not back and forth at the mark.
        let mark = if self.room.is_short() { self.room.mark / 4 * 5 } else { self.room.mark };
        let is_short = space.available < mark;
        let was_short = self.room.is_short.swap(is_short, Ordering::AcqRel);
        if is_short && !was_short {
            log::info!(
                "{} MiB are available: each write waits until it is known that it has room",
                space.available >> 20
            );
        }
        if is_short {
            // At each look: the answer to a creation may have been on its way at the last one.
            self.fs.files_open_for_changes().iter().for_each(|ino| self.device.expire_attributes(ino.get()));
        }
    }
}

/// Most bytes that the kernel holds back of a connection, about.
fn held_back_max() -> u64 {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let of_machine = match number("/proc/sys/vm/dirty_bytes") {
        Some(bytes) if bytes > 0 => bytes,
        _ => memory_bytes() / 100 * number("/proc/sys/vm/dirty_ratio").unwrap_or(DIRTY_RATIO_DEFAULT),
    };
    of_machine / 100 * SHARE_OF_CONNECTION_PERCENT
}

/// Memory of the machine.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map_or(MEMORY_DEFAULT, |kibibytes| kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_holds_back_a_small_part_of_memory_for_one_connection() {
        let held = held_back_max();
        assert!(held > 0 && held < memory_bytes() / 10, "{held}");
    }
}
