//! Files whose object the kernel uses itself. The kernel is played: it writes to the descriptor that it was given.

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Hook, HookedTier, PosixVolume, close, create, errno, pattern, read_at, read_only, read_write, write_all};
use polymux_fs::{
    AllocateKind, BackingId, BootId, Caller, FileSystem, HandleId, IoMode, JobState, MountOptions, PagesKept,
    PassthroughPort, PassthroughUse, Promotion, SetAttributes, SetIdBits, SetTime, SyncKind, WaitsFor, WriteOrigin,
};
use polymux_tier::{Capabilities, Rotation, Tier};
use polymux_types::{Errno, Ino, Timestamp};

const MIB: u64 = 1 << 20;

/// State that the kernel holds of the volume.
#[derive(Default)]
struct PlayedKernel {
    refuses: AtomicBool,
    objects: Mutex<Vec<(BackingId, Arc<File>)>>,
    numbers: AtomicU32,
}

impl PassthroughPort for PlayedKernel {
    fn register(&self, object: BorrowedFd<'_>) -> Option<BackingId> {
        let backing = BackingId(self.numbers.fetch_add(1, Ordering::Relaxed) + 1);
        let own = object.try_clone_to_owned().expect("a descriptor can be copied");
        self.objects.lock().expect("no panic").push((backing, Arc::new(File::from(own))));
        Some(backing)
    }

    fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    fn forget(&self, backing: BackingId) {
        let mut objects = self.objects.lock().expect("no panic");
        let place = objects.iter().position(|(number, _)| *number == backing).expect("it is known");
        objects.remove(place);
    }
}

impl PlayedKernel {
    /// The object by which a description is passed through, opened once more as the kernel does: this stands for a description
    /// or a mapping.
    fn object(&self, backing: Option<BackingId>) -> File {
        let objects = self.objects.lock().expect("no panic");
        let found = &objects.iter().find(|(number, _)| Some(*number) == backing).expect("it is passed through").1;
        let own = format!("/proc/self/fd/{}", found.as_raw_fd());
        File::options().read(true).write(true).open(own).expect("an open file can be opened again")
    }

    fn holds_nothing(&self) -> bool {
        self.objects.lock().expect("no panic").is_empty()
    }
}

struct Tested {
    volume: PosixVolume,
    kernel: Arc<PlayedKernel>,
}

fn tested(capacities: &[Option<u64>]) -> Tested {
    tested_on(PosixVolume::new_in_memory(capacities))
}

fn tested_on(volume: PosixVolume) -> Tested {
    let kernel = Arc::new(PlayedKernel::default());
    volume.fs().set_passthrough_port(Arc::clone(&kernel) as _).expect("recorded");
    Tested { volume, kernel }
}

impl Tested {
    fn fs(&self) -> &FileSystem {
        self.volume.fs()
    }

    /// A file with an object, closed, that was only overwritten when it was open for changes last.
    fn file(&self, name: &str, content: &[u8]) -> Ino {
        let ino = self.new_file(name, content);
        self.overwrite(ino);
        ino
    }

    /// A file that was made and closed.
    fn new_file(&self, name: &str, content: &[u8]) -> Ino {
        let (ino, handle) = create(self.fs(), name);
        write_all(self.fs(), handle, 0, content).expect("written");
        self.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        close(self.fs(), handle).expect("closed");
        ino
    }

    /// A program overwrites a file in place.
    fn overwrite(&self, ino: Ino) {
        let handle = self.fs().open(&Caller::root(), ino, read_write()).expect("opened");
        let first = read_at(self.fs(), handle, 0, 1).expect("read");
        write_all(self.fs(), handle, 0, &first).expect("overwritten");
        self.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        close(self.fs(), handle).expect("closed");
    }

    /// Opens as the kernel does.
    fn open(&self, ino: Ino, options: polymux_fs::OpenOptions) -> (HandleId, IoMode, Option<BackingId>) {
        let handle = self.fs().open(&Caller::root(), ino, options).expect("opened");
        let decision = self.fs().decide_io_mode(handle).expect("decided");
        (handle, decision.mode, decision.backing)
    }

    fn size(&self, ino: Ino) -> u64 {
        self.fs().attributes(&Caller::root(), ino).expect("there").size
    }

    fn truncate(&self, ino: Ino, size: u64) {
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs().set_attributes(&Caller::root(), ino, &change).expect("truncated");
    }
}

#[test]
fn a_whole_file_is_passed_through_and_new_inline_and_split_ones_are_not() {
    let tested = tested(&[Some(8 * MIB), None]);
    let whole = tested.file("whole", &pattern(1, 100_000));
    let (handle, mode, backing) = tested.open(whole, read_only());
    assert_eq!(mode, IoMode::Passthrough);
    let mut there = vec![0; 100_000];
    tested.kernel.object(backing).read_exact_at(&mut there, 0).expect("read");
    assert!(there == pattern(1, 100_000));
    close(tested.fs(), handle).expect("closed");
    assert!(tested.kernel.holds_nothing(), "the kernel is told when nobody uses it any more");

    let (new, handle) = create(tested.fs(), "new");
    assert_eq!(tested.fs().decide_io_mode(handle).expect("decided").mode, IoMode::Cached);
    assert_eq!(tested.open(new, read_only()).1, IoMode::Cached, "as the first description of it");
    assert_eq!(tested.open(tested.file("inline", b"short"), read_only()).1, IoMode::Cached);
    let split = tested.file("split", &pattern(2, 12 * 1024 * 1024));
    assert!(tested.fs().locate(split).expect("located").shares.len() > 1);
    assert_eq!(tested.open(split, read_only()).1, IoMode::Cached);
}

