//! The dependents of a tier: the files that have bytes there. Only records are read and no tier is asked, so this works for a
//! missing tier, too.

use std::ops::{Bound, ControlFlow};

use polymux_records::caller::Caller;
use polymux_records::error::{Error, Result};
use polymux_records::parts::VolumeError;
use polymux_records::report::{DamagedFiles, LostFile, TierFile, TierFiles};
use polymux_records::store::{InodeBody, InodeRecord};
use polymux_types::{Errno, Ino, TierId};

use crate::mounted::Mounted;

/// Records that one look for damaged files reads.
const DAMAGE_RECORDS_AT_ONCE: usize = 20_000;
/// Files that were damaged of which one look finds out whether they still are.
const DAMAGED_FILES_AT_ONCE: usize = 1000;

/// A file whose loss with a tier is unknown.
fn lost_somehow(ino: Ino, error: &Error) -> LostFile {
    let problem = Some(error.to_string());
    LostFile { ino, path: None, size: 0, is_end_known: false, ranges: Vec::new(), is_whole: false, problem }
}

impl Mounted {
    pub(crate) fn files_of_tier(&self, name: &str, listed_max: usize) -> Result<TierFiles> {
        let tier = self.volume.tiers.by_name(name).ok_or(Errno::ENOENT)?;
        let mut found =
            TierFiles { tier: tier.name.clone(), state: tier.state(), files: 0, only: 0, listed: Vec::new() };
        let mut inos: Vec<(Ino, bool)> = Vec::new();
        self.volume.metadata.for_each_inode(|ino, record| {
            if let InodeBody::Regular(file) = record.body
                && file.objects.iter().any(|entry| entry.tier == tier.id)
            {
                let is_only = file.objects.len() == 1;
                found.files += 1;
                found.only += u64::from(is_only);
                if inos.len() < listed_max {
                    inos.push((ino, is_only));
                }
            }
            Ok(())
        })?;
        for (ino, is_only) in inos {
            found.listed.push(TierFile { ino, path: self.volume.path_of(ino)?, is_only });
        }
        Ok(found)
    }

    /// Tells of each file that would lose bytes with a tier; see [`crate::FileSystem::files_lost_with`].
    pub(crate) fn files_lost_with(
        &self,
        name: &str,
        visit: &mut dyn FnMut(LostFile) -> ControlFlow<()>,
    ) -> std::result::Result<(), VolumeError> {
        let tier = self.tier_that_may_be_forgotten(name)?.id;
        let found = self.inodes_on(tier)?;
        let mut inos: Vec<Ino> = found.inos.into_iter().chain(found.unreadable).collect();
        inos.sort_unstable();
        for ino in inos {
            let lost = self.loss_of_inode(ino, tier).unwrap_or_else(|error| Some(lost_somehow(ino, &error)));
            let Some(lost) = lost else { continue };
            // A name that cannot be read is none.
            let lost = LostFile { path: self.volume.path_of(ino).ok().flatten(), ..lost };
            if visit(lost).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn loss_of_inode(&self, ino: Ino, tier: TierId) -> Result<Option<LostFile>> {
        let Some(inode) = self.inode_if_there(ino)? else { return Ok(None) };
        let Some(file) = inode.file() else { return Ok(None) };
        self.data.loss_of_file(&inode, file, tier)
    }

    /// Files with damaged ranges; see [`crate::FileSystem::damaged_files`].
    pub(crate) fn find_damaged_files(&self, listed_max: usize) -> Result<DamagedFiles> {
        self.look_for_damaged_records()?;
        let (is_complete, some, is_last_turn) = self.damaged_files_to_check();
        for ino in &some {
            let is_damaged = match self.volume.inode(*ino) {
                // One that is being damaged just now was noted before, and is seen the next time.
                Ok(inode) => inode.file().is_some_and(|file| !file.layout.read().damaged.is_empty()),
                Err(error) if error.errno() == Errno::ENOENT => {
                    self.volume.damaged_files.lock().files.remove(ino);
                    false
                }
                Err(_) => {
                    self.volume.damaged_files.lock().unreadable.insert(*ino);
                    false
                }
            };
            let mut known = self.volume.damaged_files.lock();
            if is_damaged {
                known.confirmed.insert(*ino)
            } else {
                known.confirmed.remove(ino)
            };
        }
        let (count, listed, unreadable) = {
            let known = self.volume.damaged_files.lock();
            let listed: Vec<Ino> = known.confirmed.iter().copied().take(listed_max).collect();
            let unreadable: Vec<Ino> = known.unreadable.iter().copied().take(listed_max).collect();
            (known.confirmed.len() as u64, listed, unreadable)
        };
        // A name that cannot be read is none.
        let listed = listed.into_iter().map(|ino| (ino, self.volume.path_of(ino).ok().flatten())).collect();
        Ok(DamagedFiles { count, listed, is_complete: is_complete && is_last_turn, unreadable })
    }

    /// Looks at the next records that no look has seen, without keeping others from the list meanwhile.
    fn look_for_damaged_records(&self) -> Result<()> {
        let from = {
            let known = self.volume.damaged_files.lock();
            if known.is_complete {
                return Ok(());
            }
            known.looked_up_to
        };
        let records = self.volume.metadata.inode_records_after(Ino(from), DAMAGE_RECORDS_AT_ONCE)?;
        let mut known = self.volume.damaged_files.lock();
        if known.looked_up_to != from {
            // Another thread was faster.
            return Ok(());
        }
        for (ino, record) in &records {
            match record {
                Ok(InodeRecord { body: InodeBody::Regular(file), .. }) if !file.damaged.is_empty() => {
                    known.files.insert(*ino);
                }
                Ok(_) => {}
                Err(error) => {
                    log::error!("the record of inode {ino} cannot be read: {error}");
                    known.unreadable.insert(*ino);
                }
            }
        }
        known.looked_up_to = records.last().map_or(from, |(ino, _)| ino.0);
        known.is_complete = records.len() < DAMAGE_RECORDS_AT_ONCE;
        Ok(())
    }

    /// Whether all records were seen, the files whose turn it is to be looked at, and whether that is all, or the last of them.
    fn damaged_files_to_check(&self) -> (bool, Vec<Ino>, bool) {
        let mut known = self.volume.damaged_files.lock();
        if known.files.len() <= DAMAGED_FILES_AT_ONCE {
            return (known.is_complete, known.files.iter().copied().collect(), true);
        }
        let after = (Bound::Excluded(Ino(known.checked_up_to)), Bound::Unbounded);
        let some: Vec<Ino> = known.files.range(after).copied().take(DAMAGED_FILES_AT_ONCE).collect();
        let is_last_turn = some.len() < DAMAGED_FILES_AT_ONCE;
        known.checked_up_to = if is_last_turn { 0 } else { some.last().map_or(0, |ino| ino.0) };
        (known.is_complete, some, is_last_turn)
    }

    /// Makes the damaged ranges of a file zeros; see [`crate::FileSystem::accept_lost_bytes`].
    pub(crate) fn accept_lost_bytes(&self, ino: Ino) -> Result<Vec<(u64, u64)>> {
        self.volume.check_writable()?;
        let inode = self.volume.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(Vec::new()) };
        if file.layout.read().damaged.is_empty() {
            return Ok(Vec::new());
        }
        let ranges = self.data.accept_damage(&inode, file)?;
        self.note_modified(&Caller::root(), &inode);
        Ok(ranges)
    }
}
