//! Whether a write may be collected on a volume that is nearly full (docs/design/0036).
//!
//! Rules:
//! * Nothing is known of the write but its file, of which nothing else is collected at that moment.
//! * While at least the margin is left, every write is admitted. Between that and half of it, a write is admitted whose file did not
//!   grow by the write that was admitted before it, and the first one of a file: so it goes on in a file that was preallocated, and in a
//!   database that changes its pages in place. If such a file takes space after all, it takes it from the other half, in which no write is admitted.

use std::collections::BTreeMap;

use polymux_fs::VolumeSpace;
use polymux_transport::wire::Attr;

/// Bytes of free space below which only writes are admitted that are expected to take none.
const MARGIN_MAX: u64 = 8 << 20;
/// Of a small volume, this part of it.
const MARGIN_PART: u64 = 64;
/// Files that are remembered; with more of them, all are forgotten.
const FILES_MAX: usize = 10_000;

/// Bytes of free space below which not every write is admitted.
pub(crate) fn margin(space: &VolumeSpace) -> u64 {
    MARGIN_MAX.min(space.total / MARGIN_PART)
}

/// Files in which a write was admitted since space became short, with their sizes then.
#[derive(Default)]
pub(crate) struct Admissions(BTreeMap<u64, u64>);

impl Admissions {
    /// Whether the next write of a file, with these attributes, is admitted; `None`: the free space is not known.
    pub(crate) fn admit(&mut self, space: Option<&VolumeSpace>, attr: &Attr) -> bool {
        let Some(space) = space else { return false };
        let margin = margin(space);
        let does_not_grow = self.0.get(&attr.ino).is_none_or(|before| *before == attr.size);
        let is_admitted = space.available >= margin || does_not_grow && space.available >= margin / 2;
        if is_admitted {
            if self.0.len() >= FILES_MAX {
                self.0.clear();
            }
            self.0.insert(attr.ino, attr.size);
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(available: u64) -> VolumeSpace {
        VolumeSpace { total: 100 << 30, free: available, available, files_total: 0, files_free: 0 }
    }

    fn file(ino: u64, size: u64) -> Attr {
        Attr { ino, size, ..Attr::default() }
    }

    #[test]
    fn a_file_that_grows_is_refused_below_the_margin_and_one_that_does_not_goes_on() {
        let mut admissions = Admissions::default();
        assert!(admissions.admit(Some(&space(9 * MIB)), &file(1, 0)));
        assert!(admissions.admit(Some(&space(8 * MIB)), &file(1, MIB)));
        assert!(!admissions.admit(Some(&space(7 * MIB)), &file(1, 2 * MIB)));
        assert!(!admissions.admit(Some(&space(7 * MIB)), &file(1, 2 * MIB)), "what was refused proves nothing");
        assert!(admissions.admit(Some(&space(7 * MIB)), &file(2, MIB)));
        assert!(admissions.admit(Some(&space(4 * MIB)), &file(2, MIB)), "it took nothing");
        assert!(!admissions.admit(Some(&space(4 * MIB)), &file(2, MIB + 512)));
        assert!(!admissions.admit(Some(&space(3 * MIB)), &file(2, MIB)), "it may take something after all");
        assert!(!admissions.admit(None, &file(2, MIB)));
    }

    #[test]
    fn a_small_volume_keeps_a_part_of_itself() {
        let small = |available| VolumeSpace { total: 64 * MIB, ..space(available) };
        assert!(Admissions::default().admit(Some(&small(MIB)), &file(1, 0)));
        assert!(!Admissions::default().admit(Some(&small(MIB / 2 - 1)), &file(1, 0)));
    }
}
