//! Which files rules and pins are about, all of the volume gone through.
//!
//! Invariants: pages of inodes are read from the store, so that nothing is held while one is looked at, and files
//! that come or go meanwhile may be counted or not.

use polymux_data::placement::{ContextSource, PIN_ATTRIBUTE};
use polymux_records::error::Result;
use polymux_records::report::{PinReport, RuleCounts};
use polymux_records::store::InodeBody;
use polymux_types::Ino;

use crate::mounted::Mounted;

/// Inodes read at once.
const PAGE: usize = 1024;

impl Mounted {
    /// See [`crate::FileSystem::count_rule_matches`].
    pub(crate) fn count_rule_matches(&self, files_max: u64) -> Result<RuleCounts> {
        let rules = self.placement.steering.read().rules.rules().count();
        let mut counts = RuleCounts { files: vec![0; rules], ..RuleCounts::default() };
        if rules == 0 {
            return Ok(counts);
        }
        let mut after = Ino(0);
        loop {
            let page = self.volume.metadata.inodes_after(after, PAGE)?;
            for (ino, record) in &page {
                if !matches!(record.body, InodeBody::Regular(_)) {
                    continue;
                }
                if counts.files_seen == files_max {
                    counts.is_cut = true;
                    return Ok(counts);
                }
                counts.files_seen += 1;
                if let Some(index) = self.rule_of(*ino)?
                    && let Some(count) = counts.files.get_mut(index)
                {
                    *count += 1;
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => after = *last,
                _ => break,
            }
        }
        Ok(counts)
    }

    /// The first rule that matches a file; `None` also where the file has gone.
    fn rule_of(&self, ino: Ino) -> Result<Option<usize>> {
        let Ok(inode) = self.volume.inode(ino) else { return Ok(None) };
        let Some(file) = inode.file() else { return Ok(None) };
        // Where its tier is missing, the size that the record has must do.
        let _ = self.data.ensure_size(&inode, file);
        Ok(match self.placement.ruled_context(&inode)?.source {
            ContextSource::Rule(index, _) => Some(index),
            ContextSource::Volume | ContextSource::Pin(_) => None,
        })
    }

    /// See [`crate::FileSystem::own_pin`].
    pub(crate) fn own_pin(&self, ino: Ino) -> Result<Option<String>> {
        let name = self.volume.metadata.xattr(ino, PIN_ATTRIBUTE)?;
        Ok(name.map(|name| String::from_utf8_lossy(&name).into_owned()))
    }

    /// See [`crate::FileSystem::pins`].
    pub(crate) fn pin_reports(&self) -> Result<Vec<PinReport>> {
        let mut reports = Vec::new();
        for (ino, tier) in self.volume.metadata.pins(PIN_ATTRIBUTE)? {
            // One that was removed meanwhile.
            let Ok(inode) = self.volume.inode(ino) else { continue };
            let path = if ino == Ino::ROOT { Some(Vec::new()) } else { self.volume.path_of(ino)? };
            reports.push(PinReport { ino, path, tier, is_directory: inode.is_directory() });
        }
        reports.sort_by(|one, two| one.path.cmp(&two.path));
        Ok(reports)
    }
}
