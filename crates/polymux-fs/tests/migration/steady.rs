//! On a steady workload nothing moves any more after a while, whatever the policy (issue: nothing moves twice without a
//! reason). Time is simulated; the workload comes from a seed. A test program that includes this says which policies it is about: those of the
//! product, and those of `polymux-lab`.

use std::time::Duration;

use polymux_fs::{HandleId, MountOptions, PolicyKind};

use crate::common::{Volume, create, pattern, read_at, write_all};
use crate::{MIB, mebibytes, settle};

/// Simulated seconds of each phase.
const PHASE_SECONDS: u32 = 600;

const FILES: u64 = 12;
const FILE_MIB: usize = 16;

/// A volume of three tiers, with files that fill the slow ones, and short half-lives.
fn volume_under(policy: PolicyKind) -> (Volume, Vec<HandleId>) {
    let mut volume = Volume::new(&[64 * MIB, 128 * MIB, 512 * MIB]);
    volume.options = MountOptions { heat_half_life_seconds: 120, ..volume.options };
    volume.remount();
    volume.fs().set_steering(policy, &[]).expect("accepted");
    let mut handles = Vec::new();
    for index in 0..FILES {
        let (ino, handle) = create(volume.fs(), &format!("f{index}"));
        write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(FILE_MIB))).expect("written");
        volume.fs().migrate(ino, "slow", None).expect("accepted");
        settle(&volume);
        handles.push(handle);
    }
    (volume, handles)
}

/// Which node of which file is read at this second: a few each second, others each minute, 80 MiB together and so more than
/// the fast tier takes.
fn reads_at(second: u32) -> Vec<(u64, u64)> {
    let mut reads = Vec::new();
    for rank in 0_u32..40 {
        let period = 1 + rank * rank / 27;
        if second % period == rank % period {
            let node = u64::from(rank) * 7919 % (FILES * 8);
            reads.push((node / 8, node % 8));
        }
    }
    reads
}

fn run(volume: &Volume, handles: &[HandleId], seconds: std::ops::Range<u32>) -> u64 {
    let before = volume.counter("bytes_moved");
    for second in seconds {
        for (file, node) in reads_at(second) {
            let handle = handles[usize::try_from(file).expect("few files")];
            let offset = node * 2 * MIB + u64::from(second * 8191 % 500) * 4096;
            read_at(volume.fs(), handle, offset, 4096).expect("read");
        }
        volume.fs().step();
        volume.fs().move_step();
        volume.clock.advance(Duration::from_secs(1));
    }
    volume.counter("bytes_moved") - before
}

#[test]
fn after_ten_minutes_of_the_same_work_nothing_moves_under_any_policy() {
    for policy in crate::KINDS.iter().copied().filter(|policy| policy.comes_to_rest()) {
        let (volume, handles) = volume_under(policy);
        let first = run(&volume, &handles, 0..PHASE_SECONDS);
        let second = run(&volume, &handles, PHASE_SECONDS..2 * PHASE_SECONDS);
        println!("{policy}: {} MiB moved in the first ten minutes, {} MiB in the next", first / MIB, second / MIB);
        assert_eq!(second, 0, "{policy} goes on moving");
        if policy != PolicyKind::Static {
            assert!(first > 0, "{policy} moved nothing at all, so the test shows nothing");
        }
        let (moves, steps) = (volume.fs().moves(), volume.counter("moves_begun"));
        assert_eq!((moves.queued_count, moves.parked_count, moves.running.len()), (0, 0, 0));
        settle(&volume);
        assert_eq!(volume.counter("moves_begun"), steps);
    }
}