#[test]
fn what_is_emptied_by_its_open_goes_through_the_daemon_and_grows_beyond_its_tier() {
    let tested = tested(&[Some(80 * MIB), None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let emptied = polymux_fs::OpenOptions { truncate: true, ..read_write() };
    let (handle, mode, _) = tested.open(ino, emptied);
    assert_eq!(mode, IoMode::Cached);
    let data = pattern(3, 90 << 20);
    write_all(tested.fs(), handle, 0, &data).expect("it goes on on the next tier");
    close(tested.fs(), handle).expect("closed");
    assert!(tested.fs().locate(ino).expect("located").shares.len() > 1);
}

#[test]
fn what_the_kernel_writes_is_seen_at_once_and_stays() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, mode, backing) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::Passthrough);
    assert!(tested.fs().is_changed_directly(ino), "attributes are not to be kept");
    let before = tested.fs().attributes(&Caller::root(), ino).expect("there").modified;
    std::thread::sleep(std::time::Duration::from_millis(20));
    tested.kernel.object(backing).write_all_at(&pattern(5, 50_000), 80_000).expect("written");
    let seen = tested.fs().attributes(&Caller::root(), ino).expect("there");
    assert_eq!(seen.size, 130_000);
    assert!(seen.modified > before && seen.changed >= seen.modified);
    let expected = [&pattern(1, 100_000)[..80_000], &pattern(5, 50_000)].concat();
    assert!(read_at(tested.fs(), handle, 0, 200_000).expect("read") == expected);
    tested.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    close(tested.fs(), handle).expect("closed");
    assert!(!tested.fs().is_changed_directly(ino));
    assert_eq!(tested.size(ino), 130_000);
    let (handle, mode, _) = tested.open(ino, read_only());
    assert_eq!(mode, IoMode::Passthrough);
    assert!(read_at(tested.fs(), handle, 0, 200_000).expect("read") == expected);
}

#[test]
fn an_object_that_the_kernel_may_change_is_synced_whenever_somebody_asks() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let syncs = || {
        let counters = tested.fs().status().expect("status").tiers;
        counters[0].counters.syncs
    };
    let (handle, ..) = tested.open(ino, read_only());
    let before = syncs();
    tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    assert_eq!(syncs(), before, "nobody can have changed it");
    let (writer, ..) = tested.open(ino, read_write());
    for round in 1..4 {
        tested.fs().sync(&Caller::root(), writer, SyncKind::All).expect("synced");
        assert_eq!(syncs(), before + round);
    }
    close(tested.fs(), writer).expect("closed");
    close(tested.fs(), handle).expect("closed");
    let (handle, ..) = tested.open(ino, read_only());
    tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    assert_eq!(syncs(), before + 4, "what was written last is covered");
    tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    assert_eq!(syncs(), before + 4);
}

#[test]
fn a_file_that_is_emptied_or_cut_keeps_the_object_that_the_kernel_has() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, _, backing) = tested.open(ino, read_write());
    let object = tested.kernel.object(backing);
    tested.truncate(ino, 50_000);
    assert_eq!(object.metadata().expect("there").len(), 50_000);
    tested.truncate(ino, 0);
    assert_eq!((object.metadata().expect("there").len(), tested.size(ino)), (0, 0));
    object.write_all_at(&pattern(7, 30_000), 0).expect("written");
    tested.truncate(ino, 200_000);
    assert_eq!(object.metadata().expect("there").len(), 200_000);
    tested.fs().flush(&Caller::root(), handle).expect("a file that was emptied is durable when it is closed");
    close(tested.fs(), handle).expect("closed");
    let (handle, ..) = tested.open(ino, read_only());
    let content = read_at(tested.fs(), handle, 0, 300_000).expect("read");
    assert!(content[..30_000] == pattern(7, 30_000) && content[30_000..] == vec![0; 170_000]);
}

#[test]
fn a_hole_is_punched_where_the_kernel_reads() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, _, backing) = tested.open(ino, read_write());
    tested.fs().allocate(&Caller::root(), handle, 8192, 8192, AllocateKind::PunchHole).expect("punched");
    let mut there = vec![1; 8192];
    tested.kernel.object(backing).read_exact_at(&mut there, 8192).expect("read");
    assert_eq!(there, vec![0; 8192]);
    tested.kernel.object(backing).write_all_at(b"again", 9000).expect("written");
    close(tested.fs(), handle).expect("closed");
    let (handle, ..) = tested.open(ino, read_only());
    assert_eq!(read_at(tested.fs(), handle, 9000, 5).expect("read"), b"again", "the hole was no change of owners");
}

#[test]
fn nothing_moves_while_the_kernel_has_it_and_it_moves_when_it_is_closed() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 3 * 1024 * 1024));
    let (handle, _, backing) = tested.open(ino, read_write());
    let job = tested.fs().migrate(ino, "slow", None).expect("accepted");
    while tested.fs().move_step() == polymux_fs::Progress::Worked {}
    let state = tested.fs().job(job).expect("known").state;
    assert_eq!(state, JobState::Parked(WaitsFor::Close(ino)));
    tested.kernel.object(backing).write_all_at(b"late", 1_000_000).expect("written");
    close(tested.fs(), handle).expect("closed");
    for _ in 0..1000 {
        tested.fs().step();
        tested.fs().move_step();
    }
    assert_eq!(tested.fs().job(job).expect("known").state, JobState::Done);
    let (handle, ..) = tested.open(ino, read_only());
    let mut expected = pattern(1, 3 * 1024 * 1024);
    expected[1_000_000..1_000_004].copy_from_slice(b"late");
    assert!(read_at(tested.fs(), handle, 0, expected.len()).expect("read") == expected);
}

