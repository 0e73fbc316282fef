//! Recovery passes: named, in order, each with an id that never changes. Every pass is idempotent, so that a crash in
//! the middle of recovery is a crash like any other.
//!
//! Bytes first, then sizes: nobody owns a disowned range, so carrying it out again is harmless, and a file's size may be
//! asked from an object only once nothing disowned is left in it (DESIGN section 6).

use polymux_meta::Batch;
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, ObjectId};

use crate::core::Core;
use crate::error::Result;
use crate::store::keys::NumberKind;
use crate::store::put_number_range_end;

/// When a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// At each read-write mount.
    Always,
    /// Only after an unclean stop.
    Unclean,
}

/// One pass.
struct Pass {
    /// Persistent: appears in reports and never changes its meaning.
    id: u32,
    name: &'static str,
    when: When,
    run: fn(&Core) -> Result<usize>,
}

const PASSES: [Pass; 4] = [
    Pass { id: 4, name: "make durable what the last daemon left behind", when: When::Unclean, run: sync_tiers },
    Pass { id: 1, name: "carry out disowned ranges", when: When::Always, run: carry_out_disowned },
    Pass { id: 2, name: "delete files without a name", when: When::Always, run: delete_orphans },
    Pass { id: 3, name: "remove objects that reached a tier but not the log", when: When::Unclean, run: remove_leaked },
];

impl Core {
    /// Runs the passes that are due.
    pub(crate) fn run_passes(&self, unclean: bool) -> Result<()> {
        for pass in PASSES.iter().filter(|pass| unclean || pass.when == When::Always) {
            let repaired = (pass.run)(self)?;
            if repaired > 0 {
                self.note_recovery(format!("recovery pass {} ({}): {repaired}", pass.id, pass.name));
            }
        }
        self.put_object_mark()?;
        if unclean {
            self.note_recovery("the last stop was unclean; the volume was recovered".to_owned());
        }
        Ok(())
    }
}

/// The last daemon may have died with bytes and records in the page cache. They can be read, and nobody knows any more
/// that they are not durable: without this an fsync would find nothing to do and promise too much.
fn sync_tiers(core: &Core) -> Result<usize> {
    for handle in core.tiers.all().iter().filter(|handle| handle.present().is_some()) {
        handle.run(|tier| tier.sync_all())?;
    }
    Ok(0)
}

impl Core {
    /// Everything below this number is accounted for: a later recovery need not look at it, and never removes it.
    fn put_object_mark(&self) -> Result<()> {
        let next = self.metadata.number_range_end(NumberKind::Object)?;
        let mut batch = Batch::new();
        put_number_range_end(&mut batch, NumberKind::ObjectMark, next);
        let sequence = self.metadata.commit(batch)?;
        self.metadata.sync(sequence)
    }
}

fn carry_out_disowned(core: &Core) -> Result<usize> {
    let records = core.metadata.disowned()?;
    core.disowned.add(&records, core.metadata.committed());
    let mut done = 0;
    loop {
        let round = core.free_disowned()?;
        done += round;
        if round == 0 {
            return Ok(done);
        }
    }
}

fn delete_orphans(core: &Core) -> Result<usize> {
    let orphans = core.metadata.orphans()?;
    for ino in &orphans {
        match core.inode(*ino) {
            Ok(inode) => core.delete_if_unused(&inode)?,
            Err(error) if error.errno() == polymux_types::Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
    }
    carry_out_disowned(core)?;
    Ok(orphans.len())
}

/// An object is made before the record that names it is durable. After a crash in between nobody knows it. Only numbers
/// that the crashed mount could have handed out are looked at: older objects are accounted for, and those of this mount
/// have higher numbers, because an unclean stop skips the rest of a range.
fn remove_leaked(core: &Core) -> Result<usize> {
    let made =
        core.metadata.number_range_end(NumberKind::ObjectMark)?..core.metadata.number_range_end(NumberKind::Object)?;
    if made.is_empty() {
        return Ok(0);
    }
    let mut known = std::collections::HashSet::new();
    core.metadata.for_each_inode(|_, record| {
        if let crate::store::InodeBody::Regular(file) = record.body {
            known.extend(file.objects.iter().map(|entry| (entry.tier, entry.object)));
        }
        Ok(())
    })?;
    for record in core.metadata.disowned()? {
        known.insert((record.tier, record.object));
    }
    let mut removed = 0;
    for handle in core.tiers.all().iter() {
        let Some(tier) = handle.present() else { continue };
        for bucket in (0..BUCKETS).map(Bucket) {
            let objects: Vec<ObjectId> = tier.list(bucket).map_err(|error| handle.note_error(error))?;
            for object in objects.into_iter().filter(|object| made.contains(&object.0)) {
                if !known.contains(&(handle.id, object)) {
                    let reference = polymux_tier::ObjectRef::new(object, bucket);
                    handle.run(|tier| tier.remove(reference))?;
                    removed += 1;
                }
            }
        }
    }
    Ok(removed)
}
