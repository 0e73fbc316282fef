//! Tiers that leave, pins that wait, and the effects of both on moves: each test is a mistake that was made once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polymux_fs::{
    Caller, FileSystem, HeldBack, JobState, MoveReason, MoversState, NamedRule, PolicyKind, RuleMatch, SyncKind,
};
use polymux_tier::{ObjectRef, Tier};
use polymux_types::{Bucket, Ino, ObjectId};

use crate::common::{Volume, close, create, pattern, write_all};
use crate::{MIB, mebibytes, settle, shares};

fn name(text: &str) -> String {
    text.to_owned()
}

fn file(fs: &FileSystem, name: &str, mebibytes_long: usize) -> Ino {
    let (ino, handle) = create(fs, name);
    write_all(fs, handle, 0, &pattern(1, mebibytes(mebibytes_long))).expect("written");
    fs.sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    close(fs, handle).expect("closed");
    ino
}

/// A volume whose slow tier is so full that a file of 10 MiB on the fast one cannot go there, and both files.
fn full_slow_tier() -> (Volume, Ino, Ino) {
    let volume = Volume::new(&[128 * MIB, 64 * MIB]);
    let filler = file(volume.fs(), "filler", 55);
    crate::migrate(&volume, filler, "slow");
    let pinned = file(volume.fs(), "pinned", 10);
    volume.fs().pin_to_tier(pinned, Some("slow")).expect("pinned");
    settle(&volume);
    assert_eq!(shares(volume.fs(), pinned), [(name("fast"), 10 * MIB)], "there is no room");
    let held_back = volume.fs().plan(None).expect("planned").held_back;
    assert_eq!(held_back, HeldBack { files: 1, bytes: 10 * MIB }, "the plan tells what the pin demands in vain");
    (volume, filler, pinned)
}

#[test]
fn a_pin_that_found_no_room_is_followed_when_there_is_some() {
    let (volume, filler, pinned) = full_slow_tier();
    crate::migrate(&volume, filler, "fast");
    volume.clock.advance(Duration::from_secs(700));
    settle(&volume);
    assert_eq!(shares(volume.fs(), pinned), [(name("slow"), 10 * MIB)]);
}

#[test]
fn a_pin_is_followed_above_the_mark_of_its_tier_while_there_is_room() {
    let volume = Volume::new(&[128 * MIB, 64 * MIB]);
    let filler = file(volume.fs(), "filler", 55);
    crate::migrate(&volume, filler, "slow");
    let pinned = file(volume.fs(), "pinned", 4);
    volume.fs().pin_to_tier(pinned, Some("slow")).expect("pinned");
    settle(&volume);
    assert_eq!(shares(volume.fs(), pinned), [(name("slow"), 4 * MIB)], "59 of 64 MiB are above the mark of 90 %");
    assert_eq!(volume.fs().plan(None).expect("planned").held_back, HeldBack::default());
}

#[test]
fn a_pin_that_found_no_room_is_followed_after_the_next_mount() {
    let (mut volume, filler, pinned) = full_slow_tier();
    crate::migrate(&volume, filler, "fast");
    volume.remount();
    settle(&volume);
    assert_eq!(shares(volume.fs(), pinned), [(name("slow"), 10 * MIB)]);
}

#[test]
fn a_pinned_file_comes_back_when_the_emptying_of_its_tier_is_taken_back() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let pinned = file(volume.fs(), "pinned", 10);
    volume.fs().pin_to_tier(pinned, Some("slow")).expect("pinned");
    settle(&volume);
    volume.fs().start_drain("slow").expect("the drain begins");
    settle(&volume);
    assert_eq!(shares(volume.fs(), pinned), [(name("fast"), 10 * MIB)]);
    volume.fs().cancel_drain("slow").expect("taken back");
    settle(&volume);
    assert_eq!(shares(volume.fs(), pinned), [(name("slow"), 10 * MIB)]);
}

#[test]
fn a_pin_to_a_tier_that_takes_nothing_is_refused() {
    let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let ino = file(volume.fs(), "f", 1);
    volume.fs().start_drain("slow").expect("the drain begins");
    let refusal = volume.fs().pin_to_tier(ino, Some("slow")).expect_err("refused").to_string();
    assert!(refusal.contains("`slow` is being emptied"), "{refusal}");
    volume.fs().cancel_drain("slow").expect("taken back");
    volume.unmount().expect("unmounted");
    volume.set_missing(1, true);
    volume.options.missing = polymux_fs::MissingTiers::Degraded;
    volume.mount().expect("mounted without the tier");
    let refusal = volume.fs().pin_to_tier(ino, Some("slow")).expect_err("refused").to_string();
    assert!(refusal.contains("`slow` is missing"), "{refusal}");
    assert!(volume.fs().pins().expect("listed").is_empty());
}