#[test]
fn a_mapping_that_outlives_its_descriptor_holds_the_file() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, _, backing) = tested.open(ino, read_write());
    let mapping = tested.kernel.object(backing);
    close(tested.fs(), handle).expect("closed");
    let job = tested.fs().migrate(ino, "slow", None).expect("accepted");
    steps(&tested);
    assert_eq!(tested.fs().job(job).expect("known").state, JobState::Parked(WaitsFor::Close(ino)));
    mapping.write_all_at(b"stored", 50).expect("stored");
    assert!(tested.fs().is_changed_directly(ino));
    let (handle, mode, _) = tested.open(ino, read_only());
    assert_eq!(mode, IoMode::Passthrough, "to the same object");
    assert_eq!(read_at(tested.fs(), handle, 50, 6).expect("read"), b"stored");
    close(tested.fs(), handle).expect("closed");
    drop(mapping);
    wait_until(&tested, "it moves when it is unmapped", || {
        tested.fs().job(job).expect("known").state == JobState::Done
    });
    let (handle, ..) = tested.open(ino, read_only());
    assert_eq!(read_at(tested.fs(), handle, 50, 6).expect("read"), b"stored");
}

#[test]
fn a_file_that_is_mapped_to_be_changed_beside_a_reader_is_synced_whenever_somebody_asks() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (reader, _, backing) = tested.open(ino, read_only());
    let _mapped_to_read = tested.kernel.object(backing);
    close(tested.fs(), reader).expect("closed");
    let (writer, mode, backing) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::Passthrough);
    let mapping = tested.kernel.object(backing);
    close(tested.fs(), writer).expect("closed");
    let (handle, ..) = tested.open(ino, read_only());
    let syncs = || tested.fs().status().expect("status").tiers[0].counters.syncs;
    let before = syncs();
    for round in 1..4 {
        mapping.write_all_at(b"stored", 50).expect("stored");
        tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        assert_eq!(syncs(), before + round);
    }
}

#[test]
fn what_a_direct_write_would_not_do_goes_through_the_daemon() {
    let tested = tested(&[None, None]);
    let synchronous = polymux_fs::OpenOptions { synchronous: true, ..read_write() };
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, mode, _) = tested.open(ino, synchronous);
    assert_eq!(mode, IoMode::Cached, "its writes are durable when they return, with their record");
    close(tested.fs(), handle).expect("closed");
    let change = SetAttributes { permissions: Some(0o4755), ..SetAttributes::default() };
    tested.fs().set_attributes(&Caller::root(), ino, &change).expect("set");
    tested.fs().sync_volume().expect("synced");
    let (handle, mode, _) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::Cached, "a write takes the set-id bit away");
    close(tested.fs(), handle).expect("closed");
}

#[test]
fn a_change_of_the_mode_after_a_direct_write_keeps_its_time() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let before = tested.fs().attributes(&Caller::root(), ino).expect("there").modified;
    let (handle, _, backing) = tested.open(ino, read_write());
    std::thread::sleep(std::time::Duration::from_millis(20));
    tested.kernel.object(backing).write_all_at(b"one", 0).expect("written");
    let change = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
    tested.fs().set_attributes(&Caller::root(), ino, &change).expect("set");
    close(tested.fs(), handle).expect("closed");
    assert!(tested.fs().attributes(&Caller::root(), ino).expect("there").modified > before);
}

#[test]
fn a_large_file_on_a_slow_tier_stays_movable_and_a_small_one_is_passed_through_where_promotion_is_polite() {
    let mut tested = tested(&[None, None]);
    tested.volume.remount(MountOptions { promotion: Promotion::Polite, ..MountOptions::default() });
    tested.fs().set_passthrough_port(Arc::clone(&tested.kernel) as _).expect("recorded");
    let (ino, handle) = create(tested.fs(), "large");
    tested.fs().allocate(&Caller::root(), handle, 0, 65 * MIB, AllocateKind::Extend).expect("room");
    close(tested.fs(), handle).expect("closed");
    let small = tested.file("small", &pattern(1, 100_000));
    for file in [ino, small] {
        tested.fs().migrate(file, "slow", None).expect("accepted");
    }
    for _ in 0..1000 {
        tested.fs().step();
        tested.fs().move_step();
    }
    assert_eq!(tested.fs().locate(ino).expect("located").home.as_deref(), Some("slow"));
    assert_eq!(tested.open(ino, read_only()).1, IoMode::Cached);
    assert_eq!(tested.open(small, read_only()).1, IoMode::Passthrough);
}

#[test]
fn what_is_read_on_a_slower_tier_goes_through_the_daemon_so_that_it_can_move_up() {
    let tested = tested(&[None, None]);
    let (slow, fast) = (tested.file("slow", &pattern(1, 100_000)), tested.file("fast", &pattern(2, 100_000)));
    tested.fs().migrate(slow, "slow", None).expect("accepted");
    for _ in 0..1000 {
        tested.fs().step();
        tested.fs().move_step();
    }
    assert_eq!(tested.open(slow, read_only()).1, IoMode::Cached);
    assert_eq!(tested.open(fast, read_only()).1, IoMode::Passthrough);
}

