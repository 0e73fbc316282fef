//! The suite that every backend and wrapper passes.
//!
//! Invariants:
//! * Each check gets a new, empty tier from `make`, with at least 64 MiB of free space, opened for reading and writing.
//! * Only promises written at [`Tier`] are checked. Operations that the capabilities exclude are not called.
//! * A broken promise panics with its name; nothing is repaired or tried twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Bucket, Epoch, Ino, ObjectId, Sequence, TierId, Timestamp, VolumeId};

use crate::error::TierError;
use crate::label::{CleanStamp, Label};
use crate::object::{AllocateMode, ObjectRef, ObjectStamp, SeekTarget, StampDirectory, StampOrder, StampRefresh, Wait};
use crate::tier::Tier;

/// [`BLOCK_SIZE`] as a length in memory.
#[allow(clippy::cast_possible_truncation, reason = "four KiB fit everywhere")]
const BLOCK: usize = BLOCK_SIZE as usize;
/// Far enough for a hole on every file system, whatever its unit of allocation.
const FAR: u64 = 4 * 1024 * 1024;

/// Runs every check.
pub fn run(make: impl Fn() -> Box<dyn Tier>) {
    objects_are_made_exclusively(&*make());
    removal_is_harmless_when_repeated(&*make());
    a_missing_object_is_not_found(&*make());
    bytes_read_back_and_the_end_cuts_reads(&*make());
    parts_of_blocks_keep_their_neighbours(&*make());
    what_was_never_written_reads_as_zeros(&*make());
    truncation_cuts_for_good_and_extends_with_zeros(&*make());
    allocation_keeps_bytes_and_obeys_its_mode(&*make());
    a_punched_range_reads_as_zeros_and_gives_room_back(&*make());
    seeking_finds_data_and_holes(&*make());
    room_that_was_taken_is_told(&*make());
    objects_are_listed_in_their_buckets(&*make());
    labels_are_replaced_whole(&*make());
    stamping_changes_no_bytes(&*make());
    writing_makes_unsynced_and_syncing_ends_it(&*make());
    hints_change_no_bytes_and_no_promise(&*make());
    an_operation_that_may_not_wait_changes_nothing_or_all(&*make());
    space_adds_up(&*make());
    many_objects_lose_nothing(&*make());
    disjoint_writers_do_not_disturb_each_other(&Arc::from(make()));
}

fn object(id: u64) -> ObjectRef {
    let bucket = u16::try_from(id % 7).expect("a remainder below seven fits");
    ObjectRef::new(ObjectId(id), Bucket(bucket))
}

fn made(tier: &dyn Tier, id: u64) -> ObjectRef {
    tier.create(object(id)).expect("an object is made");
    object(id)
}

fn write(tier: &dyn Tier, object: ObjectRef, offset: u64, data: &[u8]) {
    let written = tier.write(object, offset, data, Wait::Allowed).expect("a write with room succeeds");
    assert_eq!(written, data.len(), "a write is short although there is room");
}

fn read(tier: &dyn Tier, object: ObjectRef, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; length];
    let count = tier.read(object, offset, &mut buffer, Wait::Allowed).expect("a read succeeds");
    buffer.truncate(count);
    buffer
}

/// An object can be made once; the second attempt fails and changes nothing.
pub fn objects_are_made_exclusively(tier: &dyn Tier) {
    let object = made(tier, 1);
    write(tier, object, 0, b"kept");
    assert_eq!(tier.create(object), Err(TierError::AlreadyExists(object.id)), "an existing object was adopted");
    assert_eq!(read(tier, object, 0, 16), b"kept");
    let stat = tier.stat(made(tier, 2)).expect("a new object has a stat");
    assert_eq!(stat.size, 0, "a new object is not empty");
}

/// Removing an absent object, or removing one twice, is success; a removed object is gone at once.
pub fn removal_is_harmless_when_repeated(tier: &dyn Tier) {
    tier.remove(object(9)).expect("removing what never was is success");
    let object = made(tier, 1);
    write(tier, object, 0, b"unsynced");
    tier.remove(object).expect("an object is removed");
    tier.remove(object).expect("removing twice is success");
    assert_eq!(tier.stat(object), Err(TierError::NotFound(object.id)), "a removed object is still there");
    assert!(!tier.is_unsynced(object), "a removed object is still unsynced");
    tier.sync_all().expect("a removal is made durable");
    assert_eq!(tier.list(object.bucket), Ok(vec![]), "a removed object is still listed");
}

