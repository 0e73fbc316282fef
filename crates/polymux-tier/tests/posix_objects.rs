//! Additions of the POSIX backend to the promises of all tiers: a capacity limit and a limit of descriptors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use polymux_tier::{
    AllocateMode, BytesUsed, CleanStamp, Label, LoanPurpose, ObjectRef, PosixTier, PosixTierOptions, Tier, TierError,
    Wait,
};
use polymux_types::{Bucket, ByteSize, Epoch, ObjectId, TierId, VolumeId};

const BLOCK: usize = 4096;

fn object(id: u64) -> ObjectRef {
    ObjectRef::new(ObjectId(id), Bucket(u16::try_from(id % 5).expect("below five")))
}

fn limited(directory: &Path, capacity: u64) -> PosixTier {
    let mut options = PosixTierOptions::new("tier");
    options.capacity = Some(ByteSize(capacity));
    PosixTier::prepare(directory, options).expect("a tier is made")
}

fn write(tier: &PosixTier, id: u64, offset: u64, data: &[u8]) -> Result<usize, TierError> {
    tier.write(object(id), offset, data, Wait::Allowed)
}

/// Space of all objects, by looking at each.
fn walked(tier: &PosixTier) -> Option<u64> {
    Some(tier.scan_bytes_used().expect("a tier is walked"))
}

#[test]
fn the_room_in_use_equals_a_walk_after_a_sync() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let tier = limited(directory.path(), 64 << 20);
    for id in 1..40 {
        tier.create(object(id)).expect("an object is made");
        // Scattered blocks, so that the file system below needs blocks of its own for the map of some.
        for number in 0..id {
            write(&tier, id, number * 3 * BLOCK as u64, &[1; BLOCK]).expect("a write with room succeeds");
        }
    }
    tier.sync_all().expect("the tier is made durable");
    assert_eq!(tier.bytes_used(), walked(&tier), "after writing");
    tier.truncate(object(39), 5).expect("an object is cut");
    tier.punch(object(38), 0, 9 * BLOCK as u64).expect("a hole is punched");
    tier.allocate(object(37), 0, 1 << 20, AllocateMode::KeepSize).expect("room is reserved");
    tier.remove(object(36)).expect("an object is removed");
    tier.sync_all().expect("the tier is made durable");
    assert_eq!(tier.bytes_used(), walked(&tier), "after cutting, punching, reserving and removing");
    for id in 1..40 {
        tier.remove(object(id)).expect("an object is removed");
    }
    assert_eq!(tier.bytes_used(), Some(0), "an empty tier takes room");
}

/// Both answers: recently written bytes are in memory, dropped ones are not.
#[test]
fn a_tier_tells_what_the_page_cache_holds() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory is made");
    let tier = PosixTier::prepare(directory.path(), PosixTierOptions::new("tier")).expect("a tier is made");
    tier.create(object(1)).expect("an object is made");
    let length = 256 * BLOCK as u64;
    write(&tier, 1, 0, &vec![7; 256 * BLOCK]).expect("a write with room succeeds");
    tier.sync(object(1)).expect("a sync succeeds");
    let Some(held) = tier.cached_bytes(object(1), 0, length) else {
        eprintln!("skipped: the kernel does not tell what is in memory (cachestat came with Linux 6.5)");
        return;
    };
    if tier.capabilities().file_system == "tmpfs" {
        eprintln!("skipped: /var/tmp is in memory, and what is there is always in it");
        return;
    }
    assert_eq!(held, length, "what was written is in memory");
    assert_eq!(tier.cached_bytes(object(1), length, length), Some(0), "there is nothing behind the end");
    assert_eq!(tier.cached_bytes(object(1), 0, 0), Some(0));
    assert_eq!(tier.cached_bytes(object(2), 0, length), None, "an object that is not there");
    tier.drop_behind(object(1), 0, length);
    assert_eq!(tier.cached_bytes(object(1), 0, length), Some(0), "what was given up is not in memory");
}

#[test]
fn syncing_one_object_counts_what_its_map_came_to_take() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let tier = limited(directory.path(), 64 << 20);
    tier.create(object(1)).expect("an object is made");
    for number in 0..1000_u64 {
        write(&tier, 1, number * 2 * BLOCK as u64, &[1; BLOCK]).expect("a write with room succeeds");
    }
    tier.sync(object(1)).expect("an object is made durable");
    assert_eq!(tier.bytes_used(), walked(&tier));
}