/// Four tenths of each file are found in memory, from the moment on when the test says so: as if the device had been asked for them since.
struct ReadByKernel;

static HAS_READ: AtomicBool = AtomicBool::new(false);

impl Hook for ReadByKernel {
    fn cached_bytes(&self, length: u64) -> Option<u64> {
        Some(if HAS_READ.load(Ordering::Acquire) { length / 10 * 4 } else { 0 })
    }
}

/// A tier that never seeks, as its device says.
fn read_by_kernel(tier: Arc<dyn Tier>) -> Arc<dyn Tier> {
    let never_seeks = |capabilities: &mut Capabilities| capabilities.rotation = Rotation::NonRotational;
    Arc::new(HookedTier::new(tier, Arc::new(ReadByKernel)).with_capabilities(never_seeks))
}

#[test]
fn where_the_kernel_reads_as_much_as_a_device_may_serve_and_another_one_could_help_the_next_reads_go_through_the_daemon()
 {
    let tested = tested_on(PosixVolume::wrapping_in_memory(&[None, None], read_by_kernel));
    let files = ["one", "two", "three", "four"].map(|name| {
        let ino = tested.file(name, &pattern(1, 100_000));
        tested.truncate(ino, 200 * MIB);
        tested.overwrite(ino);
        ino
    });
    // Between which tiers reads may be handed over is known at the end of a window.
    std::thread::sleep(Duration::from_millis(1100));
    tested.fs().step();
    tested.fs().move_step();
    let open = files.map(|ino| tested.open(ino, read_only()));
    assert_eq!(open.map(|(_, mode, _)| mode), [IoMode::Passthrough; 4]);
    HAS_READ.store(true, Ordering::Release);
    // Of each file the first 64 nodes are looked at, of which 204 pages came.
    open[..3].iter().for_each(|(handle, ..)| close(tested.fs(), *handle).expect("closed"));
    assert_eq!(tested.open(files[0], read_only()).1, IoMode::Passthrough, "4,900 reads a second are no reason");
    close(tested.fs(), open[3].0).expect("closed");
    assert_eq!(tested.open(files[1], read_only()).1, IoMode::Cached);
}

#[test]
fn changes_are_passed_through_only_where_there_is_room_for_them() {
    let tested = tested(&[None, None]);
    let tier = &tested.fs().status().expect("status").tiers[0];
    let room = tier.space.expect("it is there").free - tier.reserve;
    let sparse = |name: &str| {
        let ino = tested.file(name, &pattern(1, 100_000));
        tested.truncate(ino, room / 10 * 6);
        tested.overwrite(ino);
        ino
    };
    let (first, second) = (sparse("first"), sparse("second"));
    let (handle, mode, _) = tested.open(first, read_write());
    assert_eq!(mode, IoMode::Passthrough);
    let (other, mode, _) = tested.open(second, read_write());
    assert_eq!(mode, IoMode::Cached, "the room for its holes is promised to the other one");
    close(tested.fs(), handle).expect("closed");
    close(tested.fs(), other).expect("closed");
    assert_eq!(tested.open(second, read_write()).1, IoMode::Passthrough, "and is there again");
    let (reader, mode, _) = tested.open(first, read_only());
    assert_eq!(mode, IoMode::Passthrough, "reading needs no room");
    let (writer, mode, _) = tested.open(first, read_write());
    assert_eq!(mode, IoMode::PassthroughDirect, "whoever changes it beside a reader comes to the daemon");
    tested.fs().write(&Caller::root(), writer, 0, b"by the daemon", WriteOrigin::Call).expect("written");
    assert_eq!(read_at(tested.fs(), reader, 0, 13).expect("read"), b"by the daemon");
}

#[test]
fn only_files_that_did_not_grow_when_they_were_changed_last_are_passed_through_for_changes() {
    let tested = tested(&[None, None]);
    let mode_of = |ino| {
        let (handle, mode, _) = tested.open(ino, read_write());
        close(tested.fs(), handle).expect("closed");
        mode
    };
    let ino = tested.new_file("f", &pattern(1, 100_000));
    assert_eq!(mode_of(ino), IoMode::Cached, "it grew when it was made");
    assert_eq!(mode_of(ino), IoMode::Cached, "and nothing was overwritten since");
    let (reader, mode, _) = tested.open(ino, read_only());
    assert_eq!(mode, IoMode::Passthrough, "reading takes no room");
    assert_eq!(mode_of(ino), IoMode::PassthroughDirect);
    close(tested.fs(), reader).expect("closed");

    tested.overwrite(ino);
    let appending = polymux_fs::OpenOptions { append: true, ..read_write() };
    let (handle, mode, _) = tested.open(ino, appending);
    assert_eq!(mode, IoMode::Cached, "it is opened to be made longer");
    close(tested.fs(), handle).expect("closed");
    let (handle, mode, backing) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::Passthrough, "it was overwritten in place");
    tested.kernel.object(backing).write_all_at(b"inside", 5000).expect("written");
    close(tested.fs(), handle).expect("closed");

    let (handle, mode, backing) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::Passthrough, "it did not grow while the kernel wrote to it");
    tested.kernel.object(backing).write_all_at(b"longer", 100_000).expect("written");
    assert_eq!(mode_of(ino), IoMode::PassthroughDirect, "it grows: who comes now is heard");
    close(tested.fs(), handle).expect("closed");
    assert_eq!(mode_of(ino), IoMode::Cached, "from the next time on it may go on on another tier");
    tested.overwrite(ino);
    assert_eq!(mode_of(ino), IoMode::Passthrough, "and it can earn that again");
    tested.truncate(ino, 200_000);
    assert_eq!(mode_of(ino), IoMode::Cached, "made longer by a call");
}

