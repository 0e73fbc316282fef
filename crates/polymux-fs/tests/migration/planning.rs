//! The selections of the planner, the files that it skips, and its targets: each test is a case that was not planned once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polymux_fs::{
    Caller, Destination, JobState, MoveReason, MoveWindow, MoversState, NamedRule, PolicyKind, RuleMatch, SyncKind,
    WaitsFor,
};
use polymux_sim::crash_states::Random;
use polymux_sim::{FaultyTier, OperationKind};
use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::sync::Mutex;
use polymux_types::{Errno, Ino};

use crate::common::{
    Hook, HookedTier, Verdict, Volume, close, create, find, pattern, read_at, read_only, read_whole, write_all,
};
use crate::{MIB, mebibytes, settle, shares};

/// Plans and moves until nothing is left to do: a step that plans does not say that it did.
fn plan_and_settle(volume: &Volume) {
    for _ in 0..4 {
        volume.fs().step();
        settle(volume);
    }
}

fn name(text: &str) -> String {
    text.to_owned()
}

/// A volume whose tiers fail on request.
fn faulty_volume(capacities: &[u64]) -> (Volume, Vec<Arc<FaultyTier>>) {
    let faults = Mutex::new(Vec::new());
    let volume = Volume::wrapping(capacities, |_, tier| -> Arc<dyn Tier> {
        let faulty = Arc::new(FaultyTier::new(tier));
        faults.lock().push(Arc::clone(&faulty));
        faulty
    });
    (volume, faults.into_inner())
}

#[test]
fn what_becomes_hot_while_its_file_is_on_its_way_is_promoted_after_it() {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(20))).expect("written");
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    settle(&volume);
    // A day later the move is forgotten.
    volume.clock.advance(Duration::from_secs(86_400));
    settle(&volume);
    let use_often = |offset: u64| {
        for _ in 0..30 {
            read_at(volume.fs(), handle, offset, 4096).expect("read");
            volume.clock.advance(Duration::from_secs(7));
            volume.fs().step();
        }
    };
    volume.fs().set_movers(MoversState::Paused);
    use_often(4 * MIB + 77_777);
    assert_eq!(volume.fs().moves().queued_count, 1, "the first range is on its way");
    use_often(12 * MIB + 5000);
    assert_eq!(volume.fs().moves().queued_count, 1, "one job of a kind at a time");
    volume.fs().set_movers(MoversState::Working);
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino)[0], (name("fast"), 2 * MIB));
    read_at(volume.fs(), handle, 12 * MIB + 5000, 4096).expect("read");
    plan_and_settle(&volume);
    assert_eq!(shares(volume.fs(), ino)[0], (name("fast"), 4 * MIB), "the next use tells of the second one");
}

/// Does not tell the size of one object.
#[derive(Default)]
struct Silent {
    object: Mutex<Option<ObjectRef>>,
    is_learning: AtomicBool,
}

impl Hook for Silent {
    fn before_write(&self, object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        if self.is_learning.load(Ordering::Relaxed) {
            *self.object.lock() = Some(object);
        }
        Verdict::Pass
    }

    fn before_stat(&self, object: ObjectRef) -> Verdict {
        let is_it = *self.object.lock() == Some(object) && !self.is_learning.load(Ordering::Relaxed);
        let refused = TierError::Io { operation: "testing", errno: Errno::EACCES };
        if is_it { Verdict::Fail(refused) } else { Verdict::Pass }
    }
}

#[test]
fn a_file_that_does_not_tell_its_size_stops_neither_eviction_nor_rules_nor_the_plan() {
    let silent = Arc::new(Silent::default());
    let mut volume = Volume::wrapping(&[64 * MIB, 512 * MIB], |index, tier| -> Arc<dyn Tier> {
        if index == 0 { Arc::new(HookedTier::new(tier, Arc::clone(&silent) as _)) } else { tier }
    });
    silent.is_learning.store(true, Ordering::Relaxed);
    let (_, handle) = create(volume.fs(), "silent");
    write_all(volume.fs(), handle, 0, &pattern(9, mebibytes(1))).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    silent.is_learning.store(false, Ordering::Relaxed);
    let saved = silent.object.lock().take();
    for index in 0..12_u8 {
        let (_, handle) = create(volume.fs(), &format!("f{index}"));
        write_all(volume.fs(), handle, 0, &pattern(index, mebibytes(5))).expect("written");
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    }
    *silent.object.lock() = saved;
    volume.crash();
    assert!(volume.fs().explain(find(volume.fs(), "f0").ino).is_ok());
    let plan = volume.fs().plan(None).expect("one file does not spoil the plan");
    assert!(plan.moves.iter().any(|moves| moves.reason == MoveReason::Demote), "{plan:?}");
    volume.clock.advance(Duration::from_secs(60));
    plan_and_settle(&volume);
    assert!(volume.used(0) <= 64 * MIB * 9 / 10, "the others are evicted: {}", volume.used(0));
    let rule = NamedRule {
        matches: RuleMatch { path: Some(name("*")), ..RuleMatch::default() },
        tiers: vec![name("slow")],
        ..NamedRule::default()
    };
    volume.fs().set_steering(PolicyKind::HotCold, &[rule]).expect("accepted");
    plan_and_settle(&volume);
    let left = volume.used(0);
    assert!(left <= mebibytes(1) as u64, "only the file that does not tell its size is left: {left}");
}

