//! Files whose writes programs wait for (M5): which they are, and the requests that their syncs cause on a device.
//!
//! Rules, unless `promotion = "polite"`:
//! * A *small sync* covers bytes of at most [`NODES_MAX`] range nodes. One that covers more ends a stream.
//! * A file is waited for after a few small syncs in a row ([`FileState::is_waited_for`]). A sync at the end of a copy makes no file so, and
//!   neither does a close that makes a file durable.
//! * A *message* is a file of at most [`MESSAGE_FILE_MAX`] that is too large for any small file, and was made since the mount with a name, and synced. A directory in
//!   which a message, or a file taken for one, turns out to be larger is no longer a directory of messages.
//! * A file that was made in a directory of files that are waited for, or of messages, is placed as one (`heat/synced_directories.rs`).
//! * A small sync is a request to the device for each of its nodes, as a small write is.
//! * Lock order: nothing is held while demand is noted or the directory of a file is looked up.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use polymux_policy::{MESSAGE_FILE_MAX, Synced};
use polymux_records::error::Result;
use polymux_records::parts::Promotion;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::SyncOf;
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::space::SyncedBytes;
use smallvec::SmallVec;

use super::heat::SMALL_MAX;
use crate::data_path::DataPath;

/// Range nodes that a small sync covers at most: neighbours, so that both have bytes of it.
const NODES_MAX: u64 = 2;

/// Range nodes with bytes that no sync has made durable, by object.
fn unsynced_nodes(file: &FileState) -> SmallVec<[Range<u64>; 4]> {
    let nodes_of = |(_, start, end): &(u8, u64, u64)| start / RANGE_NODE_SIZE..end.div_ceil(RANGE_NODE_SIZE);
    file.durability.unsynced.lock().iter().map(nodes_of).collect()
}

fn are_few(nodes: &[Range<u64>]) -> bool {
    nodes.iter().map(|nodes| nodes.end - nodes.start).sum::<u64>() <= NODES_MAX
}

/// How much a sync of a file has to bring to the devices. The bytes that the kernel itself wrote are not known.
pub(super) fn synced_bytes(file: &FileState) -> SyncedBytes {
    let bytes: u64 = file.durability.unsynced.lock().iter().map(|(_, start, end)| end - start).sum();
    let is_known = bytes > 0 && !file.is_changed_directly();
    if is_known && bytes <= SMALL_MAX as u64 { SyncedBytes::Few } else { SyncedBytes::Many }
}

impl DataPath {
    /// As [`DataPath::sync_and_report`], for a program that asked for it.
    pub fn sync_for_program(&self, inode: &Inode, file: &FileState, error_seen: &AtomicU32) -> Result<()> {
        if self.volume.options.promotion != Promotion::Prompt {
            return self.sync_and_report(inode, file, error_seen);
        }
        self.note_sync_demand(inode, file);
        let outcome = self.sync_and_report(inode, file, error_seen);
        if outcome.is_ok() {
            self.note_waited_for(inode, file);
        }
        outcome
    }

    /// A sync is about to begin.
    fn note_sync_demand(&self, inode: &Inode, file: &FileState) {
        let written = unsynced_nodes(file);
        if !are_few(&written) {
            file.usage.small_syncs.note_large();
            return;
        }
        // The daemon does not see the kernel's own writes, and assumes that they are small.
        if !written.is_empty() || file.is_changed_directly() || file.direct.outside.may_be_unseen() {
            file.usage.small_syncs.note_small(self.volume.clock.elapsed());
        }
        if self.placement.tier_reads.is_pointless() {
            return;
        }
        let of = if file.direct.growth.grows() { SyncOf::GrowingFile } else { SyncOf::OverwrittenFile };
        for node in written.into_iter().flatten() {
            self.placement.heat.demand.note_small_sync(inode.ino, node, of);
        }
    }

    /// A sync ended.
    fn note_waited_for(&self, inode: &Inode, file: &FileState) {
        // Reported once. For a file that was loaded again, neither an earlier report nor the directory of its creation is known.
        let made_in = Ino(inode.parent.load(Ordering::Relaxed));
        if made_in == Ino(0) || !self.learns_directories() {
            return;
        }
        let directories = &self.placement.heat.synced_directories;
        let may_be_message = || {
            let size = file.size();
            let is_small = file.is_inline() && size <= self.inline_size_max();
            !is_small && size <= MESSAGE_FILE_MAX && inode.common.read().links > 0
        };
        if !file.usage.is_noted_message.load(Ordering::Relaxed)
            && may_be_message()
            && !file.usage.is_noted_message.swap(true, Ordering::Relaxed)
        {
            directories.note_waited_for(made_in, Synced::Message);
        }
        if file.is_waited_for(self.volume.clock.elapsed())
            && !file.usage.is_noted_waited_for.swap(true, Ordering::Relaxed)
        {
            directories.note_waited_for(made_in, Synced::Log);
        }
    }

    /// Whether it matters how files of a directory are used: a tier is better for them than another one, or the metadata store than the only one.
    fn learns_directories(&self) -> bool {
        !self.placement.tier_reads.is_pointless() || self.volume.tiers.all().len() == 1
    }

    /// A file is made in a directory, and its writes may be waited for as those of others there.
    pub(crate) fn expect_use_of(&self, file: &FileState, directory: Ino) {
        if self.volume.options.promotion == Promotion::Prompt && self.learns_directories() {
            file.usage.expected.set(self.placement.heat.synced_directories.note_made(directory));
        }
    }

    /// Called at the last close of a file. If the file is no message after all, its directory no longer counts as one of messages.
    pub fn note_closed(&self, inode: &Inode, file: &FileState) {
        let was_taken_for_message = file.usage.is_noted_message.load(Ordering::Relaxed)
            && !file.usage.is_noted_waited_for.load(Ordering::Relaxed)
            || file.usage.expected.get() == Some(Synced::Message);
        if was_taken_for_message && file.size() > MESSAGE_FILE_MAX {
            file.usage.expected.set(None);
            file.usage.is_noted_message.store(false, Ordering::Relaxed);
            self.placement.heat.synced_directories.forget_messages(Ino(inode.parent.load(Ordering::Relaxed)));
        }
    }

    /// A message was placed on a tier. Above the high mark it is written there instead of on a slower tier, and is charged like a migration.
    pub(super) fn charge_message(&self, file: &FileState, tier: TierId, bytes: u64) {
        if file.usage.expected.get() == Some(Synced::Message)
            && self.volume.tiers.by_id(tier).is_ok_and(|tier| tier.is_above_high_mark())
        {
            self.placement.write_budget.charge(tier, bytes, self.placement.logical_clock.now());
        }
    }
}