#[test]
fn where_there_is_no_other_tier_a_file_that_grows_is_passed_through_for_changes_too() {
    let tested = tested(&[None]);
    let ino = tested.new_file("f", &pattern(1, 100_000));
    assert_eq!(tested.open(ino, read_write()).1, IoMode::Passthrough);
}

fn has_object(tested: &Tested, ino: Ino) -> bool {
    tested.fs().locate(ino).expect("located").home.is_some()
}

/// A volume whose only tier has the gigabytes of free space that a growing file needs, which `/dev/shm` has not everywhere.
fn on_only_tier() -> Tested {
    tested_on(PosixVolume::new(&[None]))
}

/// Makes a file as the kernel does, and says how it does its I/O.
fn make_file(tested: &Tested, name: &str) -> (Ino, HandleId, IoMode, Option<BackingId>) {
    let (ino, handle) = create(tested.fs(), name);
    let decision = tested.fs().decide_io_mode(handle).expect("decided");
    (ino, handle, decision.mode, decision.backing)
}

/// Writes to a file that was just made: the kernel to the object that it was given, where it was given one.
fn write_new(tested: &Tested, handle: HandleId, backing: Option<BackingId>, content: &[u8]) {
    match backing {
        Some(_) => tested.kernel.object(backing).write_all_at(content, 0).expect("written"),
        None => write_all(tested.fs(), handle, 0, content).expect("written"),
    }
}

#[test]
fn where_there_is_no_other_tier_a_new_file_is_passed_through_from_its_creation_on() {
    let mut tested = on_only_tier();
    let (ino, handle, mode, backing) = make_file(&tested, "new");
    assert_eq!(mode, IoMode::Passthrough);
    assert_eq!(tested.size(ino), 0);
    let object = tested.kernel.object(backing);
    let content = pattern(7, 300_000);
    object.write_all_at(&content, 0).expect("written");
    assert_eq!(tested.size(ino), 300_000, "seen at once");
    let (reader, mode, _) = tested.open(ino, read_only());
    assert_eq!(mode, IoMode::Passthrough, "as every other description of it");
    close(tested.fs(), reader).expect("closed");
    tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    drop(object);
    close(tested.fs(), handle).expect("closed");
    assert!(tested.kernel.holds_nothing());
    tested.volume.remount(MountOptions::default());
    let handle = tested.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert!(read_at(tested.fs(), handle, 0, 300_000).expect("read") == content);
}

#[test]
fn durable_direct_writes_to_a_new_file_are_there_after_a_power_failure() {
    let mut tested = on_only_tier();
    let (ino, _, mode, backing) = make_file(&tested, "new");
    assert_eq!(mode, IoMode::Passthrough);
    let object = tested.kernel.object(backing);
    object.write_all_at(b"durable when it returns", 0).expect("written");
    // A write with `RWF_DSYNC`, or `msync`, of which the daemon does not hear.
    object.sync_data().expect("synced");
    drop(object);
    tested.volume.die_and_mount(MountOptions::default());
    let handle = tested.fs().open(&Caller::root(), ino, read_only()).expect("it is there");
    assert_eq!(read_at(tested.fs(), handle, 0, 100).expect("read"), b"durable when it returns");
}

#[test]
fn new_files_that_are_likely_small_or_may_go_on_elsewhere_begin_in_the_daemon() {
    let several = tested(&[None, None]);
    let (new, _, mode, _) = make_file(&several, "new");
    assert_eq!(mode, IoMode::Cached, "another tier could take its growth");
    assert!(!has_object(&several, new), "and nothing was made for it");

    let tested = on_only_tier();
    let make = |name: &str, size: usize| {
        let (_, handle, mode, backing) = make_file(&tested, name);
        write_new(&tested, handle, backing, &pattern(1, size));
        close(tested.fs(), handle).expect("closed");
        mode
    };
    assert_eq!(make("1.c", 500), IoMode::Passthrough, "nothing is known");
    assert_eq!(make("2.c", 500), IoMode::Passthrough, "one small file says little");
    assert_eq!(make("3.c", 200_000), IoMode::Cached, "two of its kind were small");
    assert_eq!(make("4.c", 200_000), IoMode::Passthrough, "and one was not");
    assert!(tested.kernel.holds_nothing());
}

#[test]
fn new_files_that_a_direct_write_would_not_serve_begin_in_the_daemon() {
    let tested = on_only_tier();
    let begin = |name: &str, permissions: u32, options: polymux_fs::OpenOptions| {
        let made = tested.fs().create(&Caller::root(), Ino::ROOT, name.as_bytes(), permissions, options);
        let (attributes, handle) = made.expect("made");
        let mode = tested.fs().decide_io_mode(handle).expect("decided").mode;
        assert!(!has_object(&tested, attributes.ino), "nothing was made for {name}");
        close(tested.fs(), handle).expect("closed");
        mode
    };
    let write = read_write();
    assert_eq!(begin("durable.a", 0o644, polymux_fs::OpenOptions { synchronous: true, ..write }), IoMode::Cached);
    assert_eq!(begin("appends.b", 0o644, polymux_fs::OpenOptions { positions_appends: true, ..write }), IoMode::Cached);
    assert_eq!(begin("set-id.c", 0o4755, write), IoMode::Cached);
    assert_eq!(begin("read.d", 0o644, read_only()), IoMode::Cached);
    tested.kernel.refuses.store(true, Ordering::Relaxed);
    assert_eq!(begin("refused.e", 0o644, write), IoMode::Cached);
}

