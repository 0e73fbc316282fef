//! Notes: which outlive the process, which do not, and which opening's notes are taken up.

use super::*;
use crate::log::Openings;
use crate::log::test_machine::Machine;

const TIME: Timestamp = Timestamp { seconds: -7, nanoseconds: 999_999_999 };

fn header(generation: u32) -> LogHeader {
    LogHeader {
        store: 11,
        salt: 0x1234_5678_9abc_def0,
        ring_length: 1 << 20,
        turn: 1,
        generation,
        checkpoint_generation: 1,
        checkpoint: 0,
        openings: Openings::UNKNOWN,
    }
}

fn open(machine: &Machine, generation: u32) -> Opened {
    Notes::open(machine, &header(generation), Trust::AsTheHeaderSays).unwrap()
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| seed ^ index.to_le_bytes()[0].wrapping_mul(7)).collect()
}

#[test]
fn the_last_note_of_each_number_outlives_the_process_and_a_forgotten_one_does_not() {
    let machine = Machine::default();
    let notes = open(&machine, 1).notes;
    let (mut first, mut second, mut third) = (None, None, None);
    for length in [0, 1, 7, 8, 9, 4095, CONTENT_MAX] {
        notes.put(5, TIME, &pattern(1, length), &mut first).unwrap();
    }
    notes.put(6, TIME, b"six", &mut second).unwrap();
    notes.put(7, TIME, b"seven", &mut third).unwrap();
    notes.put(7, TIME, b"", &mut third).unwrap();
    notes.forget(second.unwrap());
    assert_eq!(notes.put(6, TIME, &[0; CONTENT_MAX + 1], &mut None), None, "it is too long");
    drop(notes);
    let opened = open(&machine, 2);
    assert!(opened.are_known);
    let expected = [
        Note { number: 5, time: TIME, content: pattern(1, CONTENT_MAX) },
        Note { number: 7, time: TIME, content: Vec::new() },
    ];
    assert_eq!(opened.notes.left(), expected);
    opened.notes.forget_left();
    assert_eq!(open(&machine, 3).notes.left(), []);
}

#[test]
fn a_note_that_was_being_made_is_no_note_and_the_one_before_it_is_there() {
    let machine = Machine::default();
    let notes = open(&machine, 1).notes;
    let mut place = None;
    notes.put(5, TIME, b"whole", &mut place).unwrap();
    let whole = place.take().unwrap();
    notes.put(5, TIME, b"being made", &mut place).unwrap();
    // As if each word but the first, in turn, were that of an earlier note.
    for word in 1..10 {
        let words = notes.place(place.as_ref().unwrap().place);
        let before = words[word].fetch_xor(1 << 3, Ordering::Relaxed);
        if !(5..8).contains(&word) {
            let seen = Notes::over(Arc::clone(&notes.memory), notes.salt);
            assert_eq!(seen.left()[0].content, b"whole", "word {word}");
        }
        words[word].store(before, Ordering::Relaxed);
        words[0].store(place.as_ref().unwrap().version, Ordering::Relaxed);
    }
    assert!(whole.version < place.unwrap().version);
    assert_eq!(Notes::over(Arc::clone(&notes.memory), notes.salt).left()[0].content, b"being made");
}

#[test]
fn notes_are_those_of_the_opening_before_or_of_the_one_that_was_cut_short() {
    let machine = Machine::default();
    open(&machine, 1).notes.put(5, TIME, b"a", &mut None).unwrap();
    // The log of generation 2 is in use; a process that opens it dies before, or after, it has written the header of 3.
    assert_eq!(open(&machine, 2).notes.left().len(), 1);
    assert_eq!(open(&machine, 2).notes.left().len(), 1, "it died before the header of the log");
    assert_eq!(open(&machine, 3).notes.left().len(), 1, "it died after that");
    assert_eq!(open(&machine, 7).notes.left().len(), 0, "others changed the store meanwhile");
    assert!(!open(&machine, 3).are_known);
}

#[test]
fn notes_of_another_boot_of_another_store_or_of_a_log_that_lost_its_end_are_not_taken_up() {
    let mut machine = Machine::default();
    open(&machine, 1).notes.put(5, TIME, b"a", &mut None).unwrap();
    let opened = Notes::open(&machine, &header(2), Trust::No).unwrap();
    assert!(!opened.are_known && opened.notes.left().is_empty());
    opened.notes.put(5, TIME, b"a", &mut None).unwrap();
    machine.reboot();
    assert_eq!(open(&machine, 3).notes.left(), []);
    open(&machine, 4).notes.put(5, TIME, b"a", &mut None).unwrap();
    let other = LogHeader { salt: 1, ..header(5) };
    assert_eq!(Notes::open(&machine, &other, Trust::AsTheHeaderSays).unwrap().notes.left(), []);
}

#[test]
fn where_there_is_no_room_nothing_is_put_and_room_comes_back() {
    let machine = Machine::default();
    let notes = open(&machine, 1).notes;
    let mut places: Vec<_> = (0..u64::from(PLACES) - 1)
        .map(|number| {
            let mut place = None;
            notes.put(number, TIME, b"x", &mut place).unwrap();
            place
        })
        .collect();
    // The last place is for replacing a note.
    notes.put(0, TIME, b"y", &mut places[0]).unwrap();
    let mut last = None;
    notes.put(9999, TIME, b"z", &mut last).unwrap();
    assert_eq!(notes.put(0, TIME, b"w", &mut places[0]), None);
    notes.forget(last.unwrap());
    notes.put(0, TIME, b"w", &mut places[0]).unwrap();
}
