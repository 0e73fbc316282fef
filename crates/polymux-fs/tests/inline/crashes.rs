//! After a crash a small file is a state that it had at a sync, a flush or a close, never anything between, and never
//! older than the last sync.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polymux_fs::{AllocateKind, Caller, HandleId, OpenOptions, SetAttributes, SyncKind};
use polymux_tier::Tier;
use polymux_types::Ino;

use super::common::{
    Hook, HookedTier, Verdict, Volume, close, create, pattern, read_whole, read_write, volume_with_broken_tier,
    write_all,
};
use super::{KIB, MIB, resize, sync, volume};

/// A small generator of numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

struct Tracked {
    ino: Ino,
    handle: HandleId,
    content: Vec<u8>,
    /// The allowed states after a crash: the last durable state, and those logged since.
    allowed: Vec<Vec<u8>>,
}

impl Tracked {
    fn logged(&mut self) {
        self.allowed.push(self.content.clone());
    }

    fn change(&mut self, volume: &Volume, random: &mut Random) {
        let (start, length) = (random.below(3000), random.below(1000));
        let (from, to) = (usize::try_from(start).expect("small"), usize::try_from(start + length).expect("small"));
        match random.below(6) {
            0 => {
                let caller = Caller::root();
                let kind = AllocateKind::PunchHole;
                volume.fs().allocate(&caller, self.handle, start, length + 1, kind).expect("punched");
                let end = self.content.len();
                self.content[from.min(end)..(to + 1).min(end)].fill(0);
            }
            1 => {
                resize(volume, self.ino, start);
                self.content.resize(from, 0);
            }
            _ => {
                let seed = u8::try_from(random.below(30)).expect("small");
                let data = pattern(seed, to - from);
                write_all(volume.fs(), self.handle, start, &data).expect("written");
                if self.content.len() < to && from < to {
                    self.content.resize(to, 0);
                }
                self.content[from.min(to)..to.min(from + data.len())].copy_from_slice(&data);
            }
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut volume = volume();
    let mut files: Vec<Tracked> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let (ino, handle) = create(volume.fs(), name);
            Tracked { ino, handle, content: Vec::new(), allowed: vec![Vec::new()] }
        })
        .collect();
    volume.fs().sync_volume().expect("synced");
    for _ in 0..60 {
        let index = usize::try_from(random.below(3)).expect("small");
        match random.below(12) {
            0 => {
                let file = &mut files[index];
                sync(&volume, file.handle);
                file.allowed = vec![file.content.clone()];
            }
            1 => {
                let file = &mut files[index];
                close(volume.fs(), file.handle).expect("closed");
                file.logged();
                file.handle = volume.fs().open(&Caller::root(), file.ino, read_write()).expect("opened");
            }
            2 => {
                volume.step();
                files.iter_mut().for_each(Tracked::logged);
            }
            3 => {
                let kept = usize::try_from(random.below(6)).expect("small");
                volume.crash_keeping_transactions(kept);
                for file in &mut files {
                    let found = read_whole(volume.fs(), file.ino).expect("read");
                    assert!(
                        file.allowed.contains(&found),
                        "seed {seed}: inode {} has {} bytes of none of {} states",
                        file.ino,
                        found.len(),
                        file.allowed.len()
                    );
                    file.allowed = vec![found.clone()];
                    file.content = found;
                    file.handle = volume.fs().open(&Caller::root(), file.ino, read_write()).expect("opened");
                }
            }
            _ => files[index].change(&volume, &mut random),
        }
    }
    for file in &files {
        assert_eq!(read_whole(volume.fs(), file.ino).expect("read"), file.content, "seed {seed}");
    }
    assert_eq!((volume.used(0), volume.used(1)), (0, 0), "all of it was inline");
}

#[test]
fn after_a_crash_a_small_file_is_a_state_it_had_at_a_sync_flush_or_close() {
    for seed in 1..150 {
        run(seed);
    }
}

/// Grows a synced small file into an object, then crashes with any of tiers and log durable or not.
fn grow_and_crash(volume: &mut Volume, subset: u32) -> Vec<u8> {
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, 20_000);
    write_all(volume.fs(), handle, 0, &data[..4000]).expect("written");
    sync(volume, handle);
    write_all(volume.fs(), handle, 4000, &data[4000..]).expect("written");
    if subset & 1 != 0 {
        volume.memory(0).sync_all().expect("synced");
    }
    if subset & 2 != 0 {
        volume.flush_log();
    }
    volume.crash();
    read_whole(volume.fs(), ino).expect("read")
}

#[test]
fn growing_beyond_the_limit_never_loses_what_was_synced() {
    for subset in 0..4 {
        let content = grow_and_crash(&mut volume(), subset);
        assert!(content.len() >= 4000, "subset {subset}: {} bytes are left", content.len());
        assert!(pattern(1, 20_000).starts_with(&content), "subset {subset}");
    }
}

/// The planted bug: syncs that say they were done and were not.
struct Liar;

impl Hook for Liar {
    fn before_sync(&self) -> Verdict {
        Verdict::Pretend
    }
}

