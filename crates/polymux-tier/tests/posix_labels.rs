//! Two copies of the label: one valid copy is enough, and a newer version is never overruled.

use std::path::{Path, PathBuf};

use polymux_tier::{CleanStamp, Label, PosixTier, PosixTierOptions, Tier, TierError, read_label_at};
use polymux_types::{Epoch, TierId, VolumeId};

const COPIES: [&str; 2] = ["label", "label.copy"];

fn label(epoch: u64) -> Label {
    Label {
        volume: VolumeId::from_random([4; 16]),
        volume_name: "volume".to_owned(),
        tier: TierId(1),
        tier_name: "fast".to_owned(),
        instance: 7,
        epoch: Epoch(epoch),
        clean: CleanStamp::InUse,
    }
}

fn labelled(directory: &Path) {
    let tier = PosixTier::prepare(directory, PosixTierOptions::new("fast")).expect("a tier is made");
    tier.write_label(&label(3)).expect("a label is written");
}

fn copy(directory: &Path, name: &str) -> PathBuf {
    directory.join(".polymux").join(name)
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("a copy is read");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("a copy is written");
}

/// Seen with a tier that was swapped for an older copy at the moment it was taken up again: the label was that of the one, the
/// objects were those of the other.
#[test]
fn an_open_tier_has_its_own_label_whatever_stands_at_its_path() {
    let base = tempfile::tempdir().expect("a temporary directory is made");
    let [place, aside, other] = ["place", "aside", "other"].map(|name| base.path().join(name));
    for directory in [&place, &other] {
        std::fs::create_dir(directory).expect("a directory is made");
        labelled(directory);
    }
    let open = PosixTier::open(&place, PosixTierOptions::new("fast")).expect("opened");
    PosixTier::open(&other, PosixTierOptions::new("fast")).expect("opened").write_label(&label(4)).expect("written");
    std::fs::rename(&place, &aside).expect("renamed");
    std::fs::rename(&other, &place).expect("renamed");
    assert_eq!(open.read_label(), Ok(label(3)));
    assert_eq!(read_label_at(&place), Ok(label(4)));
}

#[test]
fn one_damaged_or_missing_copy_is_made_up_for_by_the_other() {
    for name in COPIES {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        labelled(directory.path());
        change(&copy(directory.path(), name), |bytes| bytes[20] ^= 1);
        assert_eq!(read_label_at(directory.path()), Ok(label(3)), "{name} damaged");
        std::fs::remove_file(copy(directory.path(), name)).expect("a copy is removed");
        assert_eq!(read_label_at(directory.path()), Ok(label(3)), "{name} missing");
        PosixTier::open(directory.path(), PosixTierOptions::new("fast")).expect("a tier with one copy opens");
    }
}

#[test]
fn of_two_valid_copies_the_newer_counts() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    labelled(directory.path());
    let old = std::fs::read(copy(directory.path(), "label.copy")).expect("a copy is read");
    let tier = PosixTier::open(directory.path(), PosixTierOptions::new("fast")).expect("a tier opens");
    tier.write_label(&label(4)).expect("a label is written");
    for name in COPIES {
        tier.write_label(&label(4)).expect("a label is written");
        std::fs::write(copy(directory.path(), name), &old).expect("a copy is written");
        assert_eq!(tier.read_label(), Ok(label(4)), "{name} is the older");
    }
}

#[test]
fn two_damaged_copies_are_refused_and_not_replaced() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    labelled(directory.path());
    for name in COPIES {
        change(&copy(directory.path(), name), |bytes| bytes.truncate(10));
    }
    let refused = PosixTier::open(directory.path(), PosixTierOptions::new("fast")).err();
    assert!(matches!(refused, Some(TierError::Label(_))), "{refused:?}");
    let refused = PosixTier::prepare(directory.path(), PosixTierOptions::new("fast")).err();
    assert!(matches!(refused, Some(TierError::Label(_))), "a damaged tier was made anew: {refused:?}");
}

#[test]
fn a_newer_version_in_either_copy_is_refused_by_name() {
    for name in COPIES {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        labelled(directory.path());
        // The version follows the eight bytes of the magic; the frame's checksum is the last four bytes.
        change(&copy(directory.path(), name), |bytes| {
            bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
            let body = bytes.len() - 4;
            let checksum = crc32c::crc32c(&bytes[..body]);
            bytes[body..].copy_from_slice(&checksum.to_le_bytes());
        });
        let Err(TierError::Label(message)) = read_label_at(directory.path()) else {
            panic!("{name}: a newer version was read")
        };
        assert!(message.contains("99"), "{message}");
    }
}