#[test]
fn what_waits_for_a_tier_does_not_keep_others_from_making_room() {
    let (volume, faults) = faulty_volume(&[64 * MIB, 128 * MIB, 512 * MIB]);
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(60))).expect("written");
    faults[1].fail_always(OperationKind::Write, TierError::Io { operation: "testing", errno: Errno::EIO });
    plan_and_settle(&volume);
    let parked = volume.fs().moves();
    assert!(parked.parked_count > 0, "{parked:?}");
    assert!(volume.used(0) <= 64 * MIB * 85 / 100, "others leave instead: {}", volume.used(0));
}

#[test]
fn a_drained_tier_is_emptied_to_the_next_slower_one_and_to_the_fastest_last() {
    for (drained, expected) in [("fast", "middle"), ("middle", "slow"), ("slow", "middle")] {
        let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
        let (ino, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(3))).expect("written");
        if drained != "fast" {
            volume.fs().migrate(ino, drained, None).expect("accepted");
            settle(&volume);
        }
        volume.fs().start_drain(drained).expect("the drain begins");
        settle(&volume);
        assert_eq!(shares(volume.fs(), ino), [(name(expected), 3 * MIB)], "off {drained}");
    }
}

#[test]
fn a_drained_file_goes_where_its_rule_allows_it() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let rule = NamedRule {
        matches: RuleMatch { path: Some(name("*")), ..RuleMatch::default() },
        tiers: vec![name("middle"), name("fast")],
        ..NamedRule::default()
    };
    volume.fs().set_steering(PolicyKind::HotCold, &[rule]).expect("accepted");
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(3))).expect("written");
    assert_eq!(shares(volume.fs(), ino)[0].0, "middle");
    volume.fs().start_drain("middle").expect("the drain begins");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [(name("fast"), 3 * MIB)]);
}

#[test]
fn a_drain_counts_what_sparse_files_take_up() {
    let mut volume = Volume::new(&[64 * MIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, mebibytes(1));
    write_all(volume.fs(), handle, 1 << 30, &data).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    close(volume.fs(), handle).expect("closed");
    volume.remount();
    volume.fs().start_drain("fast").expect("there is room for what it takes up");
    settle(&volume);
    assert!(volume.fs().drains()[0].is_empty, "{:?} {:?}", volume.fs().drains(), volume.fs().moves());
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert!(read_at(volume.fs(), handle, 1 << 30, data.len()).expect("read") == data);
    assert_eq!(shares(volume.fs(), ino).len(), 1);
}

#[test]
fn a_drain_goes_on_when_an_error_of_its_tier_has_passed() {
    let (volume, faults) = faulty_volume(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, mebibytes(3));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    faults[0].fail_always(OperationKind::Read, TierError::Io { operation: "testing", errno: Errno::EIO });
    volume.fs().start_drain("fast").expect("the drain begins");
    settle(&volume);
    let parked = volume.fs().moves().parked;
    assert!(
        matches!(parked[..], [ref job] if matches!(job.state, JobState::Parked(WaitsFor::Repair(..)))),
        "{parked:?}"
    );
    faults[0].heal();
    volume.clock.advance(Duration::from_secs(60));
    settle(&volume);
    assert!(volume.fs().drains()[0].is_empty, "{:?}", volume.fs().moves());
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
}

#[test]
fn explain_and_plan_know_that_a_tier_is_being_emptied() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(3))).expect("written");
    let (elsewhere, handle) = create(volume.fs(), "elsewhere");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(3))).expect("written");
    crate::migrate(&volume, elsewhere, "slow");
    // The clock of the tests begins at 1:46.
    let window = MoveWindow { days: 0x7f, from_minute: 720, to_minute: 780 };
    volume.fs().set_move_windows(&[window], 0);
    let shut = volume.fs().explain(ino).expect("explained").why_not_now.expect("no window is open");
    assert!(shut.contains("time window"), "{shut}");
    volume.fs().start_drain("fast").expect("the drain begins");
    volume.step();
    let explained = volume.fs().explain(ino).expect("explained");
    assert_eq!(explained.ranges[0].wanted_on.as_deref(), Some("middle"), "{explained:?}");
    assert_eq!(explained.ranges[0].why, "Its tier is being emptied.");
    assert_eq!(explained.ranges[0].would_leave_to, None);
    assert_eq!(explained.why_not_now, None, "a drain waits for no window");
    assert!(volume.fs().explain(elsewhere).expect("explained").why_not_now.is_some());
    let plan = volume.fs().plan(None).expect("planned");
    let drained: Vec<_> = plan.moves.iter().filter(|moves| moves.reason == MoveReason::Drain).collect();
    assert!(
        matches!(drained[..], [moves] if (moves.from.as_str(), moves.to.as_str(), moves.files, moves.bytes)
            == ("fast", "middle", 1, 3 * MIB)),
        "{plan:?}"
    );
    volume.fs().set_movers(MoversState::Paused);
    let paused = volume.fs().explain(ino).expect("explained").why_not_now;
    assert_eq!(paused.as_deref(), Some("Moving is paused."));
    volume.fs().set_movers(MoversState::Working);
    settle(&volume);
    assert!(volume.fs().plan(None).expect("planned").moves.is_empty());
}