/// Every operation on an object that is not there says so, and makes none.
pub fn a_missing_object_is_not_found(tier: &dyn Tier) {
    let missing = object(5);
    let not_found = TierError::NotFound(missing.id);
    assert_eq!(tier.stat(missing), Err(not_found.clone()), "stat");
    assert_eq!(tier.read(missing, 0, &mut [0], Wait::Allowed), Err(not_found.clone()), "read");
    assert_eq!(tier.write(missing, 0, &[1], Wait::Allowed), Err(not_found.clone()), "write");
    assert_eq!(tier.truncate(missing, 1), Err(not_found), "truncate");
    assert_eq!(tier.list(missing.bucket), Ok(vec![]), "an operation made an object");
}

/// Bytes read back; a read stops at the end of the object and is empty beyond it.
pub fn bytes_read_back_and_the_end_cuts_reads(tier: &dyn Tier) {
    let object = made(tier, 1);
    let data: Vec<u8> = (0..3 * BLOCK + 17).map(|index| u8::try_from(index % 251).expect("below 251")).collect();
    write(tier, object, 0, &data);
    assert_eq!(read(tier, object, 0, data.len() + 100), data, "a whole object");
    assert_eq!(read(tier, object, 4000, 200), data[4000..4200], "across a block boundary");
    assert_eq!(read(tier, object, data.len() as u64, 10), b"", "at the end");
    assert_eq!(read(tier, object, FAR, 10), b"", "beyond the end");
    let stat = tier.stat(object).expect("an object has a stat");
    assert_eq!(stat.size, data.len() as u64, "size after writing");
}

/// A write of a part of a block leaves the other bytes of the block alone.
pub fn parts_of_blocks_keep_their_neighbours(tier: &dyn Tier) {
    let object = made(tier, 1);
    let mut expected = vec![1_u8; 2 * BLOCK];
    write(tier, object, 0, &expected);
    for (offset, length) in [(0, 1), (100, 5), (BLOCK - 3, 6), (2 * BLOCK - 1, 1)] {
        write(tier, object, offset as u64, &vec![7; length]);
        expected[offset..offset + length].fill(7);
    }
    assert_eq!(read(tier, object, 0, 3 * BLOCK), expected);
}

/// Objects are sparse: a gap reads as zeros and, on a sparse file system, takes no space.
pub fn what_was_never_written_reads_as_zeros(tier: &dyn Tier) {
    let object = made(tier, 1);
    write(tier, object, FAR + 5, b"end");
    assert_eq!(read(tier, object, FAR - 10, 100), [vec![0; 15], b"end".to_vec()].concat());
    assert_eq!(read(tier, object, 0, BLOCK), vec![0; BLOCK]);
    tier.sync(object).expect("an object is made durable");
    let stat = tier.stat(object).expect("an object has a stat");
    assert_eq!(stat.size, FAR + 8);
    if tier.capabilities().sparse {
        assert!(stat.allocated < FAR, "a hole takes room: {} bytes", stat.allocated);
    }
}

/// Bytes that were cut off never come back; growth reads as zeros.
pub fn truncation_cuts_for_good_and_extends_with_zeros(tier: &dyn Tier) {
    let object = made(tier, 1);
    write(tier, object, 0, &[9; 2 * BLOCK]);
    tier.truncate(object, 100).expect("an object is cut");
    tier.truncate(object, 3 * BLOCK_SIZE).expect("an object is extended");
    let mut expected = vec![0; 3 * BLOCK];
    expected[..100].fill(9);
    assert_eq!(read(tier, object, 0, 4 * BLOCK), expected);
    tier.truncate(object, 0).expect("an object is emptied");
    assert_eq!(tier.stat(object).expect("an object has a stat").size, 0);
}