#[test]
fn the_capacity_limit_cuts_writes_and_then_refuses_but_lets_overwrites_through() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let capacity = 64 * BLOCK as u64;
    let tier = limited(directory.path(), capacity);
    tier.create(object(1)).expect("an object is made");
    let mut offset = 0;
    let refusal = loop {
        match write(&tier, 1, offset, &[1; 10 * BLOCK]) {
            Ok(written) => offset += written as u64,
            Err(error) => break error,
        }
        assert!(offset <= capacity, "written beyond the limit: {offset}");
    };
    assert_eq!(refusal, TierError::NoSpace);
    assert!(offset > capacity / 2, "refused at {offset} of {capacity}");
    assert!(tier.bytes_used().expect("there is a limit") <= capacity);
    assert_eq!(write(&tier, 1, 0, &[2; 3 * BLOCK]), Ok(3 * BLOCK), "an overwrite was refused");
    let reserved = tier.allocate(object(1), capacity, capacity, AllocateMode::KeepSize);
    assert_eq!(reserved, Err(TierError::NoSpace));
    tier.truncate(object(1), 0).expect("an object is emptied");
    assert_eq!(write(&tier, 1, 0, &[1; BLOCK]), Ok(BLOCK), "room that was given back is not there");
}

#[test]
fn the_room_in_use_is_found_again_when_a_tier_is_opened() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let tier = limited(directory.path(), 1 << 20);
    tier.create(object(1)).expect("an object is made");
    write(&tier, 1, 0, &[1; 7 * BLOCK]).expect("a write with room succeeds");
    tier.sync_all().expect("the tier is made durable");
    let used = tier.bytes_used();
    let label = |bytes_used| Label {
        volume: VolumeId::from_random([4; 16]),
        volume_name: "volume".to_owned(),
        tier: TierId(1),
        tier_name: "tier".to_owned(),
        instance: 7,
        epoch: Epoch(1),
        clean: CleanStamp::Clean { bytes_used },
    };
    tier.write_label(&label(12_345)).expect("a label is written");
    drop(tier);
    let open = |bytes_used| {
        let capacity = Some(ByteSize(1 << 20));
        let options = PosixTierOptions { capacity, bytes_used, ..PosixTierOptions::new("tier") };
        PosixTier::open(directory.path(), options).expect("a tier opens").bytes_used()
    };
    assert_eq!(open(BytesUsed::FromLabel), Some(12_345), "the clean stamp is not believed");
    assert_eq!(open(BytesUsed::Scan), used, "the scan differs");
}

#[test]
fn few_descriptors_lose_nothing_of_many_objects() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let mut options = PosixTierOptions::new("tier");
    options.descriptors_max = 4;
    let tier = PosixTier::prepare(directory.path(), options).expect("a tier is made");
    for round in 0..3_u64 {
        for id in 1..=100 {
            if round == 0 {
                tier.create(object(id)).expect("an object is made");
            }
            write(&tier, id, round * 8, &(id * 1000 + round).to_le_bytes()).expect("a write succeeds");
        }
    }
    for id in 1..=100 {
        let mut buffer = [0; 100];
        let count = tier.read(object(id), 0, &mut buffer, Wait::Allowed).expect("a read succeeds");
        let expected: Vec<u8> = (0..3).flat_map(|round| (id * 1000 + round).to_le_bytes()).collect();
        assert_eq!(buffer[..count], expected, "object {id}");
    }
    let counters = tier.counters();
    assert!(counters.descriptors_opened > 0, "the cache never closed anything: {counters:?}");
    assert!(counters.descriptors_synced_early > 0, "unsynced objects were closed unsynced: {counters:?}");
    let prefix = directory.path().join(".polymux/objects");
    let held = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors are listed")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| target.starts_with(&prefix) && *target != prefix);
    let held = held.count();
    assert!(held <= 4, "{held} descriptors are held with a limit of 4");
}

#[test]
fn an_object_that_is_not_open_is_not_opened_for_a_read_that_may_not_wait() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let options = PosixTierOptions { descriptors_max: 4, ..PosixTierOptions::new("tier") };
    let tier = PosixTier::prepare(directory.path(), options).expect("a tier is made");
    tier.create(object(1)).expect("an object is made");
    write(&tier, 1, 0, b"bytes").expect("a write succeeds");
    // Far more objects than descriptors, so that it is closed.
    for id in 2..=100 {
        tier.create(object(id)).expect("an object is made");
    }
    let opened = tier.counters().descriptors_opened;
    let mut buffer = [0; 5];
    assert_eq!(tier.read(object(1), 0, &mut buffer, Wait::Never), Err(TierError::MayBlock));
    assert_eq!(tier.counters().descriptors_opened, opened, "the object was opened");
    assert_eq!(tier.read(object(1), 0, &mut buffer, Wait::Allowed), Ok(5));
    assert_eq!(tier.counters().descriptors_opened, opened + 1);
    // It is open and in memory now; only a file system that cannot say so may still refuse.
    match tier.read(object(1), 0, &mut buffer, Wait::Never) {
        Ok(count) => assert_eq!(&buffer[..count], b"bytes"),
        Err(error) => assert!(matches!(error, TierError::WouldBlock | TierError::MayBlock), "{error}"),
    }
}

