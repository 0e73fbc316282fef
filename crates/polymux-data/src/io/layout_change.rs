//! Changes of who owns which block, as one transaction that the store may refuse.
//!
//! Invariant: memory agrees with the store. Extents are put when they change and never again, so a change that the store
//! refused is taken back in memory before another thread may change the layout. Of the map, which may have half a
//! million extents, only what changed is kept for that.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use polymux_records::blockmap::UndoLog;
use polymux_records::error::Result;
use polymux_types::Block;
use polymux_volume::inode::{FileState, Inode, Layout};
use polymux_volume::transaction::Transaction;

use crate::data_path::DataPath;

/// Who may use a file while its layout is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Writers of other blocks are active: they note unsynced ranges and publish sizes meanwhile.
    Writers,
    /// The barrier is held alone.
    Nobody,
}

/// The state that a failed change is rolled back to.
struct Before {
    /// With an empty map.
    layout: Layout,
    map: UndoLog,
    /// State that no other thread changes meanwhile.
    others: Option<Others>,
}

struct Others {
    size: u64,
    /// By the slots of then.
    unsynced: Vec<(u8, u64, u64)>,
}

impl DataPath {
    /// Changes the layout of a file and commits it with whatever `change` adds. The record of the inode is put here.
    pub fn change_layout<T>(
        &self,
        inode: &Inode,
        file: &FileState,
        company: Company,
        change: impl FnOnce(&mut Transaction, &mut Layout) -> Result<T>,
    ) -> Result<T> {
        let before = RefCell::new(None);
        let body = |transaction: &mut Transaction| {
            let mut layout = file.layout.write();
            let others = (company == Company::Nobody)
                .then(|| Others { size: file.size(), unsynced: file.durability.unsynced.lock().clone() });
            let without_map = layout.clone_without_map();
            layout.map.record();
            let result = change(transaction, &mut layout);
            let map = layout.map.end_recording();
            let result = result?;
            layout.cut_lengths(u64::MAX);
            drop(layout);
            *before.borrow_mut() = Some(Before { layout: without_map, map, others });
            transaction.put_inode(inode);
            Ok(result)
        };
        let undo = || before.take().into_iter().for_each(|before| take_back(file, before));
        let result = self.volume.transact_or_undo(&[inode], body, undo)?;
        if before.into_inner().is_some_and(|before| before.layout.objects.len() > 1) {
            file.durability.layout_sequence.fetch_max(inode.last_sequence().0, Ordering::AcqRel);
        }
        Ok(result)
    }
}

/// Puts the layout of a file back as it was before a transaction that the store refused.
fn take_back(file: &FileState, before: Before) {
    let mut layout = file.layout.write();
    file.nodes.mark_map_changed(Block(0)..Block::END);
    let mut map = std::mem::take(&mut layout.map);
    map.take_back(before.map);
    *layout = Layout { map, ..before.layout };
    file.allocation.note_change();
    if let Some(Others { size, unsynced }) = before.others {
        file.sizes.bytes.store(size, Ordering::Release);
        *file.durability.unsynced.lock() = unsynced;
    }
}
