//! Regions in memory and on disks, as far as this machine has them.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::*;

const LENGTH: u64 = 64 * 1024;

/// A directory in memory; `None` where there is none, and then the test says so.
fn memory_directory() -> Option<tempfile::TempDir> {
    let shared = Path::new("/dev/shm");
    let found =
        tempfile::tempdir_in(shared).ok().filter(|directory| probe(directory.path()).ok() == Some(Addressing::Memory));
    if found.is_none() {
        println!("skipped: {} is no file system in memory", shared.display());
    }
    found
}

/// A directory on a disk; `None` where there is none.
fn disk_directory() -> Option<tempfile::TempDir> {
    let found = tempfile::tempdir_in("/var/tmp").ok();
    let found = found.filter(|directory| probe(directory.path()).ok() == Some(Addressing::Blocks));
    if found.is_none() {
        println!("skipped: /var/tmp is not on a disk");
    }
    found
}

fn path_in(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("region")
}

#[test]
fn what_was_stored_is_there_when_it_is_opened_again() {
    let Some(directory) = memory_directory() else { return };
    let path = path_in(&directory);
    let region = MappedRegion::create(&path, LENGTH, RegionKind::TestDouble).unwrap();
    assert_eq!(region.words().len(), 8192);
    assert!(region.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    region.words()[17].store(42, Ordering::Relaxed);
    region.write_back(17 * 8..18 * 8).unwrap();
    drop(region);
    let region = MappedRegion::open(&path, LENGTH, RegionKind::TestDouble).unwrap();
    assert_eq!(region.words()[17].load(Ordering::Relaxed), 42);
    assert!(region.description().contains("TEST DOUBLE"));
}

#[test]
fn memory_is_refused_unless_the_test_double_is_asked_for_by_name() {
    let Some(directory) = memory_directory() else { return };
    let path = path_in(&directory);
    let error = MappedRegion::create(&path, LENGTH, RegionKind::Dax).err().expect("memory is not durable");
    assert!(error.to_string().contains("only as a test double"), "{error}");
    assert!(!path.exists(), "nothing is left behind");
}

#[test]
fn a_disk_is_refused_whatever_is_asked_for() {
    let Some(directory) = disk_directory() else { return };
    let path = path_in(&directory);
    for kind in [RegionKind::Dax, RegionKind::TestDouble] {
        let error = MappedRegion::create(&path, LENGTH, kind).err().expect("a disk is not byte-addressable");
        assert!(matches!(error, RegionError::NotByteAddressable { .. }), "{error}");
        assert!(!path.exists(), "nothing is left behind");
    }
}

#[test]
fn a_file_of_another_length_one_in_use_and_one_that_exists_are_refused() {
    let Some(directory) = memory_directory() else { return };
    let path = path_in(&directory);
    let region = MappedRegion::create(&path, LENGTH, RegionKind::TestDouble).unwrap();
    let used = MappedRegion::open(&path, LENGTH, RegionKind::TestDouble).err().expect("it is locked");
    assert!(matches!(used, RegionError::InUse(_)), "{used}");
    let twice = MappedRegion::create(&path, LENGTH, RegionKind::TestDouble).err().expect("it exists");
    assert!(matches!(twice, RegionError::Io { .. }), "{twice}");
    drop(region);
    let longer = MappedRegion::open(&path, 2 * LENGTH, RegionKind::TestDouble).err().expect("it is shorter");
    assert!(matches!(longer, RegionError::Length { found: LENGTH, .. }), "{longer}");
    assert!(MappedRegion::open(&path, LENGTH, RegionKind::TestDouble).is_ok(), "refusing changed nothing");
}

#[test]
fn a_delay_is_added_for_each_line_that_is_touched() {
    let Some(directory) = memory_directory() else { return };
    let region = MappedRegion::create(&path_in(&directory), LENGTH, RegionKind::TestDouble).unwrap();
    let region = region.with_delay_per_line(Duration::from_micros(200));
    let begun = Instant::now();
    // Two bytes on either side of the end of a line.
    region.write_back(63..65).unwrap();
    assert!(begun.elapsed() >= Duration::from_micros(400));
}