/// Reserved space reads as before; the size grows only with [`AllocateMode::Extend`].
pub fn allocation_keeps_bytes_and_obeys_its_mode(tier: &dyn Tier) {
    if !tier.capabilities().preallocate {
        return;
    }
    let object = made(tier, 1);
    write(tier, object, 0, b"head");
    tier.allocate(object, 0, 16 * BLOCK_SIZE, AllocateMode::KeepSize).expect("room is reserved beyond the end");
    assert_eq!(read(tier, object, 0, BLOCK), b"head", "size or bytes changed");
    let allocated = tier.stat(object).expect("an object has a stat").allocated;
    assert!(allocated >= 16 * BLOCK_SIZE, "reserved room is not counted: {allocated}");
    tier.allocate(object, 0, 2 * BLOCK_SIZE, AllocateMode::Extend).expect("room is reserved and the size grows");
    let mut expected = vec![0; 2 * BLOCK];
    expected[..4].copy_from_slice(b"head");
    assert_eq!(read(tier, object, 0, 3 * BLOCK), expected);
    let zeroed = tier.allocate(object, 2, BLOCK_SIZE, AllocateMode::Zero);
    if matches!(zeroed, Err(TierError::Unsupported(_))) {
        return;
    }
    zeroed.expect("a range is made zeros");
    expected[2..4].fill(0);
    assert_eq!(read(tier, object, 0, 3 * BLOCK), expected);
    let allocated = tier.stat(object).expect("an object has a stat").allocated;
    assert!(allocated >= 16 * BLOCK_SIZE, "the room of a zeroed range is given up: {allocated}");
}

/// A punched range reads as zeros, keeps the size and gives its space back.
pub fn a_punched_range_reads_as_zeros_and_gives_room_back(tier: &dyn Tier) {
    if !tier.capabilities().punch_hole {
        let outcome = tier.punch(made(tier, 1), 0, BLOCK_SIZE);
        assert!(matches!(outcome, Err(TierError::Unsupported(_))), "a punch that cannot be done: {outcome:?}");
        return;
    }
    let object = made(tier, 1);
    let length = usize::try_from(FAR).expect("four MiB fit");
    let mut expected = vec![3_u8; length];
    write(tier, object, 0, &expected);
    tier.sync(object).expect("an object is made durable");
    let before = tier.stat(object).expect("an object has a stat").allocated;
    let (start, end) = (BLOCK + 10, length - BLOCK - 10);
    tier.punch(object, start as u64, (end - start) as u64).expect("a hole is punched");
    expected[start..end].fill(0);
    assert!(read(tier, object, 0, length + 1) == expected, "bytes around or in a punched hole are wrong");
    let stat = tier.stat(object).expect("an object has a stat");
    assert_eq!(stat.size, FAR, "a punch changed the size");
    assert!(stat.allocated <= before - FAR / 2, "a punch gave no room back: {before} before, {} after", stat.allocated);
    tier.punch(object, 0, 2 * FAR).expect("a punch may reach beyond the end");
    assert_eq!(tier.stat(object).expect("an object has a stat").size, FAR, "a punch beyond the end changed the size");
}

/// Data and holes are found where they are; the end is no hole.
pub fn seeking_finds_data_and_holes(tier: &dyn Tier) {
    let object = made(tier, 1);
    let seek = |offset, target| tier.seek(object, offset, target).expect("a seek succeeds");
    assert_eq!(seek(0, SeekTarget::Data), None, "an empty object has no data");
    assert_eq!(seek(0, SeekTarget::Hole), None, "the end of an empty object is no hole");
    write(tier, object, FAR, &[1; BLOCK]);
    write(tier, object, 3 * FAR, &[1; BLOCK]);
    tier.sync(object).expect("an object is made durable");
    assert_eq!(seek(3 * FAR, SeekTarget::Hole), None, "the end of the object is no hole");
    assert_eq!(seek(3 * FAR + 5, SeekTarget::Data), Some(3 * FAR + 5), "inside data");
    assert_eq!(seek(4 * FAR, SeekTarget::Data), None, "beyond the end");
    assert_eq!(seek(4 * FAR, SeekTarget::Hole), None, "beyond the end");
    if !tier.capabilities().seek_data {
        return;
    }
    assert_eq!(seek(0, SeekTarget::Hole), Some(0), "a hole at the beginning");
    assert_eq!(seek(0, SeekTarget::Data), Some(FAR), "data after a hole");
    let hole = seek(FAR, SeekTarget::Hole).expect("a hole follows the first data");
    assert!((FAR + BLOCK_SIZE..2 * FAR).contains(&hole), "hole found at {hole}");
    assert_eq!(seek(hole, SeekTarget::Data), Some(3 * FAR), "data after the second hole");
    tier.truncate(object, 4 * FAR).expect("an object is extended");
    assert_eq!(seek(3 * FAR + BLOCK_SIZE, SeekTarget::Data), None, "no data in the last hole");
}