#[test]
fn messages_begin_in_the_daemon_once_a_directory_is_known_for_them() {
    let tested = on_only_tier();
    let deliver = |number: u8| {
        // A new process delivers each, under a name like no other.
        let caller = Caller { stream: polymux_types::StreamId(number.into()), ..Caller::root() };
        let name = format!("message.{}", "x".repeat(usize::from(number) + 1));
        let made = tested.fs().create(&caller, Ino::ROOT, name.as_bytes(), 0o644, read_write());
        let (_, handle) = made.expect("made");
        let decision = tested.fs().decide_io_mode(handle).expect("decided");
        write_new(&tested, handle, decision.backing, &pattern(1, 9000));
        tested.fs().sync(&caller, handle, SyncKind::All).expect("synced");
        close(tested.fs(), handle).expect("closed");
        decision.mode
    };
    assert_eq!(deliver(0), IoMode::Passthrough, "nothing is known");
    (1..12).for_each(|number| {
        deliver(number);
    });
    assert_eq!(deliver(12), IoMode::Cached, "the directory is known to hold messages");
}

#[test]
fn nothing_is_changed_directly_on_a_tier_that_has_a_capacity_to_keep_to() {
    let tested = tested(&[Some(256 * MIB), None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    assert_eq!(tested.open(ino, read_only()).1, IoMode::Passthrough);
    assert_eq!(tested.open(ino, read_write()).1, IoMode::PassthroughDirect);
    let other = tested.file("other", &pattern(1, 100_000));
    assert_eq!(tested.open(other, read_write()).1, IoMode::Cached);
}

#[test]
fn a_file_that_is_passed_through_never_spreads_over_two_tiers() {
    let tested = tested(&[Some(2 * MIB), None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (reader, mode, _) = tested.open(ino, read_only());
    assert_eq!(mode, IoMode::Passthrough);
    let (writer, mode, _) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::PassthroughDirect);
    let data = pattern(9, 4 * 1024 * 1024);
    let mut written = 0;
    let refused = loop {
        match tested.fs().write(&Caller::root(), writer, written as u64, &data[written..], WriteOrigin::Call) {
            Ok(count) => written += count,
            Err(error) => break errno::<()>(Err(error)),
        }
        assert!(written < data.len(), "the tier is smaller than that");
    };
    assert_eq!(refused, Errno::ENOSPC);
    assert_eq!(
        tested.fs().locate(ino).expect("located").shares.iter().filter(|share| share.bytes_mapped > 0).count(),
        1
    );
    close(tested.fs(), reader).expect("closed");
    close(tested.fs(), writer).expect("closed");
    let handle = tested.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    assert_eq!(tested.fs().decide_io_mode(handle).expect("decided").mode, IoMode::Cached);
    write_all(tested.fs(), handle, written as u64, &data[written..]).expect("now it goes on elsewhere");
    assert!(read_at(tested.fs(), handle, 0, data.len()).expect("read") == data);
}

#[test]
fn a_time_of_an_object_that_lies_a_tick_behind_does_not_take_the_file_back_and_an_older_one_does() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let modified = || tested.fs().attributes(&Caller::root(), ino).expect("there").modified;
    let (handle, _, backing) = tested.open(ino, read_write());
    let now = Timestamp::new(2_000_000_000, 1_000_000);
    let change = SetAttributes { modified: Some(SetTime::To(now)), ..SetAttributes::default() };
    tested.fs().set_attributes(&Caller::root(), ino, &change).expect("set");
    let stamp = |time: Timestamp| {
        let time = time.to_system_time().expect("it can be told");
        tested.kernel.object(backing).set_modified(time).expect("stamped");
    };
    stamp(Timestamp::new(1_999_999_999, 993_000_000));
    assert_eq!(modified(), now, "the kernel's clock stood 8 ms behind");
    let earlier = Timestamp::new(1_999_999_999, 500_000_000);
    stamp(earlier);
    assert_eq!(modified(), earlier, "a write after a time was set by hand");
    close(tested.fs(), handle).expect("closed");
}

#[test]
fn times_that_were_set_hold_until_the_kernel_writes_again() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, _, backing) = tested.open(ino, read_write());
    tested.kernel.object(backing).write_all_at(b"one", 0).expect("written");
    let long_ago = Timestamp::new(1_000_000, 5);
    let change = SetAttributes { modified: Some(SetTime::To(long_ago)), ..SetAttributes::default() };
    tested.fs().set_attributes(&Caller::root(), ino, &change).expect("set");
    assert_eq!(tested.fs().attributes(&Caller::root(), ino).expect("there").modified, long_ago);
    std::thread::sleep(std::time::Duration::from_millis(20));
    tested.kernel.object(backing).write_all_at(b"two", 0).expect("written");
    assert!(tested.fs().attributes(&Caller::root(), ino).expect("there").modified > long_ago);
    tested.fs().set_attributes(&Caller::root(), ino, &change).expect("set");
    close(tested.fs(), handle).expect("closed");
    assert_eq!(tested.fs().attributes(&Caller::root(), ino).expect("there").modified, long_ago);
}

