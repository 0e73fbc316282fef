//! Objects that own no block leave the list of their file (docs/design/0010).
//!
//! What is true here: slots are renumbered only while the barrier is held alone and no sync of the file is under way, so
//! nobody holds the number of a slot meanwhile. A file wholly on one tier has one object and no map.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use crate::blockmap::{BlockMap, END, MapChange, Owner};
use crate::core::{Core, Transaction};
use crate::error::Result;
use crate::inode::{FileState, Inode, Layout};
use crate::space::disown_object;
use crate::store::ObjectEntry;

/// Whether an object of the list owns nothing.
fn has_idle_objects(layout: &Layout) -> bool {
    !layout.objects.is_empty() && layout.map.owners().len() < layout.objects.len()
}

/// Whether slots may get other numbers: only where the barrier is held alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    Stays,
    MayChange,
}

/// What a change of owners may have to be taken back to.
pub(super) struct OwnersBefore {
    map: BlockMap,
    objects: Vec<ObjectEntry>,
    /// With the slots of then, where they were renumbered.
    unsynced: Option<Vec<(u8, u64, u64)>>,
}

impl FileState {
    /// Notes who owns what. `renumbers` says whether the barrier is held alone, so that slots may get other numbers.
    pub(super) fn owners_before(&self, layout: &Layout, numbering: Numbering) -> OwnersBefore {
        let unsynced = (numbering == Numbering::MayChange).then(|| self.unsynced.lock().clone());
        OwnersBefore { map: layout.map.clone(), objects: layout.objects.clone(), unsynced }
    }

    /// Takes a change of owners back that the store refused. Called where the change was made, with the same locks.
    pub(super) fn restore_owners(&self, before: OwnersBefore) {
        let mut layout = self.layout.write();
        self.nodes.mark_map_changed(0..END);
        layout.map = before.map;
        layout.objects = before.objects;
        if let Some(unsynced) = before.unsynced {
            *self.unsynced.lock() = unsynced;
        }
    }

    /// Takes objects that own nothing out of the layout; where home is one of them, the owner of the tail becomes home.
    /// Returns what changed in the map, and the objects, which are to be disowned in the same transaction. Called with the
    /// barrier held alone and, as every change of the layout, inside a transaction.
    pub(super) fn compact(&self, layout: &mut Layout) -> (MapChange, Vec<ObjectEntry>) {
        let owners = layout.map.owners();
        let extender = layout.extender().map(|(slot, _)| slot);
        let is_idle = |slot: u8| !owners.contains(&slot) && extender != Some(slot);
        let slots = || (0_u8..).zip(&layout.objects);
        let kept: Vec<u8> = slots().map(|(slot, _)| slot).filter(|slot| !is_idle(*slot)).collect();
        let home = layout.map.home().expect("a file with objects has a home");
        if kept.len() == layout.objects.len() || kept.is_empty() {
            return (MapChange::default(), Vec::new());
        }
        let dropped = slots().filter(|(slot, _)| is_idle(*slot)).map(|(_, entry)| *entry).collect();
        let new_home = match layout.map.tail() {
            _ if kept.contains(&home) => home,
            Some(Owner::Slot(slot)) => slot,
            Some(Owner::Hole) | None => kept[0],
        };
        let numbers = |slot: u8| {
            let place = kept.iter().position(|old| *old == slot).expect("an owner is kept");
            u8::try_from(place).expect("there are no more slots than before")
        };
        self.nodes.mark_map_changed(0..END);
        let change = layout.map.renumber(new_home, numbers);
        layout.objects = kept.iter().map(|slot| layout.object(*slot)).collect();
        let mut unsynced = self.unsynced.lock();
        unsynced.retain(|(slot, ..)| kept.contains(slot));
        unsynced.iter_mut().for_each(|(slot, ..)| *slot = numbers(*slot));
        (change, dropped)
    }
}

impl Core {
    /// Compacts the list of objects of a file, where there is something to compact.
    pub(super) fn compact_objects(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if !has_idle_objects(&file.layout.read()) {
            return Ok(());
        }
        let _alone = file.lock_alone();
        let _no_sync = file.sync_gate.write();
        let before = RefCell::new(None);
        let change = |transaction: &mut Transaction| {
            let mut layout = file.layout.write();
            if inode.lifecycle.lock().gone || !has_idle_objects(&layout) {
                return Ok(Vec::new());
            }
            *before.borrow_mut() = Some(file.owners_before(&layout, Numbering::MayChange));
            let (change, dropped) = file.compact(&mut layout);
            drop(layout);
            let disowned: Vec<_> = dropped.iter().map(disown_object).collect();
            transaction.put_map_change(inode.ino, &change);
            disowned.iter().for_each(|record| transaction.put_disowned(record));
            transaction.put_inode(inode);
            Ok(disowned)
        };
        let undo = || before.take().into_iter().for_each(|before| file.restore_owners(before));
        let disowned = self.transact_or_undo(&[inode], change, undo)?;
        file.blocks_stale.store(true, Ordering::Release);
        self.disowned.add(&disowned, inode.last_sequence());
        Ok(())
    }
}