/// Allocated ranges are reported where they are known: nothing of a hole, all that was written or reserved, and no byte outside of the range.
pub fn room_that_was_taken_is_told(tier: &dyn Tier) {
    let object = made(tier, 1);
    tier.truncate(object, 4 * FAR).expect("an object is extended");
    let allocated = |start, end| tier.allocated(object, start, end).expect("the question is answered");
    assert_eq!(allocated(0, 4 * FAR), None, "a hole has no room");
    write(tier, object, FAR, &[1; 2 * BLOCK]);
    tier.sync(object).expect("an object is made durable");
    match tier.allocate(object, 2 * FAR, FAR, AllocateMode::KeepSize) {
        Err(TierError::Unsupported(_)) => return,
        reserved => reserved.expect("room is reserved"),
    }
    let Some(written) = allocated(0, 4 * FAR) else { return };
    assert_eq!(written, FAR..FAR + 2 * BLOCK_SIZE);
    assert_eq!(allocated(FAR + BLOCK_SIZE, FAR + BLOCK_SIZE + 10), Some(FAR + BLOCK_SIZE..FAR + BLOCK_SIZE + 10));
    assert_eq!(allocated(written.end, 4 * FAR), Some(2 * FAR..3 * FAR), "room that was reserved");
    write(tier, object, 2 * FAR, &[1; BLOCK]);
    tier.sync(object).expect("an object is made durable");
    assert_eq!(allocated(2 * FAR, 3 * FAR), Some(2 * FAR..3 * FAR), "written in part, and reserved behind");
    assert_eq!(allocated(3 * FAR, 4 * FAR), None);
}

/// A bucket lists exactly its own objects.
pub fn objects_are_listed_in_their_buckets(tier: &dyn Tier) {
    for id in [1, 8, u64::MAX - 1] {
        tier.create(ObjectRef::new(ObjectId(id), Bucket(4095))).expect("an object is made");
    }
    tier.create(ObjectRef::new(ObjectId(2), Bucket(0))).expect("an object is made");
    let listed = tier.list(Bucket(4095)).expect("a bucket is listed");
    assert_eq!(listed.len(), 3, "listed twice or not at all: {listed:?}");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), [1, 8, u64::MAX - 1].map(ObjectId).into());
    assert_eq!(tier.list(Bucket(1)), Ok(vec![]));
}

/// A tier without a label says so; the label last written is the one that is read.
pub fn labels_are_replaced_whole(tier: &dyn Tier) {
    let label = |epoch| Label {
        volume: VolumeId::from_random([4; 16]),
        volume_name: "a volume with ümläuts".to_owned(),
        tier: TierId(63),
        tier_name: "slow".to_owned(),
        instance: u64::MAX,
        epoch: Epoch(epoch),
        clean: if epoch == 2 { CleanStamp::InUse } else { CleanStamp::Clean { bytes_used: epoch } },
    };
    assert!(matches!(tier.read_label(), Err(TierError::Label(_))), "an empty tier has a label");
    for epoch in 1..4 {
        tier.write_label(&label(epoch)).expect("a label is written");
        assert_eq!(tier.read_label(), Ok(label(epoch)), "another label was read than was written");
    }
    let stamped = Label { clean: CleanStamp::InUse, ..label(3) };
    tier.write_label(&stamped).expect("a label of the same epoch is written");
    assert_eq!(tier.read_label(), Ok(stamped), "a label of the same epoch did not replace the one before");
    tier.remove_label().expect("a label is removed");
    assert!(matches!(tier.read_label(), Err(TierError::Label(_))), "a label that was removed is still read");
}