#[test]
fn pages_of_the_time_before_are_dropped_by_the_first_cached_description() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 5 * 1024 * 1024));
    let (handle, _, backing) = tested.open(ino, read_write());
    tested.kernel.object(backing).write_all_at(b"new", 0).expect("written");
    close(tested.fs(), handle).expect("closed");
    // On two tiers it is not passed through.
    let job = tested.fs().migrate(ino, "slow", Some(0..4096)).expect("accepted");
    for _ in 0..1000 {
        tested.fs().step();
        tested.fs().move_step();
    }
    assert_eq!(tested.fs().job(job).expect("known").state, JobState::Done);
    let first = tested.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    let decision = tested.fs().decide_io_mode(first).expect("decided");
    assert_eq!((decision.mode, decision.pages), (IoMode::Cached, PagesKept::No));
    close(tested.fs(), first).expect("closed");
    let next = tested.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert_eq!(tested.fs().decide_io_mode(next).expect("decided").pages, PagesKept::Yes);
}

#[test]
fn set_id_bits_that_went_before_a_write_nobody_hears_of_stay_away_over_a_power_failure() {
    let mut tested = tested(&[None, None]);
    let ino = tested.file("program", &pattern(1, 100_000));
    let (handle, _, backing) = tested.open(ino, read_write());
    let object = tested.kernel.object(backing);
    let change = |tested: &Tested, change| {
        tested.fs().set_attributes(&Caller::root(), ino, &change).expect("changed").permissions
    };
    let set = SetAttributes { permissions: Some(0o4755), ..SetAttributes::default() };
    assert_eq!(change(&tested, set), 0o4755);
    tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    let clear = SetAttributes { set_id: SetIdBits::Clear { member_of: None }, ..SetAttributes::default() };
    assert_eq!(change(&tested, clear), 0o755);
    // With `RWF_DSYNC`: the bytes are durable, and no message came.
    object.write_all_at(b"foreign", 0).and_then(|()| object.sync_all()).expect("written");
    tested.volume.die_and_mount(MountOptions::default());
    let found = tested.fs().attributes(&Caller::root(), ino).expect("there");
    assert_eq!(found.permissions, 0o755, "bytes of somebody else are there with the bits");
}

/// The daemon dies, and another one mounts the volume. Returns the state that the kernel still holds from before.
fn die_and_come_back(tested: &mut Tested, options: MountOptions) -> Arc<PlayedKernel> {
    tested.volume.die_and_mount(options);
    let before = std::mem::take(&mut tested.kernel);
    tested.fs().set_passthrough_port(Arc::clone(&tested.kernel) as _).expect("recorded");
    before
}

fn steps(tested: &Tested) {
    for _ in 0..200 {
        tested.fs().step();
        tested.fs().move_step();
    }
}

/// Waits, with a limit, for the next check of the held files.
fn wait_until(tested: &Tested, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..100 {
        if is_so() {
            return;
        }
        steps(tested);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what}: not within ten seconds");
}

#[test]
fn what_somebody_has_since_before_the_daemon_died_is_not_moved_and_his_writes_are_seen() {
    let mut tested = tested(&[None, None]);
    let ino = tested.file("held", &pattern(1, 3 * 1024 * 1024));
    let free = tested.file("free", &pattern(2, 3 * 1024 * 1024));
    let (_, mode, backing) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::Passthrough);
    let before = die_and_come_back(&mut tested, MountOptions::default());
    let object = before.object(backing);
    object.write_all_at(b"after the death", 4 * MIB).expect("the kernel goes on");
    assert_eq!(tested.size(ino), 4 * MIB + 15);
    let jobs = [ino, free].map(|ino| tested.fs().migrate(ino, "slow", None).expect("accepted"));
    steps(&tested);
    assert_eq!(tested.fs().job(jobs[1]).expect("known").state, JobState::Done, "nobody has the other one");
    assert_eq!(tested.fs().job(jobs[0]).expect("known").state, JobState::Parked(WaitsFor::Close(ino)));
    assert!(tested.fs().is_changed_directly(ino));
    tested.truncate(ino, 0);
    object.write_all_at(&pattern(8, 100_000), 0).expect("the object is the same one");
    assert_eq!(tested.size(ino), 100_000);
    let (handle, mode, _) = tested.open(ino, read_write());
    assert_ne!(mode, IoMode::Cached, "pages would not follow");
    assert!(read_at(tested.fs(), handle, 0, 200_000).expect("read") == pattern(8, 100_000));
    close(tested.fs(), handle).expect("closed");
    drop((before, object));
    wait_until(&tested, "it moves as soon as nobody has it", || {
        tested.fs().job(jobs[0]).expect("known").state == JobState::Done
    });
    let (handle, ..) = tested.open(ino, read_only());
    assert!(read_at(tested.fs(), handle, 0, 200_000).expect("read") == pattern(8, 100_000));
}

