//! Policies that give each writing thread a tier: `poly-static`, `poly-dynamic`, `poly-climb`.

#[path = "../../polymux-fs/tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::{Volume, bytes_on, close, create, find, pattern, read_whole};
use polymux_fs::{Caller, HandleId, MountOptions, PolicyKind, SyncKind, WriteOrigin};
use polymux_lab::{POLY_CLIMB, POLY_DYNAMIC, POLY_STATIC};
use polymux_types::{Ino, StreamId};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Of these volumes.
const RANGE: u64 = 64 * KIB;

const MAPPED: [PolicyKind; 3] = [POLY_STATIC, POLY_DYNAMIC, POLY_CLIMB];

fn volume_with(policy: PolicyKind, capacities: &[u64]) -> Volume {
    let mut volume = Volume::new(capacities);
    volume.options = MountOptions { spread_range_bytes: 64 << 10, inline_size_max: 0, ..volume.options };
    volume.remount();
    volume.fs().set_steering(policy, &[]).expect("taken");
    volume
}

fn write_as(volume: &Volume, thread: u64, handle: HandleId, offset: u64, data: &[u8]) {
    let caller = Caller { stream: StreamId(thread), ..Caller::root() };
    let count = volume.fs().write(&caller, handle, offset, data, WriteOrigin::Call).expect("written");
    assert_eq!(count, data.len());
}

/// Two threads write a file each, range by range in turn. Returns the files and their expected contents.
fn write_two_files(volume: &Volume, seed: u8, ranges: usize) -> ([Ino; 2], Vec<u8>) {
    let files = ["one", "two"].map(|name| create(volume.fs(), name));
    let data = pattern(seed, usize::try_from(RANGE).expect("small"));
    for range in 0..ranges as u64 {
        for (thread, (_, handle)) in (11..).zip(&files) {
            write_as(volume, thread, *handle, range * RANGE, &data);
        }
    }
    (files.map(|(ino, _)| ino), data.repeat(ranges))
}

#[test]
fn two_threads_have_a_tier_each_behind_the_first_range_of_their_files() {
    for policy in MAPPED {
        let volume = volume_with(policy, &[16 * MIB; 2]);
        let ([one, two], written) = write_two_files(&volume, 5, 20);
        assert_eq!(bytes_on(volume.fs(), one, "fast"), 20 * RANGE, "{policy}");
        // The first one is where every small file is, and the next one was asked for before another thread had been seen.
        assert!(bytes_on(volume.fs(), two, "slow") >= 18 * RANGE, "{policy}");
        assert_eq!(read_whole(volume.fs(), two).expect("read"), written, "{policy}");
        let growth = volume.fs().explain(one).expect("explained").growth;
        let threads: Vec<_> = growth.iter().map(|tier| (tier.tier.as_str(), tier.threads)).collect();
        assert_eq!(threads, [("fast", Some(1)), ("slow", Some(1))], "{policy}");
    }
}

#[test]
fn a_thread_whose_tier_is_full_writes_to_another_one() {
    let volume = volume_with(POLY_STATIC, &[16 * MIB, 2 * MIB]);
    let ([_, two], written) = write_two_files(&volume, 6, 64);
    assert!(bytes_on(volume.fs(), two, "slow") > 0 && bytes_on(volume.fs(), two, "fast") > RANGE);
    assert_eq!(read_whole(volume.fs(), two).expect("read"), written);
}

#[test]
fn what_nobody_in_particular_writes_counts_as_a_thread_of_the_file() {
    let volume = volume_with(POLY_STATIC, &[16 * MIB; 2]);
    let files: Vec<_> = (0..4).map(|number| create(volume.fs(), &format!("f{number}"))).collect();
    let data = pattern(7, usize::try_from(RANGE).expect("small"));
    for range in 0..10 {
        for (_, handle) in &files {
            write_as(&volume, 0, *handle, range * RANGE, &data);
        }
    }
    let (ino, _) = files[0];
    let growth = volume.fs().explain(ino).expect("explained").growth;
    assert_eq!(growth.iter().map(|tier| tier.threads).collect::<Vec<_>>(), [Some(2), Some(2)]);
    // Threads that stopped are forgotten when another one asks.
    volume.clock.advance(Duration::from_secs(11));
    write_as(&volume, 77, files[0].1, 10 * RANGE, &data);
    let growth = volume.fs().explain(ino).expect("explained").growth;
    assert_eq!(growth.iter().map(|tier| tier.threads).collect::<Vec<_>>(), [Some(1), Some(0)]);
}

#[test]
fn an_append_of_a_mapped_thread_that_nobody_synced_is_a_prefix() {
    for policy in MAPPED {
        let mut volume = volume_with(policy, &[16 * MIB; 2]);
        let (_, handle) = create(volume.fs(), "f");
        let data = pattern(8, usize::try_from(10 * RANGE).expect("small"));
        for (range, part) in (0..).zip(data.chunks(usize::try_from(RANGE).expect("small"))) {
            // Each range by another thread, so that the file is on both tiers.
            write_as(&volume, 20 + range % 2, handle, range * RANGE, part);
            if range == 4 {
                volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
            }
        }
        close(volume.fs(), handle).expect("closed");
        volume.crash();
        let ino = find(volume.fs(), "f").ino;
        let left = read_whole(volume.fs(), ino).expect("read");
        assert!(left.len() as u64 >= 5 * RANGE, "{policy}: {} bytes", left.len());
        assert!(data.starts_with(&left), "{policy}: {} bytes", left.len());
        assert_eq!(volume.findings(), [] as [String; 0], "{policy}");
    }
}
