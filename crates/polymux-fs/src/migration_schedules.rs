//! Mover, writers, readers, truncation and unlink under the model checker: thousands of schedules of a few threads each.
//! Run by `make test-schedules`.
//!
//! What is checked in every schedule: a reader sees what was written before it began, whole; at the end the file holds the
//! last write; nobody waits for ever (the checker reports a deadlock); what was left behind is freed.

use std::sync::Arc;
use std::time::Duration;

use polymux_sim::{MemoryStore, MemoryTier};
use polymux_types::{ByteSize, Ino, ManualClock, VolumeId};
use shuttle::thread;

use crate::{
    Caller, FileSystem, HandleId, MountOptions, NewVolume, OpenOptions, Parts, Progress, SetAttributes, TierMember,
    TierPresence, WriteOrigin,
};

const SCHEDULES: usize = 1000;
const NODE: u64 = 2 << 20;
const BLOCK: usize = 4096;

fn check(body: impl Fn() + Send + Sync + Clone + 'static) {
    // Priorities changed at few points find ordering mistakes sooner; plain random schedules find the rest.
    shuttle::check_pct(body.clone(), SCHEDULES, 3);
    shuttle::check_random(body, SCHEDULES);
}

struct Scene {
    fs: FileSystem,
    tiers: Vec<Arc<MemoryTier>>,
    ino: Ino,
    handle: HandleId,
}

fn write(scene: &Scene, offset: u64, fill: u8) {
    let data = [fill; BLOCK];
    let count = scene.fs.write(&Caller::root(), scene.handle, offset, &data, WriteOrigin::Call).unwrap();
    assert_eq!(count, BLOCK);
}

/// The bytes of one block, all the same; `None` beyond the end.
fn read(scene: &Scene, offset: u64) -> Option<u8> {
    let mut data = [0xa5; BLOCK];
    let count = scene.fs.read(&Caller::root(), scene.handle, offset, &mut data).unwrap();
    assert!(count == 0 || data[..count].iter().all(|byte| *byte == data[0]), "a torn block");
    (count > 0).then_some(data[0])
}

/// A file of two nodes with a block of ones in each, on the first of two tiers, and a move to the other one.
fn scene() -> Arc<Scene> {
    let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
    let tiers: Vec<Arc<MemoryTier>> =
        ["fast", "slow"].map(|name| Arc::new(MemoryTier::with_clock(name, 16 << 20, Arc::clone(&clock) as _))).into();
    let member = |(tier, name): (&Arc<MemoryTier>, &str)| TierMember {
        reserve: ByteSize(0),
        ..TierMember::new(name.to_owned(), TierPresence::Present(Arc::clone(tier) as _))
    };
    let parts = Parts {
        name: "test".to_owned(),
        tiers: tiers.iter().zip(["fast", "slow"]).map(member).collect(),
        store: Arc::new(MemoryStore::new()),
        metadata_tier: None,
        clock,
        seed: 1,
    };
    let new = NewVolume { id: VolumeId::from_random([7; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
    FileSystem::format(&parts, &new).unwrap();
    let fs = FileSystem::mount(parts, MountOptions::default()).unwrap();
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let (attributes, handle) = fs.create(&Caller::root(), Ino::ROOT, b"f", 0o644, options).unwrap();
    let scene = Scene { fs, tiers, ino: attributes.ino, handle };
    write(&scene, 0, 1);
    write(&scene, NODE, 1);
    scene.fs.migrate(scene.ino, "slow", None).unwrap();
    Arc::new(scene)
}

fn move_all(scene: &Scene) {
    for _ in 0..50 {
        if scene.fs.move_step() == Progress::Idle {
            return;
        }
    }
    panic!("the mover does not end");
}

fn user(scene: &Arc<Scene>, work: impl FnOnce(&Scene) + Send + 'static) -> thread::JoinHandle<()> {
    let scene = Arc::clone(scene);
    thread::spawn(move || work(&scene))
}

#[test]
fn a_writer_a_reader_and_the_mover() {
    check(|| {
        let scene = scene();
        let mover = user(&scene, move_all);
        let writer = user(&scene, |scene| {
            for fill in 2..4 {
                write(scene, 0, fill);
                assert_eq!(read(scene, 0), Some(fill), "its own write");
            }
        });
        let reader = user(&scene, |scene| {
            let first = read(scene, 0);
            assert!(read(scene, 0) >= first, "time runs backwards");
            assert_eq!(read(scene, NODE), Some(1));
        });
        [mover, writer, reader].map(|thread| thread.join().unwrap());
        move_all(&scene);
        assert_eq!((read(&scene, 0), read(&scene, NODE)), (Some(3), Some(1)));
    });
}

#[test]
fn an_append_where_the_file_ends_and_the_mover() {
    check(|| {
        let scene = scene();
        let mover = user(&scene, move_all);
        let writer = user(&scene, |scene| {
            write(scene, NODE + BLOCK as u64, 5);
            write(scene, 2 * NODE, 6);
        });
        [mover, writer].map(|thread| thread.join().unwrap());
        move_all(&scene);
        assert_eq!(read(&scene, NODE + BLOCK as u64), Some(5));
        assert_eq!(read(&scene, 2 * NODE), Some(6));
        assert_eq!(read(&scene, NODE), Some(1));
    });
}

#[test]
fn truncation_a_writer_and_the_mover() {
    check(|| {
        let scene = scene();
        let mover = user(&scene, move_all);
        let cutter = user(&scene, |scene| {
            for size in [NODE / 2, 2 * NODE] {
                let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
                scene.fs.set_attributes(&Caller::root(), scene.ino, &change).unwrap();
            }
        });
        let writer = user(&scene, |scene| write(scene, 0, 2));
        [mover, cutter, writer].map(|thread| thread.join().unwrap());
        move_all(&scene);
        assert_eq!((read(&scene, 0), read(&scene, NODE)), (Some(2), Some(0)), "cut and grown: zeros");
    });
}

#[test]
fn unlink_and_the_last_close_beside_the_mover() {
    check(|| {
        let scene = scene();
        let mover = user(&scene, move_all);
        let user = user(&scene, |scene| {
            scene.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
            scene.fs.release(scene.handle).unwrap();
        });
        [mover, user].map(|thread| thread.join().unwrap());
        move_all(&scene);
        for _ in 0..20 {
            scene.fs.step();
        }
        let used = |tier: &Arc<MemoryTier>| polymux_tier::Tier::space(&**tier).unwrap().used;
        assert_eq!(scene.tiers.iter().map(used).sum::<u64>(), 0, "nothing is left of the file");
    });
}