#[test]
fn half_of_the_descriptors_are_lent_and_a_lent_object_takes_no_further_one() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let options = PosixTierOptions { descriptors_max: 8, ..PosixTierOptions::new("tier") };
    let tier = PosixTier::prepare(directory.path(), options).expect("a tier is made");
    for id in 1..=6 {
        tier.create(object(id)).expect("an object is made");
    }
    let lend = |id, purpose| tier.lend(object(id), purpose);
    let loans: Vec<_> = (1..=4).map(|id| lend(id, LoanPurpose::Read).expect("within half of them")).collect();
    assert!(matches!(lend(5, LoanPurpose::Read), Err(TierError::Unsupported(_))));
    let second = lend(1, LoanPurpose::Change).expect("it is lent already");
    assert!(tier.is_unsynced(object(1)), "whoever has it may change it");
    let held = lend(6, LoanPurpose::Held).expect("somebody has it already");
    drop(loans);
    drop((second, held));
    let again: Vec<_> = (1..=4).map(|id| lend(id, LoanPurpose::Change).expect("all were given back")).collect();
    assert!(lend(5, LoanPurpose::Change).is_err());
    drop(again);
}

/// Bytes of a file that are in memory, as `fincore` tells.
fn bytes_in_memory(path: &Path) -> u64 {
    let output = Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(path).output();
    let output = output.expect("fincore, of util-linux, can be started");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("it prints a number")
}

/// Whether it can be asked; says so where it cannot.
fn has_fincore() -> bool {
    let has_it = Command::new("fincore").arg("--version").output().is_ok();
    if !has_it {
        assert!(std::env::var_os("CI").is_none(), "this must run in CI, and fincore is not there");
        eprintln!("skipped: fincore (package util-linux-extra) is not installed");
    }
    has_it
}

/// The largest file below a directory.
fn largest_file(directory: &Path) -> PathBuf {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory is listed").flatten() {
            let metadata = entry.metadata().expect("an entry has a stat");
            if metadata.is_dir() { left.push(entry.path()) } else { found.push((metadata.len(), entry.path())) }
        }
    }
    found.into_iter().max().expect("there is a file").1
}

/// A tier with one object of sevens, none of it in memory, and its file; `None` where the page cache cannot be queried.
fn tier_with_cold_object(directory: &Path, size: u64) -> Option<(PosixTier, PathBuf)> {
    let tier = PosixTier::prepare(directory, PosixTierOptions::new("tier")).expect("a tier is made");
    tier.create(object(1)).expect("an object is made");
    write(&tier, 1, 0, &vec![7; usize::try_from(size).expect("small")]).expect("written");
    tier.sync(object(1)).expect("synced");
    tier.drop_behind(object(1), 0, size);
    let path = largest_file(directory);
    if !has_fincore() {
        return None;
    }
    if bytes_in_memory(&path) > 0 {
        eprintln!("skipped: the file system below keeps everything in memory");
        return None;
    }
    Some((tier, path))
}

#[test]
fn a_read_whose_caller_reads_ahead_brings_nothing_else_into_memory() {
    const PART: u64 = 64 << 10;
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let Some((tier, path)) = tier_with_cold_object(directory.path(), 8 << 20) else { return };
    let mut buffer = vec![0; usize::try_from(PART).expect("small")];
    // One after the other, as a stream would be.
    for part in 16..20 {
        let count = tier.read_exactly(object(1), part * PART, &mut buffer, Wait::Allowed).expect("read");
        assert!(count == buffer.len() && buffer.iter().all(|byte| *byte == 7));
    }
    assert_eq!(bytes_in_memory(&path), 4 * PART);
    // Other readers have the file system's way of reading ahead again.
    for part in 96..100 {
        tier.read(object(1), part * PART, &mut buffer, Wait::Allowed).expect("read");
    }
    assert!(bytes_in_memory(&path) > 8 * PART, "nothing was read ahead");
}

/// The kernel reads no more at once than a device reads ahead, and says nothing.
#[test]
fn a_range_of_any_length_is_begun_to_be_read_as_a_whole() {
    const SIZE: u64 = 16 << 20;
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let Some((tier, path)) = tier_with_cold_object(directory.path(), SIZE) else { return };
    tier.read_ahead(object(1), 0, SIZE);
    let deadline = Instant::now() + Duration::from_secs(20);
    while bytes_in_memory(&path) < SIZE {
        assert!(Instant::now() < deadline, "{} of {SIZE} bytes were begun", bytes_in_memory(&path));
        std::thread::sleep(Duration::from_millis(10));
    }
}
