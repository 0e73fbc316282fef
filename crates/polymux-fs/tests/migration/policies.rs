//! Policies, rules and pins on a volume: the migrations that they start.

use std::time::Duration;

use polymux_fs::{MoveReason, NamedRule, PolicyKind, RuleMatch, SteeredBy};
use polymux_types::Ino;

use crate::common::{Volume, create, create_in, make_directory, pattern, read_at, read_whole, write_all};
use crate::{MIB, mebibytes, settle, shares};

fn name(text: &str) -> String {
    text.to_owned()
}

#[test]
fn a_tier_that_is_filled_settles_between_its_marks_and_no_write_fails() {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    let mut files = Vec::new();
    for index in 0..30_u8 {
        let (ino, handle) = create(volume.fs(), &format!("f{index}"));
        let data = pattern(index, mebibytes(6));
        write_all(volume.fs(), handle, 0, &data).expect("written");
        files.push((ino, data));
        volume.step();
        volume.fs().move_step();
    }
    settle(&volume);
    let used = volume.used(0);
    assert!(used <= 64 * MIB * 9 / 10, "the fast tier is at most at its high mark: {used}");
    assert!(used >= 64 * MIB * 7 / 10, "and not far below its low mark: {used}");
    for (ino, data) in &files {
        assert_eq!(&read_whole(volume.fs(), *ino).expect("read"), data);
    }
    assert_eq!(volume.fs().moves().parked_count, 0);
}

/// Uses a range of a file on the slow tier often, whose page cache holds so much of it; the names of the tiers that have bytes then.
fn tiers_after_use(cached_percent: Option<u64>) -> (Volume, Ino) {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(20))).expect("written");
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    settle(&volume);
    if let Some(percent) = cached_percent {
        volume.memory(1).set_cached_percent(percent);
    }
    for _ in 0..30 {
        read_at(volume.fs(), handle, 4 * MIB + 77_777, 4096).expect("read");
        volume.clock.advance(Duration::from_secs(7));
        settle(&volume);
    }
    (volume, ino)
}

#[test]
fn what_the_page_cache_serves_is_not_promoted_and_what_it_does_not_serve_is() {
    let bytes_on_fast = |(volume, ino): &(Volume, Ino)| {
        shares(volume.fs(), *ino).into_iter().find(|(tier, _)| tier == "fast").map_or(0, |(_, bytes)| bytes)
    };
    let cached = tiers_after_use(Some(100));
    assert_eq!(bytes_on_fast(&cached), 0, "all of it is in memory");
    assert!(cached.0.counter("promotions_spared_by_cache") > 0);
    let explained = cached.0.fs().explain(cached.1).expect("explained");
    let hot = explained.ranges.iter().find(|range| range.offset == 4 * MIB).expect("the range is explained");
    assert!(hot.why.contains("page cache"), "{}", hot.why);
    for percent in [None, Some(0), Some(40)] {
        let moved = tiers_after_use(percent);
        assert_eq!(bytes_on_fast(&moved), 2 * MIB, "{percent:?} in memory");
        assert_eq!(moved.0.counter("promotions_spared_by_cache"), 0);
    }
}

#[test]
fn what_is_used_again_and_again_comes_to_the_fast_tier_and_stays_there() {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, mebibytes(20));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino)[0].0, "slow");
    for round in 0..30 {
        for offset in [4 * MIB + 77_777, 12 * MIB + 5_000] {
            assert_eq!(read_at(volume.fs(), handle, offset, 4096).expect("read").len(), 4096);
        }
        volume.clock.advance(Duration::from_secs(7));
        volume.step();
        volume.fs().move_step();
        if round == 29 {
            settle(&volume);
        }
    }
    assert_eq!(shares(volume.fs(), ino), [(name("fast"), 4 * MIB), (name("slow"), 16 * MIB)]);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    let moved = volume.counter("bytes_moved");
    for _ in 0..100 {
        read_at(volume.fs(), handle, 4 * MIB + 77_777, 4096).expect("read");
        volume.clock.advance(Duration::from_secs(6));
        volume.step();
        volume.fs().move_step();
    }
    assert_eq!(volume.counter("bytes_moved"), moved, "nothing moves twice without a reason");
}

#[test]
fn one_long_read_promotes_nothing() {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, mebibytes(20))).expect("written");
    volume.fs().migrate(ino, "slow", None).expect("accepted");
    settle(&volume);
    for _ in 0..5 {
        for offset in (0..20 * MIB).step_by(128 * 1024) {
            read_at(volume.fs(), handle, offset, 128 * 1024).expect("read");
        }
        volume.clock.advance(Duration::from_secs(60));
        settle(&volume);
    }
    assert_eq!(shares(volume.fs(), ino)[0].0, "slow");
}

