//! The rules among records hold after whatever was done, and after a crash that keeps any number of transactions, before
//! recovery and after it.

mod common;

use common::{Volume, close, create_in, errno, read_write, walk, write_all};
use polymux_fs::{
    AllocateKind, Caller, FileKind, FileSystem, INVARIANTS, NodeKind, RenameMode, SetAttributes, XattrMode,
    check_records,
};
use polymux_meta::MetadataStore;
use polymux_types::Ino;

/// Pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((value ^ (value >> 31)) % end as u64).expect("a number below a usize")
    }
}

#[track_caller]
fn assert_sound(volume: &Volume, when: &str) {
    let report = check_records(&*volume.store()).expect("a simulated store answers");
    assert_eq!(report.violations, [], "{when}: {:?}", report.records);
    assert!(report.records[&'i'] > 0, "there is at least the root");
}

/// One random operation; the reason of a refusal does not matter here.
fn operate(fs: &FileSystem, random: &mut Random) {
    let root = Caller::root();
    let all: Vec<(Vec<u8>, Ino)> = walk(fs).expect("the tree can be walked").into_iter().collect();
    let any = all[random.below(all.len())].1;
    let kind = |ino| fs.attributes(&root, ino).expect("what is listed is there").kind;
    let directories: Vec<Ino> =
        all.iter().map(|(_, ino)| *ino).filter(|ino| kind(*ino) == FileKind::Directory).collect();
    let (parent, other) = (directories[random.below(directories.len())], directories[random.below(directories.len())]);
    let name = |random: &mut Random| format!("name {}", random.below(12)).into_bytes();
    let (first, second) = (name(random), name(random));
    match random.below(14) {
        0..=2 => {
            if fs.lookup(&root, parent, &first).is_err() {
                let (_, handle) = create_in(fs, parent, std::str::from_utf8(&first).expect("names are text"));
                let length = [0, 100, 5000, 40_000][random.below(4)];
                let _ = write_all(fs, handle, 0, &vec![7; length]);
                close(fs, handle).expect("nothing failed");
            }
        }
        3 => drop(fs.make_directory(&root, parent, &first, 0o755)),
        4 => drop(fs.unlink(&root, parent, &first)),
        5 => drop(fs.remove_directory(&root, parent, &first)),
        6 => drop(fs.rename(&root, parent, &first, other, &second, RenameMode::Replace)),
        7 => drop(fs.rename(&root, parent, &first, other, &second, RenameMode::Exchange)),
        8 => drop(fs.link(&root, any, parent, &first)),
        9 => drop(fs.set_xattr(&root, any, b"user.a", &[1; 100], XattrMode::CreateOrReplace)),
        10 => drop(fs.make_node(&root, parent, &first, NodeKind::Fifo, 0o600)),
        11 => {
            let size = [0, 50, 4096, 20_000, 1 << 20][random.below(5)];
            drop(fs.set_attributes(&root, any, &SetAttributes { size: Some(size), ..SetAttributes::default() }));
        }
        12 => {
            if let Ok(handle) = fs.open(&root, any, read_write()) {
                let _ = write_all(fs, handle, random.below(60_000) as u64, &[9; 3000]);
                let _ = fs.allocate(&root, handle, 4096, 8192, AllocateKind::PunchHole);
                // Some stay open, and are orphans once they are removed.
                if random.below(3) > 0 {
                    close(fs, handle).expect("nothing failed");
                }
            }
        }
        _ => drop(fs.step()),
    }
}

#[test]
fn records_keep_their_rules_through_operations_and_crashes() {
    for seed in 1..=6 {
        let mut random = Random(seed);
        let mut volume = Volume::new(&[256 * 1024, 8 << 20]);
        assert_sound(&volume, "a new volume");
        for round in 0..12 {
            for _ in 0..40 {
                operate(volume.fs(), &mut random);
            }
            assert_sound(&volume, &format!("seed {seed}, round {round}, in use"));
            match random.below(4) {
                0 => volume.remount(),
                1 => {
                    volume.stop_uncleanly();
                    assert_sound(&volume, &format!("seed {seed}, round {round}, after a crash"));
                    volume.mount().expect("the volume mounts after a crash");
                }
                2 => volume.crash_keeping_transactions(random.below(60)),
                _ => volume.drain(),
            }
            assert_sound(&volume, &format!("seed {seed}, round {round}, at its end"));
        }
    }
}

