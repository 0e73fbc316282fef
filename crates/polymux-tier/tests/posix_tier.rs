//! The POSIX tier passes the suite of all tiers on whatever file system holds temporary files.

use std::sync::atomic::{AtomicUsize, Ordering};

use polymux_tier::{
    AllocateMode, CleanStamp, Label, ObjectRef, OpenAccess, PosixTier, PosixTierOptions, Tier, TierError, Wait,
    conformance,
};
use polymux_types::{Bucket, ByteSize, Epoch, ObjectId, TierId, VolumeId};

fn run_with(change: impl Fn(&mut PosixTierOptions)) {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let count = AtomicUsize::new(0);
    conformance::run(|| {
        let path = directory.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&path).expect("a directory for a tier is made");
        let mut options = PosixTierOptions::new("tier");
        change(&mut options);
        Box::new(PosixTier::prepare(&path, options).expect("a tier is made")) as Box<dyn Tier>
    });
}

#[test]
fn a_posix_tier_keeps_every_promise() {
    run_with(|_| {});
}

#[test]
fn a_posix_tier_with_few_descriptors_and_a_capacity_limit_keeps_every_promise() {
    run_with(|options| {
        options.descriptors_max = 4;
        options.capacity = Some(ByteSize(256 << 20));
    });
}

#[test]
fn a_tier_in_use_is_refused_and_its_holder_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let held = PosixTier::prepare(directory.path(), PosixTierOptions::new("tier")).expect("a tier is made");
    let refused = PosixTier::prepare(directory.path(), PosixTierOptions::new("tier")).err();
    let Some(TierError::InUse(message)) = refused else { panic!("a tier in use was opened: {refused:?}") };
    assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
    assert!(message.contains(&directory.path().display().to_string()), "{message}");
    drop(held);
    PosixTier::prepare(directory.path(), PosixTierOptions::new("tier")).expect("a released tier can be taken");
}

#[test]
fn a_directory_without_a_label_is_never_opened_nor_formatted() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let refused = PosixTier::open(directory.path(), PosixTierOptions::new("tier")).err();
    assert!(matches!(refused, Some(TierError::Label(_))), "{refused:?}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory is read").count(), 0, "something was made");
}

#[test]
fn a_tier_opened_for_reading_changes_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let object = ObjectRef::new(ObjectId(1), Bucket(0));
    let label = Label {
        volume: VolumeId::from_random([1; 16]),
        volume_name: "home".to_owned(),
        tier: TierId(0),
        tier_name: "tier".to_owned(),
        instance: 1,
        epoch: Epoch(1),
        clean: CleanStamp::InUse,
    };
    let tier = PosixTier::prepare(directory.path(), PosixTierOptions::new("tier")).expect("a tier is made");
    tier.write_label(&label).expect("a label is written");
    tier.create(object).expect("an object is made");
    tier.write(object, 0, b"kept", Wait::Allowed).expect("a write succeeds");
    drop(tier);

    let options = PosixTierOptions { access: OpenAccess::ReadOnly, ..PosixTierOptions::new("tier") };
    let tier = PosixTier::open(directory.path(), options).expect("a tier is opened for reading");
    let refused = Err(TierError::ReadOnly);
    assert_eq!(tier.create(ObjectRef::new(ObjectId(2), Bucket(0))), refused);
    assert_eq!(tier.remove(object), refused);
    assert_eq!(tier.truncate(object, 0), refused);
    assert_eq!(tier.punch(object, 0, 4096), refused);
    assert_eq!(tier.allocate(object, 0, 4096, AllocateMode::Extend), refused);
    assert_eq!(tier.write_label(&Label { epoch: Epoch(2), ..label.clone() }), refused);
    assert_eq!(tier.write(object, 0, b"lost", Wait::Allowed), Err(TierError::ReadOnly));
    assert_eq!(tier.read_label(), Ok(label));
    let mut buffer = [0; 10];
    assert_eq!(tier.read(object, 0, &mut buffer, Wait::Allowed), Ok(4));
    assert_eq!(&buffer[..4], b"kept");
}

#[test]
fn a_capacity_limit_cuts_a_write_to_whole_blocks_and_counts_what_objects_take() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let options = PosixTierOptions { capacity: Some(ByteSize(1 << 20)), ..PosixTierOptions::new("tier") };
    let tier = PosixTier::prepare(directory.path(), options).expect("a tier is made");
    let (first, second) = (ObjectRef::new(ObjectId(1), Bucket(0)), ObjectRef::new(ObjectId(2), Bucket(0)));
    tier.create(first).expect("an object is made");
    tier.create(second).expect("an object is made");
    let data = vec![1; 2 << 20];
    let written = tier.write(first, 0, &data, Wait::Allowed).expect("what fits is written");
    assert!(written > 0 && written <= 1 << 20 && written % 4096 == 0, "{written}");
    tier.sync_all().expect("the tier is made durable");
    assert_eq!(tier.write(second, 0, &data[..65_536], Wait::Allowed), Err(TierError::NoSpace));
    assert_eq!(tier.write(first, 0, &data[..8192], Wait::Allowed), Ok(8192), "an overwrite needs no room");
    assert_eq!(tier.bytes_used(), Some(tier.scan_bytes_used().expect("objects are counted")));
    tier.remove(first).expect("an object is removed");
    assert_eq!(tier.write(second, 0, &data[..65_536], Wait::Allowed), Ok(65_536), "removal gives room back");
    tier.sync_all().expect("the tier is made durable");
    assert_eq!(tier.bytes_used(), Some(tier.scan_bytes_used().expect("objects are counted")));
}