/// A stamp is best effort, leaves bytes and size alone, and is read back as it was or with less of its path.
pub fn stamping_changes_no_bytes(tier: &dyn Tier) {
    let object = made(tier, 1);
    write(tier, object, 0, b"bytes");
    assert_eq!(tier.read_stamp(object), Ok(None), "an object is described that nobody described");
    for names in [1, 5, 200] {
        let directory = |ino| StampDirectory { ino: Ino(ino), permissions: 0o755, uid: 1, gid: 2 };
        let stamp = ObjectStamp {
            volume: VolumeId::from_random([1; 16]),
            ino: Ino(7),
            generation: 1,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            modified: Timestamp::new(-1, 5),
            path: vec![vec![b'p'; 200]; usize::try_from(names).expect("a small number")].join(&b'/'),
            refresh: Some(StampRefresh {
                order: StampOrder { epoch: Epoch(1), sequence: Sequence(names) },
                at: Timestamp::new(5, 0),
                size: 5,
                links: 1,
                may_have_xattrs: false,
                directories: (1..=names).map(directory).collect(),
            }),
        };
        tier.stamp(object, &stamp).expect("an object is described, or silently not");
        if !tier.capabilities().extended_attributes {
            continue;
        }
        let read = tier.read_stamp(object).expect("a description is read");
        let mut may_be = Some(stamp);
        while may_be.is_some() && read != may_be {
            may_be = may_be.and_then(|stamp| stamp.without_upper_half());
        }
        assert!(may_be.is_some(), "a description of {names} names is read back as {read:?}");
    }
    let missing = tier.read_stamp(self::object(2));
    assert!(
        matches!(missing, Err(TierError::NotFound(_))),
        "an object that is not there has a description: {missing:?}"
    );
    assert_eq!(read(tier, object, 0, 10), b"bytes");
}

/// Every change makes an object unsynced; a sync of it or of the tier ends that.
pub fn writing_makes_unsynced_and_syncing_ends_it(tier: &dyn Tier) {
    let (first, second) = (made(tier, 1), made(tier, 2));
    write(tier, first, 0, &[1; BLOCK]);
    write(tier, second, 0, &[1; BLOCK]);
    assert!(tier.is_unsynced(first) && tier.is_unsynced(second), "a written object is not unsynced");
    tier.sync(first).expect("an object is made durable");
    assert!(!tier.is_unsynced(first), "a synced object is unsynced");
    assert!(tier.is_unsynced(second), "syncing one object synced another");
    tier.truncate(first, 1).expect("an object is cut");
    assert!(tier.is_unsynced(first), "a cut object is not unsynced");
    tier.sync_all().expect("the tier is made durable");
    assert!(!tier.is_unsynced(first) && !tier.is_unsynced(second), "an object is unsynced after a sync of the tier");
    tier.sync(first).expect("syncing a clean object is success");
}

/// Hints leave bytes as they are and make nothing durable; ranges without bytes and objects that are not there are no
/// trouble.
pub fn hints_change_no_bytes_and_no_promise(tier: &dyn Tier) {
    let hint = |object, offset, length| {
        tier.begin_write_back(object, offset, length);
        tier.wait_for_write_back(object, offset, length);
        tier.read_ahead(object, offset, length);
    };
    hint(object(9), 0, FAR);
    assert_eq!(tier.list(object(9).bucket), Ok(vec![]), "a hint made an object");
    let object = made(tier, 1);
    let data = vec![5; 3 * BLOCK + 5];
    write(tier, object, FAR, &data);
    for (offset, length) in [(0, 1), (FAR, data.len() as u64), (FAR + 3, 7), (2 * FAR, FAR), (FAR, 0)] {
        hint(object, offset, length);
    }
    assert!(tier.is_unsynced(object), "a hint made bytes durable");
    assert_eq!(tier.stat(object).expect("an object has a stat").size, FAR + data.len() as u64, "size after hints");
    assert_eq!(read(tier, object, FAR, data.len()), data, "bytes after hints");
    tier.sync(object).expect("a sync succeeds");
    hint(object, FAR, data.len() as u64);
    assert!(!tier.is_unsynced(object), "a hint made an object unsynced");
}