#[test]
fn rules_choose_the_tier_of_new_files_and_move_those_that_are_there() {
    let volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let directory = make_directory(volume.fs(), "archive");
    let (old, handle) = create_in(volume.fs(), directory, "old.tar");
    let data = pattern(1, mebibytes(3));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let rule = NamedRule {
        name: name("archive"),
        matches: RuleMatch { path: Some(name("/archive/")), ..RuleMatch::default() },
        policy: None,
        tiers: vec![name("slow")],
        passthrough: None,
    };
    volume.fs().set_steering(PolicyKind::HotCold, std::slice::from_ref(&rule)).expect("accepted");
    settle(&volume);
    assert_eq!(shares(volume.fs(), old), [(name("slow"), 3 * MIB)]);
    let (new, handle) = create_in(volume.fs(), directory, "new.tar");
    write_all(volume.fs(), handle, 0, &data).expect("written");
    assert_eq!(shares(volume.fs(), new)[0].0, "slow");
    let (other, handle) = create(volume.fs(), "other");
    write_all(volume.fs(), handle, 0, &data).expect("written");
    assert_eq!(shares(volume.fs(), other)[0].0, "fast");
    let explanation = volume.fs().explain(new).expect("explained");
    assert_eq!(explanation.steered_by, SteeredBy::Rule { index: 0, name: name("archive") });
    assert_eq!(explanation.allowed_tiers, ["slow"]);

    let wrong = NamedRule { tiers: vec![name("tape")], ..rule };
    let refusal = volume.fs().set_steering(PolicyKind::Lru, &[wrong]).expect_err("refused");
    assert_eq!(refusal.to_string(), "rule 1: the volume has no tier `tape`");
    assert!(volume.fs().policies().iter().any(|policy| policy.name == "hot-cold" && policy.is_current));
}

#[test]
fn a_pin_moves_what_is_there_holds_what_comes_and_goes_with_its_file() {
    let mut volume = Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let outer = make_directory(volume.fs(), "outer");
    let inner = volume.fs().make_directory(&polymux_fs::Caller::root(), outer, b"inner", 0o755).expect("made").ino;
    let (ino, handle) = create_in(volume.fs(), inner, "f");
    let data = pattern(1, mebibytes(3));
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().pin_to_tier(outer, Some("slow")).expect("pinned");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [(name("slow"), 3 * MIB)]);
    // The nearest pin counts.
    volume.fs().pin_to_tier(ino, Some("middle")).expect("pinned");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [(name("middle"), 3 * MIB)]);
    volume.remount();
    let explanation = volume.fs().explain(ino).expect("explained");
    assert_eq!(explanation.steered_by, SteeredBy::Pin { ino, path: Some(b"outer/inner/f".to_vec()) });
    let (other, handle) = create_in(volume.fs(), inner, "g");
    write_all(volume.fs(), handle, 0, &data).expect("written");
    assert_eq!(shares(volume.fs(), other)[0].0, "slow");
    volume.fs().pin_to_tier(ino, None).expect("unpinned");
    settle(&volume);
    assert_eq!(shares(volume.fs(), ino), [(name("slow"), 3 * MIB)], "the directory's pin holds again");
    assert_eq!(
        volume.fs().pin_to_tier(ino, Some("tape")).expect_err("refused").to_string(),
        "the volume has no tier `tape`"
    );
    assert!(volume.fs().pin_to_tier(Ino(999_999), Some("slow")).is_err());
}

#[test]
fn a_plan_says_what_will_move_and_moves_nothing() {
    let volume = Volume::new(&[64 * MIB, 512 * MIB]);
    for index in 0..12_u8 {
        let (_, handle) = create(volume.fs(), &format!("f{index}"));
        write_all(volume.fs(), handle, 0, &pattern(index, mebibytes(5))).expect("written");
    }
    let before = volume.used(0);
    let plan = volume.fs().plan(None).expect("planned");
    assert_eq!(plan.policy, "hot-cold");
    let demoted = plan.moves.iter().find(|moves| moves.reason == MoveReason::Demote).expect("the tier is too full");
    assert_eq!((demoted.from.as_str(), demoted.to.as_str()), ("fast", "slow"));
    assert!(demoted.bytes >= before - 64 * MIB * 8 / 10, "{demoted:?}");
    assert!(!plan.files.is_empty());
    assert_eq!(volume.used(0), before);
    assert_eq!(volume.fs().moves().queued_count, 0);
    assert!(volume.fs().plan(Some(PolicyKind::Static)).expect("planned").moves.is_empty());
}
