//! Small reads at random that memory answers, past the bookkeeping of tiers: they return the same bytes as all others, and are seen in counters.

mod common;

use std::sync::{Arc, Mutex, Weak};

use common::{PosixVolume, close, create, pattern, read_at, read_only, write_all};
use polymux_fs::{Caller, FileSystem, HandleId, SetAttributes, SyncKind};
use polymux_tier::{MemoryReads, ObjectRef, Tier};
use polymux_types::Ino;

const LENGTH: usize = 200_000;

fn from_memory(fs: &FileSystem) -> u64 {
    let counters = fs.status().expect("status").counters;
    counters.iter().find(|(name, _)| *name == "reads_from_memory").expect("it is counted").1
}

/// A volume, if the file system of temporary files tells which bytes are in memory, as ext4, XFS and btrfs do.
fn supported(volume: PosixVolume) -> Option<PosixVolume> {
    let fs = volume.fs();
    let (_, handle) = create(fs, "probe");
    write_all(fs, handle, 0, &[1; 50_000]).expect("written");
    for offset in [1000, 30_000, 10_000, 20_000] {
        read_at(fs, handle, offset, 10).expect("read");
    }
    close(fs, handle).expect("closed");
    if from_memory(fs) > 0 {
        return Some(volume);
    }
    assert!(std::env::var_os("CI").is_none(), "this must run in CI");
    println!("skipped: the file system of temporary files does not say what is in memory");
    None
}

/// A closed file with this content, opened to be read, whose object is open on its tier.
fn open_file(fs: &FileSystem, content: &[u8]) -> (Ino, HandleId) {
    let (ino, handle) = create(fs, "f");
    write_all(fs, handle, 0, content).expect("written");
    fs.sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    close(fs, handle).expect("closed");
    let handle = fs.open(&Caller::root(), ino, read_only()).expect("opened");
    // The first one goes the ordinary way, and sets the access time.
    assert_eq!(read_at(fs, handle, 0, 10).expect("read"), content[..10]);
    (ino, handle)
}

/// Whether memory answered a read, which has to return these bytes.
fn is_from_memory(fs: &FileSystem, handle: HandleId, offset: usize, expected: &[u8]) -> bool {
    let before = from_memory(fs);
    assert!(read_at(fs, handle, offset as u64, expected.len()).expect("read") == expected, "at {offset}");
    from_memory(fs) > before
}

#[test]
fn memory_answers_small_reads_at_random_and_the_ordinary_way_all_others() {
    let Some(volume) = supported(PosixVolume::new(&[None, None])) else { return };
    let (fs, content) = (volume.fs(), pattern(3, LENGTH));
    let (_, handle) = open_file(fs, &content);
    assert!(is_from_memory(fs, handle, 50_000, &content[50_000..50_100]));
    assert!(!is_from_memory(fs, handle, 50_100, &content[50_100..50_200]), "a stream");
    assert!(is_from_memory(fs, handle, 90_000, &content[90_000..94_096]));
    assert!(!is_from_memory(fs, handle, 10_000, &content[10_000..30_000]), "too long");
    let end = read_at(fs, handle, LENGTH as u64 - 5, 100).expect("read");
    assert_eq!(end, content[LENGTH - 5..], "short at the end of the file");
}

#[test]
fn a_read_after_a_change_sets_the_access_time_and_memory_answers_the_next_ones() {
    let Some(volume) = supported(PosixVolume::new(&[None])) else { return };
    let (fs, content) = (volume.fs(), pattern(3, LENGTH));
    let (ino, handle) = open_file(fs, &content);
    assert!(is_from_memory(fs, handle, 50_000, &content[50_000..50_100]));
    let (attributes, writer) = (fs.attributes(&Caller::root(), ino).expect("there"), common::read_write());
    let accessed = attributes.accessed;
    let writer = fs.open(&Caller::root(), ino, writer).expect("opened");
    std::thread::sleep(std::time::Duration::from_millis(20));
    write_all(fs, writer, 70_000, b"changed").expect("written");
    assert!(!is_from_memory(fs, handle, 70_000, b"changed"), "the ordinary way knows about times");
    assert!(fs.attributes(&Caller::root(), ino).expect("there").accessed > accessed);
    assert!(is_from_memory(fs, handle, 70_001, b"hanged"));
}

