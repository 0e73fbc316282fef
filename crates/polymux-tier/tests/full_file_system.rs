//! A tier whose file system has no space for a file is opened all the same. Needs root, to mount a small tmpfs.

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use polymux_tier::{CleanStamp, Label, ObjectRef, PosixTier, PosixTierOptions, Tier, TierError, Wait};
use polymux_types::{Bucket, Epoch, ObjectId, TierId, VolumeId};

/// The directories of a tier and some files.
const INODES: usize = 4200;

struct FewInodes(tempfile::TempDir);

impl FewInodes {
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let options = format!("size=64m,nr_inodes={INODES}");
        let mut mount = Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "-o", &options, "polymux-test"]).arg(directory.path()).status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self(directory));
        }
        eprintln!("skipped: a tmpfs cannot be mounted here (root is needed)");
        None
    }

    fn take_all(&self) -> Vec<PathBuf> {
        let mut taken = Vec::new();
        loop {
            let path = self.0.path().join(format!("somebody else's {}", taken.len()));
            match File::create_new(&path) {
                Ok(_) => taken.push(path),
                Err(error) if error.kind() == ErrorKind::StorageFull => return taken,
                Err(error) => panic!("no inode can be taken: {error}"),
            }
        }
    }
}

impl Drop for FewInodes {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

fn label(epoch: u64) -> Label {
    Label {
        volume: VolumeId::from_random([1; 16]),
        volume_name: "home".to_owned(),
        tier: TierId(0),
        tier_name: "tier".to_owned(),
        instance: 1,
        epoch: Epoch(epoch),
        clean: CleanStamp::InUse,
    }
}

#[test]
fn a_tier_without_inodes_is_opened_and_tried_out_once_there_is_room() {
    let Some(place) = FewInodes::mount() else { return };
    let (first, second) = (ObjectRef::new(ObjectId(1), Bucket(0)), ObjectRef::new(ObjectId(2), Bucket(0)));
    let tier = PosixTier::prepare(place.0.path(), PosixTierOptions::new("tier")).expect("a tier is made");
    tier.write_label(&label(1)).expect("a label is written");
    tier.create(first).expect("an object is made");
    tier.write(first, 0, b"kept", Wait::Allowed).expect("a write succeeds");
    let tried_out = tier.capabilities().clone();
    assert!(!tried_out.is_assumed);
    drop(tier);

    let taken = place.take_all();
    let tier = PosixTier::open(place.0.path(), PosixTierOptions::new("tier")).expect("a full tier can be opened");
    assert!(tier.capabilities().is_assumed && tier.capabilities().holds_partial_files());
    tier.write_label(&label(2)).expect("a label is written over where it lies");
    let mut bytes = [0; 4];
    tier.read(first, 0, &mut bytes, Wait::Allowed).expect("what is there is read");
    assert_eq!(&bytes, b"kept");
    tier.write(first, 4096, b"more", Wait::Allowed).expect("what is there is written");
    assert_eq!(tier.create(second), Err(TierError::NoSpace));
    assert!(tier.capabilities().is_assumed);

    taken.iter().for_each(|path| std::fs::remove_file(path).expect("a file is removed"));
    tier.create(second).expect("there is room again");
    assert_eq!(*tier.capabilities(), tried_out, "it was tried out with the first object");
}
