//! Small files that are synced after they were made, as mail in a queue is, while the faster tier is full (docs/design/0034).

use std::time::Duration;

use polymux_fs::{Caller, MoversState, Promotion, SyncKind};
use polymux_types::Ino;

use super::common::{Volume, bytes_on, close, create, create_in, make_directory, pattern, write_all};
use super::tested;

/// Whether a message begins on the faster tier that is made, written, synced where `is_synced` says so, and removed.
fn is_on_fast(volume: &Volume, directory: Ino, (name, length): (&str, usize), is_synced: bool) -> bool {
    let (ino, handle) = create_in(volume.fs(), directory, name);
    write_all(volume.fs(), handle, 0, &pattern(4, length)).expect("written");
    if is_synced {
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    }
    let is_on_fast = bytes_on(volume.fs(), ino, "fast") > 0;
    close(volume.fs(), handle).expect("closed");
    volume.fs().unlink(&Caller::root(), directory, name.as_bytes()).expect("removed");
    is_on_fast
}

/// Of how many messages the bytes lie on the faster tier, which is full of something else up to its high mark.
fn messages_on_fast(count: usize, length: usize, is_synced: impl Fn(usize) -> bool) -> usize {
    let volume = tested(Promotion::Prompt).volume;
    let (_, ballast) = create(volume.fs(), "ballast");
    write_all(volume.fs(), ballast, 0, &pattern(3, 58 << 20)).expect("written");
    let directory = make_directory(volume.fs(), "incoming");
    let begins =
        |number: &usize| is_on_fast(&volume, directory, (&format!("message-{number}"), length), is_synced(*number));
    (0..count).filter(begins).count()
}

#[test]
fn messages_of_a_queue_lie_on_the_faster_tier_although_it_is_above_its_mark_and_other_small_files_do_not() {
    assert_eq!(messages_on_fast(40, 16 << 10, |_| true), 32, "from the ninth on");
    assert_eq!(messages_on_fast(40, 16 << 10, |_| false), 0);
    assert_eq!(messages_on_fast(200, 16 << 10, |number| number % 10 == 0), 0, "a few of many are no messages");
    assert_eq!(messages_on_fast(20, 3 << 20, |_| true), 0, "large ones are none");
}

#[test]
fn a_large_file_in_a_directory_of_messages_ends_that_they_are_expected_there() {
    let volume = tested(Promotion::Prompt).volume;
    let (_, ballast) = create(volume.fs(), "ballast");
    write_all(volume.fs(), ballast, 0, &pattern(3, 58 << 20)).expect("written");
    let directory = make_directory(volume.fs(), "pictures");
    let made = |name: &str, length, is_synced| is_on_fast(&volume, directory, (name, length), is_synced);
    assert_eq!((0..9).filter(|number| made(&format!("note-{number}"), 16 << 10, true)).count(), 1);
    made("picture", 3 << 20, false);
    assert!(!made("note", 16 << 10, true));
}

/// Bytes that leave the faster tier at once after so many messages found no space there, of a volume whose movers do nothing. `before` is done
/// first.
fn hurried_for_messages(count: usize, before: impl FnOnce(&Volume)) -> u64 {
    let volume = tested(Promotion::Prompt).volume;
    let (_, ballast) = create(volume.fs(), "ballast");
    write_all(volume.fs(), ballast, 0, &pattern(3, 80 << 20)).expect("written");
    before(&volume);
    let directory = make_directory(volume.fs(), "incoming");
    for number in 0..8 + count {
        assert!(!is_on_fast(&volume, directory, (&format!("message-{number}"), 16 << 10), true), "it is full");
    }
    for _ in 0..20 {
        volume.clock.advance(Duration::from_millis(100));
        volume.fs().step();
    }
    volume.counter("bytes_hurried_for_messages")
}

#[test]
fn room_for_many_messages_is_made_at_once_and_not_for_a_few_nor_while_nothing_may_move() {
    let hurried = hurried_for_messages(40, |_| ());
    assert!(((4 << 20)..=(16 << 20)).contains(&hurried), "{hurried}");
    assert_eq!(hurried_for_messages(5, |_| ()), 0);
    assert_eq!(hurried_for_messages(40, |volume| volume.fs().set_movers(MoversState::Paused)), 0);
}