/// With [`Wait::Never`] an operation is carried out, or says that it would wait or may have to, and changed nothing.
pub fn an_operation_that_may_not_wait_changes_nothing_or_all(tier: &dyn Tier) {
    let object = made(tier, 1);
    write(tier, object, 0, &[1; 4 * BLOCK]);
    for (offset, length) in [(0, BLOCK), (BLOCK, 2 * BLOCK), (10, 20), (4 * BLOCK, BLOCK)] {
        let before = read(tier, object, 0, 16 * BLOCK);
        match tier.write(object, offset as u64, &vec![2; length], Wait::Never) {
            Ok(written) => {
                let after = read(tier, object, offset as u64, length);
                assert_eq!((written, after), (length, vec![2; length]), "a write that did not wait is short or wrong");
            }
            Err(TierError::WouldBlock) => {
                assert_eq!(read(tier, object, 0, 16 * BLOCK), before, "a refused write changed bytes");
            }
            Err(error) => panic!("a write that may not wait failed: {error}"),
        }
    }
    let expected = read(tier, object, 0, 16 * BLOCK);
    let mut buffer = vec![0; 16 * BLOCK];
    match tier.read(object, 0, &mut buffer, Wait::Never) {
        Ok(count) => assert_eq!(buffer[..count], expected[..], "a read that did not wait is short or wrong"),
        Err(TierError::WouldBlock | TierError::MayBlock) => {}
        Err(error) => panic!("a read that may not wait failed: {error}"),
    }
}

/// Free space is within the total.
pub fn space_adds_up(tier: &dyn Tier) {
    let space = tier.space().expect("a tier knows its room");
    assert!(space.total > 0 && space.free <= space.total, "{space:?}");
    assert!(space.objects_free > 0, "{space:?}");
}

/// More objects than any descriptor limit keep their bytes, and all can be synced.
pub fn many_objects_lose_nothing(tier: &dyn Tier) {
    const OBJECTS: u64 = 2500;
    for id in 1..=OBJECTS {
        write(tier, made(tier, id), 0, &id.to_le_bytes());
    }
    for id in (1..=OBJECTS).step_by(100) {
        tier.sync(object(id)).expect("an object is made durable");
    }
    tier.sync_all().expect("the tier is made durable");
    for id in 1..=OBJECTS {
        assert!(!tier.is_unsynced(object(id)), "object {id} is unsynced after a sync of the tier");
        assert_eq!(read(tier, object(id), 0, 100), id.to_le_bytes(), "object {id} lost its bytes");
    }
}

/// Threads that write disjoint blocks of the same objects see each other's bytes whole.
pub fn disjoint_writers_do_not_disturb_each_other(tier: &Arc<dyn Tier>) {
    const WRITERS: u8 = 8;
    const ROUNDS: u64 = 40;
    let objects = [made(&**tier, 1), made(&**tier, 2)];
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let tier = Arc::clone(tier);
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let offset = (round * u64::from(WRITERS) + u64::from(writer)) * BLOCK_SIZE;
                    for object in objects {
                        write(&*tier, object, offset, &[writer + 1; BLOCK]);
                        assert_eq!(read(&*tier, object, offset, BLOCK), [writer + 1; BLOCK], "own bytes are wrong");
                    }
                    if round % 16 == 0 {
                        tier.sync(objects[0]).expect("an object is made durable");
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a writer finishes");
    }
    for object in objects {
        for (offset, writer) in (0..ROUNDS).flat_map(|_| 1..=WRITERS).enumerate() {
            let offset = offset as u64 * BLOCK_SIZE;
            assert_eq!(read(&**tier, object, offset, BLOCK), [writer; BLOCK], "bytes at {offset} are another's");
        }
    }
    tier.sync_all().expect("the tier is made durable");
    assert!(objects.iter().all(|object| !tier.is_unsynced(*object)), "an object is unsynced after everything ended");
}
