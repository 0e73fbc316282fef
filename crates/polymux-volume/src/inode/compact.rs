//! Objects that own no block leave the list of their file (docs/design/0010).

use polymux_records::blockmap::{MapChange, Owner};
use polymux_records::store::ObjectEntry;
use polymux_types::Block;

use super::{FileState, Layout};

impl FileState {
    /// Takes objects that own nothing out of the layout; where home is one of them, the owner of the tail becomes home.
    /// Returns the changes of the map, and the objects, which must become pending frees in the same transaction. Called with the
    /// barrier held alone and, as every change of the layout, inside a transaction.
    ///
    /// A file with one object has no extents: former holes belong to that object, unless something on it is still to be freed
    /// (`is_free` says so).
    pub fn compact(
        &self,
        layout: &mut Layout,
        is_free: impl Fn(&ObjectEntry) -> bool,
    ) -> (MapChange, Vec<ObjectEntry>) {
        let owners = layout.map.owners();
        let extender = layout.extender().map(|(slot, _)| slot);
        let is_idle = |slot: u8| !owners.contains(&slot) && extender != Some(slot);
        let slots = || (0_u8..).zip(&layout.objects);
        let kept: Vec<u8> = slots().map(|(slot, _)| slot).filter(|slot| !is_idle(*slot)).collect();
        let home = layout.map.home().expect("a file with objects has a home");
        let holes = layout.map.holes();
        let left = kept.first().map(|slot| layout.object(*slot)).filter(|_| kept.len() == 1);
        let keeps_holes = !holes.is_empty() && left.is_some_and(|entry| !is_free(&entry));
        if kept.len() == layout.objects.len() || kept.is_empty() || keeps_holes {
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
        self.nodes.mark_map_changed(Block(0)..Block::END);
        let mut change = MapChange::default();
        for hole in holes.into_iter().filter(|_| left.is_some()) {
            change.then(layout.map.assign(hole.start, hole.end, Owner::Slot(kept[0])));
        }
        change.then(layout.map.renumber(new_home, numbers));
        layout.objects = kept.iter().map(|slot| layout.object(*slot)).collect();
        let mut unsynced = self.durability.unsynced.lock();
        unsynced.retain(|(slot, ..)| kept.contains(slot));
        unsynced.iter_mut().for_each(|(slot, ..)| *slot = numbers(*slot));
        (change, dropped)
    }
}