#[test]
fn a_removal_that_is_refused_moves_nothing() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let files: Vec<Ino> = (0..50).map(|index| file(volume.fs(), &format!("f{index}"), 1)).collect();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                volume.fs().step();
                volume.fs().move_step();
            }
        });
        let told: Vec<_> = (0..300).map(|_| volume.remove_tier(0)).collect();
        has_ended.store(true, Ordering::Relaxed);
        for told in told {
            let refusal = told.expect_err("it holds files").to_string();
            assert!(refusal.contains("50 files"), "{refusal}");
        }
    });
    let moves = volume.fs().moves();
    assert!(moves.finished.is_empty() && moves.queued_count == 0, "{moves:?}");
    assert!(files.iter().all(|ino| shares(volume.fs(), *ino)[0].0 == "fast"));
}

#[test]
fn a_tier_that_is_being_removed_is_not_emptied_meanwhile() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let refusal = volume.fs().remove_tier("slow", || {
        volume.fs().step();
        assert!(volume.fs().drains().is_empty(), "nobody asked for a drain");
        Err(name("the disk is full"))
    });
    assert_eq!(refusal.expect_err("refused").to_string(), "the disk is full");
    volume.fs().step();
    assert!(volume.fs().drains().is_empty());
}

#[test]
fn a_tier_is_not_called_empty_while_there_is_an_object_on_it() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let stray = ObjectRef::new(ObjectId(1 << 40), Bucket(7));
    volume.memory(1).create(stray).expect("made");
    volume.fs().start_drain("slow").expect("the drain begins");
    settle(&volume);
    assert!(!volume.fs().drains()[0].is_empty, "somebody may be bringing it");
    volume.memory(1).remove(stray).expect("removed");
    volume.clock.advance(Duration::from_secs(10));
    settle(&volume);
    assert!(volume.fs().drains()[0].is_empty);
    // Data arrived after all: the report is withdrawn, and determined anew.
    volume.memory(1).create(stray).expect("made");
    assert!(volume.remove_tier(1).is_err());
    assert!(!volume.fs().drains()[0].is_empty);
    volume.memory(1).remove(stray).expect("removed");
    volume.clock.advance(Duration::from_secs(10));
    settle(&volume);
    assert!(volume.fs().drains()[0].is_empty);
    volume.remove_tier(1).expect("the tier leaves");
}

#[test]
fn no_tier_joins_when_the_numbers_of_tiers_are_used_up() {
    let mut volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let spare = volume.make_tier("spare", 64 * MIB, |tier| tier);
    for number in 2..64 {
        assert_eq!(volume.add_tier(spare, 2).expect("it joins").0, number);
        volume.remove_tier(spare).expect("it leaves");
    }
    let refusal = volume.add_tier(spare, 2).expect_err("refused").to_string();
    assert!(refusal.contains("used up its 64 tier numbers"), "{refusal}");
    assert!(volume.is_unlabelled(spare) && volume.listed() == ["fast", "slow"]);
    file(volume.fs(), "f", 1);
}

#[test]
fn what_was_to_go_to_a_tier_that_is_emptied_or_leaves_comes_to_an_end() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let (ruled, asked) = (file(volume.fs(), "ruled", 2), file(volume.fs(), "asked", 2));
    volume.fs().set_movers(MoversState::Paused);
    let rule = NamedRule {
        matches: RuleMatch { path: Some(name("ruled")), ..RuleMatch::default() },
        tiers: vec![name("slow")],
        ..NamedRule::default()
    };
    volume.fs().set_steering(PolicyKind::HotCold, &[rule]).expect("accepted");
    let job = volume.fs().migrate(asked, "slow", None).expect("accepted");
    volume.step();
    assert_eq!(volume.fs().moves().queued_count, 2);
    volume.fs().start_drain("slow").expect("the drain begins");
    let moves = volume.fs().moves();
    assert_eq!(moves.queued_count, 1, "what nobody asked for is taken back: {moves:?}");
    assert!(matches!(moves.finished[..], [ref job] if (job.reason, job.ino) == (MoveReason::Pin, ruled)), "{moves:?}");
    volume.fs().set_movers(MoversState::Working);
    settle(&volume);
    assert_eq!(volume.fs().moves().parked_count, 1, "what somebody asked for waits");
    volume.fs().remove_tier("slow", || Ok(())).expect("the tier leaves");
    let state = volume.fs().job(job).expect("remembered").state;
    assert_eq!(state, JobState::Failed(name("tier `slow` has left the volume")));
    let moves = volume.fs().moves();
    assert_eq!((moves.queued_count, moves.parked_count), (0, 0), "{moves:?}");
}