#[test]
fn a_range_that_ends_behind_the_file_is_refused_and_one_without_an_end_is_not() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(5))).expect("written");
    let refusal = volume.fs().migrate(ino, "slow", Some(0..5 * MIB + 1)).expect_err("refused").to_string();
    assert!(refusal.contains("ends at byte 5242881") && refusal.contains("has 5242880 bytes"), "{refusal}");
    assert!(volume.fs().migrate(Ino(ino.0), "slow", Some(0..5 * MIB)).is_ok());
    assert!(volume.fs().migrate(ino, "slow", Some(4 * MIB..u64::MAX)).is_ok());
}

/// Files on both tiers, some of which were used lately. `fast_files` of them lie on the faster one.
fn volume_with_use(random: &mut Random, policy: PolicyKind, fast_files: u64) -> Volume {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    volume.fs().set_steering(policy, &[]).expect("accepted");
    for index in 0..4 + fast_files {
        let (ino, handle) = create(volume.fs(), &format!("f{index}"));
        let length = mebibytes(1 + random.below(7));
        write_all(volume.fs(), handle, 0, &pattern(1, length)).expect("written");
        if index < 4 {
            crate::migrate(&volume, ino, "slow");
        }
        // What its writing counts for as use is over long before the plan is made.
        volume.clock.advance(Duration::from_secs(100_000));
    }
    volume
}

/// Reads in places of files (in MiB) until these are hot, and does not let them be planned for before the last read.
fn use_ranges(volume: &Volume, policy: PolicyKind, places: &[(usize, u64)]) {
    let read = |part: u64| {
        for (file, mebibyte) in places {
            let ino = find(volume.fs(), &format!("f{file}")).ino;
            let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
            read_at(volume.fs(), handle, mebibyte * MIB + part * 100_000, 4096).expect("read");
            close(volume.fs(), handle).expect("closed");
        }
    };
    volume.fs().set_steering(PolicyKind::Static, &[]).expect("accepted");
    for part in [3, 1, 4] {
        read(part);
        volume.clock.advance(Duration::from_secs(2));
        volume.step();
    }
    volume.fs().set_steering(policy, &[]).expect("accepted");
    read(2);
}

/// The moves that a plan lists, and those that the planner submits when nothing changed in between. None of them is carried out.
fn planned_and_submitted(volume: &Volume) -> [BTreeSet<(MoveReason, Ino, String, u64)>; 2] {
    let plan = volume.fs().plan(None).expect("planned");
    assert_eq!(plan.jobs_open, 0);
    let planned = plan.files.iter().map(|file| (file.reason, file.ino, file.to.clone(), file.bytes)).collect();
    for _ in 0..200 {
        volume.step();
    }
    let moves = volume.fs().moves();
    assert_eq!(moves.queued_count, moves.queued.len() as u64, "all of them are listed");
    let submitted = moves.queued.iter().map(|job| {
        let Destination::To(tier) = job.destination else { panic!("{job:?}") };
        (job.reason, job.ino, ["fast", "slow"][usize::from(tier.0)].to_owned(), job.bytes_total)
    });
    [planned, submitted.collect()]
}

#[test]
fn the_moves_of_a_plan_are_those_that_the_planner_submits() {
    let mut random = Random::new(77);
    let mut seen = BTreeMap::new();
    for round in 0..24 {
        let policies = [
            PolicyKind::HotCold,
            PolicyKind::Lru,
            PolicyKind::Poly,
            PolicyKind::WholeFile,
            PolicyKind::Spread,
            PolicyKind::Tpfs,
        ];
        let policy = policies[round % policies.len()];
        let is_full = round % 12 < 6;
        let volume = volume_with_use(&mut random, policy, if is_full { 16 } else { 2 });
        if !is_full {
            settle(&volume);
            let places: Vec<_> = (0..4 + random.below(6)).map(|_| (random.below(4), random.below(3) as u64)).collect();
            use_ranges(&volume, policy, &places);
        }
        let [planned, submitted] = planned_and_submitted(&volume);
        for (reason, ..) in &planned {
            *seen.entry((policy.name(), *reason)).or_insert(0) += 1;
        }
        assert_eq!(planned, submitted, "round {round}, {policy}");
    }
    for reason in [MoveReason::Promote, MoveReason::Demote] {
        assert!(seen.iter().filter(|((_, of), _)| *of == reason).count() >= 4, "{seen:?}");
    }
}
