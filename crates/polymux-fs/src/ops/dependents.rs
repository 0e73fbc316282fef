//! What depends on a tier: the files that have bytes there. Records are read and no tier is asked, so that it can be told of a
//! tier that is missing, too.

use polymux_types::{Errno, Ino};

use crate::core::Core;
use crate::error::Result;
use crate::report::{TierFile, TierFiles};
use crate::store::InodeBody;

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
}
