//! Objects that own no block leave the list of their file (docs/design/0010).
//!
//! Invariants: slots are renumbered only while the barrier is held alone and no sync of the file is under way, so no
//! thread holds the number of a slot meanwhile. A file wholly on one tier has one object and no map.

use polymux_data::io::Company;
use polymux_records::error::Result;
use polymux_records::store::DisownedRecord;
use polymux_volume::inode::{FileState, Inode, Layout};
use polymux_volume::transaction::Transaction;

use crate::Mover;

/// Whether an object of the list owns nothing.
fn has_idle_objects(layout: &Layout) -> bool {
    !layout.objects.is_empty() && layout.map.owners().len() < layout.objects.len()
}

impl Mover {
    /// Compacts the list of objects of a file, where there is something to compact.
    pub(crate) fn compact_objects(&self, inode: &Inode, file: &FileState) -> Result<()> {
        if !has_idle_objects(&file.layout.read()) {
            return Ok(());
        }
        let _alone = file.lock_alone();
        let extender_is_idle = {
            let layout = file.layout.read();
            layout.extender().is_some_and(|(slot, _)| !layout.map.owners().contains(&slot))
        };
        if extender_is_idle {
            // It owned the last block once, and would be kept for the size that it knows.
            self.data.settle(inode, file)?;
        }
        let _no_sync = file.durability.sync_gate.write();
        let change = |transaction: &mut Transaction, layout: &mut Layout| {
            if inode.lifecycle.lock().gone || !has_idle_objects(layout) {
                return Ok(Vec::new());
            }
            let (change, dropped) = file.compact(layout, |entry| !self.volume.disowned.holds(entry.tier, entry.object));
            let disowned: Vec<_> = dropped.iter().map(DisownedRecord::of_object).collect();
            transaction.put_map_change(inode.ino, layout, &change);
            disowned.iter().for_each(|record| transaction.put_disowned(record));
            Ok(disowned)
        };
        let disowned = self.data.change_layout(inode, file, Company::Nobody, change)?;
        self.volume.disowned.add(&disowned, inode.last_sequence());
        Ok(())
    }
}