#[test]
fn a_held_file_without_room_for_changes_goes_through_the_daemon_without_pages() {
    let mut tested = tested(&[None, None]);
    let ino = tested.file("held", &pattern(1, 100_000));
    let (_, _, backing) = tested.open(ino, read_write());
    let options = MountOptions { passthrough: PassthroughUse::Read, ..MountOptions::default() };
    let before = die_and_come_back(&mut tested, options);
    let (handle, mode, _) = tested.open(ino, read_write());
    assert_eq!(mode, IoMode::PassthroughDirect, "its mappings are of the same object");
    before.object(backing).write_all_at(b"unheard", 5).expect("written");
    assert_eq!(read_at(tested.fs(), handle, 5, 7).expect("read"), b"unheard");
    tested.fs().write(&Caller::root(), handle, 0, b"heard", WriteOrigin::Call).expect("written");
    let mut there = [0; 12];
    before.object(backing).read_exact_at(&mut there, 0).expect("read");
    assert_eq!(&there, b"heardunheard");
    close(tested.fs(), handle).expect("closed");
    drop(before);
    wait_until(&tested, "pages are kept again", || {
        let (handle, mode, _) = tested.open(ino, read_write());
        close(tested.fs(), handle).expect("closed");
        mode == IoMode::Cached
    });
}

#[test]
fn after_a_reboot_and_after_a_clean_stop_nobody_holds_anything() {
    let mut tested = tested(&[None, None]);
    tested.volume.remount(MountOptions { boot: BootId([2; 16]), ..MountOptions::default() });
    tested.fs().set_passthrough_port(Arc::clone(&tested.kernel) as _).expect("recorded");
    let ino = tested.file("f", &pattern(1, 100_000));
    let (_, _, backing) = tested.open(ino, read_write());
    let options = MountOptions { boot: BootId([1; 16]), promotion: Promotion::Polite, ..MountOptions::default() };
    let before = die_and_come_back(&mut tested, options);
    before.object(backing);
    let job = tested.fs().migrate(ino, "slow", None).expect("accepted");
    steps(&tested);
    assert_eq!(tested.fs().job(job).expect("known").state, JobState::Done, "another boot has forgotten all of it");

    let (handle, mode, backing) = tested.open(ino, read_only());
    assert_eq!(mode, IoMode::Passthrough);
    drop(tested.kernel.object(backing));
    close(tested.fs(), handle).expect("closed");
    tested.volume.remount(options);
    let job = tested.fs().migrate(ino, "fast", None).expect("accepted");
    steps(&tested);
    assert_eq!(tested.fs().job(job).expect("known").state, JobState::Done, "all were released before the stop");
}

#[test]
fn what_was_not_released_before_a_stop_is_held_after_it() {
    let mut tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (_, _, backing) = tested.open(ino, read_write());
    let object = tested.kernel.object(backing);
    tested.volume.remount(MountOptions::default());
    let before = tested.fs().attributes(&Caller::root(), ino).expect("there").modified;
    std::thread::sleep(std::time::Duration::from_millis(20));
    object.write_all_at(b"still", 0).expect("written");
    assert!(tested.fs().attributes(&Caller::root(), ino).expect("there").modified > before);
    let job = tested.fs().migrate(ino, "slow", None).expect("accepted");
    steps(&tested);
    assert_eq!(tested.fs().job(job).expect("known").state, JobState::Parked(WaitsFor::Close(ino)));
    drop(object);
    wait_until(&tested, "it moves", || tested.fs().job(job).expect("known").state == JobState::Done);
}

#[test]
fn what_was_written_and_closed_between_the_death_and_the_first_look_is_synced() {
    let mut tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (_, _, backing) = tested.open(ino, read_write());
    let before = die_and_come_back(&mut tested, MountOptions::default());
    before.object(backing).write_all_at(b"late", 0).expect("written");
    drop(before);
    let (handle, ..) = tested.open(ino, read_only());
    assert_eq!(read_at(tested.fs(), handle, 0, 4).expect("read"), b"late");
    let syncs = || tested.fs().status().expect("status").tiers[0].counters.syncs;
    let counted = syncs();
    tested.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    assert_eq!(syncs(), counted + 1);
}

#[test]
fn what_was_written_between_a_stop_and_the_next_mount_has_its_time() {
    let mut tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (_, _, backing) = tested.open(ino, read_write());
    let object = tested.kernel.object(backing);
    let modified = tested.fs().attributes(&Caller::root(), ino).expect("there").modified;
    tested.fs().unmount().expect("unmounted");
    std::thread::sleep(std::time::Duration::from_millis(20));
    object.write_all_at(b"meanwhile", 0).expect("written");
    tested.volume.mount_again(MountOptions::default());
    assert!(tested.fs().attributes(&Caller::root(), ino).expect("there").modified > modified);
}

#[test]
fn a_description_that_the_kernel_was_not_told_of_drops_no_pages() {
    let tested = tested(&[None, None]);
    let ino = tested.file("f", &pattern(1, 100_000));
    let (handle, _, backing) = tested.open(ino, read_write());
    tested.kernel.object(backing).write_all_at(b"unheard", 0).expect("written");
    close(tested.fs(), handle).expect("closed");
    let cached = || {
        let options = polymux_fs::OpenOptions { synchronous: true, ..read_write() };
        let handle = tested.fs().open(&Caller::root(), ino, options).expect("opened");
        let decision = tested.fs().decide_io_mode(handle).expect("decided");
        assert_eq!(decision.mode, IoMode::Cached);
        (handle, decision.pages)
    };
    let (handle, pages) = cached();
    assert_eq!(pages, PagesKept::No);
    tested.fs().take_back(handle).expect("taken back");
    let (handle, pages) = cached();
    assert_eq!(pages, PagesKept::No, "nobody dropped them");
    close(tested.fs(), handle).expect("closed");
    assert_eq!(cached().1, PagesKept::Yes);
}