/// Descriptors of this process whose file was removed from a tier.
fn removed_but_open(volume: &PosixVolume) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let is_removed_object = |link: &std::path::PathBuf| {
        let target = std::fs::read_link(link).map(|target| target.to_string_lossy().into_owned()).unwrap_or_default();
        target.starts_with(volume.directory().to_str().expect("text")) && target.ends_with("(deleted)")
    };
    links.map(|entry| entry.path()).filter(is_removed_object).count()
}

#[test]
fn a_file_that_moves_is_read_from_memory_on_its_new_tier_and_its_old_object_goes() {
    let Some(volume) = supported(PosixVolume::new(&[None, None])) else { return };
    let (fs, content) = (volume.fs(), pattern(5, LENGTH));
    let (ino, handle) = open_file(fs, &content);
    assert!(is_from_memory(fs, handle, 50_000, &content[50_000..50_100]));
    fs.migrate(ino, "slow", None).expect("accepted");
    for _ in 0..200 {
        fs.step();
        fs.move_step();
    }
    assert_eq!(removed_but_open(&volume), 0, "an open description keeps nothing of the old object");
    assert_eq!(read_at(fs, handle, 100, 10).expect("read"), content[100..110], "opens the new one");
    assert!(is_from_memory(fs, handle, 60_000, &content[60_000..60_100]));
}

type Change = Box<dyn Fn() + Send>;

/// Runs once, before the next read from memory.
static CHANGE: Mutex<Option<Change>> = Mutex::new(None);

/// A tier whose reads from memory are overtaken by a change of the file.
struct Overtaken {
    inner: Arc<dyn Tier>,
    known: Mutex<Vec<Arc<dyn MemoryReads>>>,
}

struct OvertakenReads(Weak<dyn MemoryReads>);

impl MemoryReads for OvertakenReads {
    fn read_from_memory(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let reads = self.0.upgrade()?;
        if let Some(change) = CHANGE.lock().expect("no panic").take() {
            change();
        }
        reads.read_from_memory(offset, buffer)
    }
}

impl Tier for Overtaken {
    fn memory_reads(&self, object: ObjectRef) -> Option<Weak<dyn MemoryReads>> {
        let reads: Arc<dyn MemoryReads> = Arc::new(OvertakenReads(self.inner.memory_reads(object)?));
        self.known.lock().expect("no panic").push(Arc::clone(&reads));
        Some(Arc::downgrade(&reads))
    }

    polymux_tier::forward_to_tier!(inner: capabilities, space, create, remove, stat, read, read_for_keeper, read_exactly, write,
        begin_write_back, wait_for_write_back, read_ahead, cached_bytes, drop_behind, lend, may_be_open_elsewhere, empty_for_removal, share_for_copy, open_for_program,
        copy_within_file_system, truncate, allocate, punch, seek, allocated, give_back_room_ahead, stamp, read_stamp, sync, sync_all,
        is_unsynced, list, read_label, write_label, remove_label, probe, measuring_ground, counters);
}

#[test]
fn bytes_of_an_object_that_the_file_gave_up_during_the_read_are_not_returned() {
    let wrap = |inner| Arc::new(Overtaken { inner, known: Mutex::default() }) as Arc<dyn Tier>;
    let Some(volume) = supported(PosixVolume::wrapping(&[None], wrap)) else { return };
    let fs = volume.fs();
    let (before, after) = (pattern(1, LENGTH), pattern(2, LENGTH));
    let (ino, handle) = open_file(fs, &before);
    assert!(is_from_memory(fs, handle, 50_000, &before[50_000..50_100]));
    let (own, written) = (Arc::clone(fs), after.clone());
    *CHANGE.lock().expect("no panic") = Some(Box::new(move || {
        let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
        own.set_attributes(&Caller::root(), ino, &empty).expect("emptied");
        let writer = own.open(&Caller::root(), ino, common::read_write()).expect("opened");
        write_all(&own, writer, 0, &written).expect("written");
        close(&own, writer).expect("closed");
    }));
    assert!(!is_from_memory(fs, handle, 80_000, &after[80_000..80_100]), "the change was noticed");
    assert!(CHANGE.lock().expect("no panic").is_none(), "it happened during the read");
}