/// Violations after `spoil` changed a sound volume.
fn names_of_violations(spoil: impl FnOnce(&mut polymux_meta::Batch, &dyn MetadataStore)) -> Vec<&'static str> {
    let volume = Volume::new(&[1 << 20, 8 << 20]);
    let fs = volume.fs();
    let directory = common::make_directory(fs, "directory");
    for (parent, name, length) in [(Ino::ROOT, "large", 40_000), (directory, "small", 10), (directory, "other", 50_000)]
    {
        let (ino, handle) = create_in(fs, parent, name);
        write_all(fs, handle, 0, &vec![7; length]).expect("there is room");
        close(fs, handle).expect("nothing failed");
        fs.set_xattr(&Caller::root(), ino, b"user.a", b"1", XattrMode::Create).expect("an attribute is set");
    }
    assert_eq!(errno(fs.lookup(&Caller::root(), directory, b"none")), polymux_types::Errno::ENOENT);
    fs.sync_volume().expect("everything becomes durable");
    assert_sound(&volume, "before");
    let store = volume.store();
    let mut batch = polymux_meta::Batch::new();
    spoil(&mut batch, &*store);
    store.commit(batch).expect("a store takes anything");
    let mut names: Vec<&'static str> =
        check_records(&*store).expect("a store answers").violations.iter().map(|found| found.invariant).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.iter().all(|name| INVARIANTS.iter().any(|(known, _)| known == name)), "{names:?}");
    names
}

fn key(letter: u8, parts: &[&[u8]]) -> Vec<u8> {
    [&[0, 0, 0, 0, letter][..], &parts.concat()].concat()
}

fn first_of(store: &dyn MetadataStore, letter: u8) -> (Vec<u8>, Vec<u8>) {
    store.range(&key(letter, &[]), &key(letter + 1, &[]), 1).expect("a store answers").swap_remove(0)
}

/// A key of that kind for another inode.
fn with_ino(key: &[u8], ino: u64) -> Vec<u8> {
    [&key[..5], &ino.to_be_bytes(), &key[13..]].concat()
}

#[test]
fn each_broken_rule_is_named() {
    let root = 1_u64.to_be_bytes();
    assert_eq!(names_of_violations(|batch, _| batch.delete(key(b'E', &[]))), ["volume"]);
    assert_eq!(names_of_violations(|batch, _| batch.put(key(b'?', &[]), b"")), ["readable"]);
    assert_eq!(names_of_violations(|batch, _| batch.delete(key(b'n', &[b"o"]))), ["numbers", "volume"]);
    assert_eq!(names_of_violations(|batch, store| batch.delete(first_of(store, b'b').0)), ["inline"]);
    assert_eq!(names_of_violations(|batch, store| batch.delete(first_of(store, b'c').0)), ["name-position"]);
    let without_name = names_of_violations(|batch, _| batch.delete(key(b'd', &[&root, b"large"])));
    assert_eq!(without_name, ["entry-count", "name-parent", "name-position"]);
    let without_directory = names_of_violations(|batch, _| batch.delete(key(b'd', &[&root, b"directory"])));
    assert_eq!(without_directory, ["entry-count", "links", "name-parent", "name-position"]);
    assert_eq!(names_of_violations(|batch, _| batch.put(key(b'o', &[&root]), b"")), ["orphan"]);
    assert_eq!(names_of_violations(|batch, _| batch.delete(key(b't', &[&[0, 0]]))), ["tier"]);
    let stray_attribute = names_of_violations(|batch, store| {
        let (key, value) = first_of(store, b'x');
        batch.put(with_ino(&key, 1), value);
    });
    assert_eq!(stray_attribute, ["xattr"]);
    let shared_object = names_of_violations(|batch, store| {
        // The record of `large` for an inode that has no name: it has a link, and the objects of another one.
        let found =
            store.range(&key(b'd', &[&root, b"large"]), &key(b'd', &[&root, b"largf"]), 1).expect("a store answers");
        let ino = u64::from_le_bytes(found[0].1[1..9].try_into().expect("a number"));
        let inode = key(b'i', &[&ino.to_be_bytes()]);
        let record = store.get(&inode).expect("a store answers").expect("it is there");
        batch.put(with_ino(&inode, 9), record);
    });
    assert_eq!(shared_object, ["links", "object", "orphan"]);
}