#[test]
fn a_move_to_an_object_that_is_not_synced_is_caught() {
    let mut volume = Volume::wrapping(&[64 * KIB, 16 * MIB], |_, tier| -> Arc<dyn Tier> {
        Arc::new(HookedTier::new(tier, Arc::new(Liar)))
    });
    let content = grow_and_crash(&mut volume, 2);
    assert!(content.len() < 4000 || content != pattern(1, content.len()), "the planted bug was not found");
}

/// The object that is to replace the inline bytes cannot be written or synced: they stay, or another tier takes them.
#[test]
fn a_tier_that_fails_while_a_small_file_grows_does_not_take_its_bytes_along() {
    for failing_writes in [false, true] {
        let (mut volume, broken) = volume_with_broken_tier(&[64 * KIB, 16 * MIB], 0);
        let (ino, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, &pattern(1, 4000)).expect("written");
        sync(&volume, handle);
        let switch = if failing_writes { &broken.writes } else { &broken.syncs };
        switch.store(true, Ordering::Relaxed);
        write_all(volume.fs(), handle, 4000, &pattern(3, 9000)).expect("another tier takes it");
        sync(&volume, handle);
        switch.store(false, Ordering::Relaxed);
        volume.crash();
        let location = volume.fs().locate(ino).expect("located");
        assert_eq!(location.home.as_deref(), Some("slow"));
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), [pattern(1, 4000), pattern(3, 9000)].concat());
        volume.drain();
        assert_eq!(volume.used(0), 0, "the object that was given up is gone");
    }
}

/// Every place in a sequence of records where a crash can cut: a small file that is emptied, grows, shrinks and is
/// linked and unlinked is one of its states after each.
#[test]
fn any_prefix_of_the_log_is_a_volume_that_can_be_read() {
    for extra in 0..14 {
        let mut volume = volume();
        let (ino, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, &pattern(1, 1000)).expect("written");
        sync(&volume, handle);
        close(volume.fs(), handle).expect("closed");
        volume.fs().link(&Caller::root(), ino, Ino::ROOT, b"g").expect("linked");
        let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
        write_all(volume.fs(), handle, 0, &pattern(3, 3000)).expect("written");
        volume.fs().flush(&Caller::root(), handle).expect("flushed");
        write_all(volume.fs(), handle, 3000, &pattern(5, 3000)).expect("grown");
        close(volume.fs(), handle).expect("closed");
        resize(&volume, ino, 0);
        volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
        volume.fs().unlink(&Caller::root(), Ino::ROOT, b"g").expect("unlinked");
        volume.crash_keeping_transactions(extra);
        let paths = super::common::walk(volume.fs()).expect("walked");
        for (path, ino) in paths.into_iter().filter(|(path, _)| !path.is_empty()) {
            let content = read_whole(volume.fs(), ino).expect("read");
            let states = [pattern(1, 1000), pattern(3, 3000), Vec::new()];
            let grown = [pattern(3, 3000), pattern(5, 3000)].concat();
            let known = states.contains(&content) || content.len() >= 3000 && grown.starts_with(&content);
            assert!(known, "extra {extra}: {path:?} has {} bytes", content.len());
        }
        volume.drain();
        let named = super::common::walk(volume.fs()).expect("walked").len() > 1;
        assert!(named || (volume.inline_records(), volume.used(0), volume.used(1)) == (0, 0, 0), "extra {extra}");
    }
}

/// Threads append and sync one file while it grows from nothing over the limit, and another thread changes its mode
/// meanwhile, which logs its bytes too. Each append whose sync succeeded survives a crash.
#[test]
fn what_was_synced_while_a_file_outgrows_the_limit_survives_a_crash() {
    const RECORD: usize = 97;
    for round in 0..60_u8 {
        let mut volume = volume();
        let (ino, _) = create(volume.fs(), "f");
        volume.fs().sync_volume().expect("synced");
        let acknowledged: Vec<u8> = std::thread::scope(|scope| {
            let fs = volume.fs();
            let append = |writer: u8| {
                let options = OpenOptions { append: true, ..read_write() };
                let handle = fs.open(&Caller::root(), ino, options).expect("opened");
                let mut acknowledged = Vec::new();
                for index in 0..20 {
                    let value = writer * 20 + index;
                    write_all(fs, handle, 0, &[value; RECORD]).expect("appended");
                    // Some syncs are left out, so that another thread logs an append.
                    if !(value ^ round).is_multiple_of(3) {
                        fs.sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
                        acknowledged.push(value);
                    }
                }
                acknowledged
            };
            let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || append(writer))).collect();
            scope.spawn(|| {
                for bits in 0..40 {
                    let change = SetAttributes { permissions: Some(0o600 + bits % 8), ..SetAttributes::default() };
                    fs.set_attributes(&Caller::root(), ino, &change).expect("changed");
                }
            });
            writers.into_iter().flat_map(|writer| writer.join().expect("no writer fails")).collect()
        });
        volume.crash();
        let content = read_whole(volume.fs(), ino).expect("read");
        for value in acknowledged {
            let found = content.chunks(RECORD).any(|record| record == [value; RECORD]);
            assert!(found, "round {round}: the synced record {value} is lost; {} bytes are left", content.len());
        }
    }
}
