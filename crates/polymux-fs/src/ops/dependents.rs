//! What depends on a tier: the files that have bytes there. Records are read and no tier is asked, so that it can be told of a
//! tier that is missing, too.

use std::ops::ControlFlow;

use polymux_types::{Errno, Ino};

use crate::caller::Caller;
use crate::core::Core;
use crate::error::Result;
use crate::report::{DamagedFiles, LostFile, TierFile, TierFiles};
use crate::store::{InodeBody, InodeRecord};
use crate::volume::VolumeError;

/// Records that one look for damaged files reads.
const DAMAGE_RECORDS_AT_ONCE: usize = 20_000;

impl Core {
    pub(crate) fn files_of_tier(&self, name: &str, listed_max: usize) -> Result<TierFiles> {
        let tier = self.tiers.by_name(name).ok_or(Errno::ENOENT)?;
        let mut found =
            TierFiles { tier: tier.name.clone(), state: tier.state(), files: 0, only: 0, listed: Vec::new() };
        let mut inos: Vec<(Ino, bool)> = Vec::new();
        self.metadata.for_each_inode(|ino, record| {
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
            found.listed.push(TierFile { ino, path: self.path_of(ino)?, is_only });
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
        for ino in self.inos_on(tier)? {
            let Some(inode) = self.inode_if_there(ino)? else { continue };
            let Some(file) = inode.file() else { continue };
            let Some(lost) = self.loss_of_file(&inode, file, tier)? else { continue };
            let lost = LostFile { path: self.path_of(ino)?, ..lost };
            if visit(lost).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Files with damaged ranges; see [`crate::FileSystem::damaged_files`].
    pub(crate) fn find_damaged_files(&self, listed_max: usize) -> Result<DamagedFiles> {
        let mut known = self.damaged_files.lock();
        if !known.is_complete {
            let records = self.metadata.inodes_after(Ino(known.looked_up_to), DAMAGE_RECORDS_AT_ONCE)?;
            let is_damaged =
                |record: &InodeRecord| matches!(&record.body, InodeBody::Regular(file) if !file.damaged.is_empty());
            known.files.extend(records.iter().filter(|(_, record)| is_damaged(record)).map(|(ino, _)| *ino));
            known.looked_up_to = records.last().map_or(known.looked_up_to, |(ino, _)| ino.0);
            known.is_complete = records.len() < DAMAGE_RECORDS_AT_ONCE;
        }
        let mut found = DamagedFiles { is_complete: known.is_complete, ..DamagedFiles::default() };
        let files: Vec<Ino> = known.files.iter().copied().collect();
        drop(known);
        for ino in files {
            let inode = match self.inode(ino) {
                Ok(inode) => inode,
                Err(error) if error.errno() == Errno::ENOENT => {
                    self.damaged_files.lock().files.remove(&ino);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // One that is being damaged just now was noted before, and is seen the next time.
            if inode.file().is_none_or(|file| file.layout.read().damaged.is_empty()) {
                continue;
            }
            found.count += 1;
            if found.listed.len() < listed_max {
                found.listed.push((ino, self.path_of(ino)?));
            }
        }
        Ok(found)
    }

    /// Makes the damaged ranges of a file zeros; see [`crate::FileSystem::accept_lost_bytes`].
    pub(crate) fn accept_lost_bytes(&self, ino: Ino) -> Result<Vec<(u64, u64)>> {
        self.check_writable()?;
        let inode = self.inode(ino)?;
        let Some(file) = inode.file() else { return Ok(Vec::new()) };
        if file.layout.read().damaged.is_empty() {
            return Ok(Vec::new());
        }
        let ranges = self.accept_damage(&inode, file)?;
        self.note_modified(&Caller::root(), &inode);
        Ok(ranges)
    }
}
