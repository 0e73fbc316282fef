//! One action of a user at every place of a move.

use std::sync::OnceLock;

use polymux_fs::{AllocateKind, Caller, HandleId, OpenOptions, RenameMode, SetAttributes, SyncKind, WriteOrigin};
use polymux_types::Ino;

use super::gate::{Moment, gated, move_all};
use crate::common::{Volume, create, find, pattern, read_whole, write_all};
use crate::{MIB, migrate, settle};

const LENGTH: usize = crate::mebibytes(5) - 1000;

/// An action of a user. Each is also carried out on a plain vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    WriteFront,
    WriteBack,
    WriteAcrossNodes,
    WriteEverywhere,
    Append,
    AppendAcrossNode,
    WriteBeyondEnd,
    TruncateDown,
    TruncateUp,
    TruncateToZero,
    TruncateAndRewrite,
    Punch,
    ZeroRange,
    Allocate,
    OpenTruncating,
    Sync,
    SyncVolume,
    MigrateElsewhere,
    Unlink,
    RenameOver,
}

const ACTIONS: [Action; 20] = [
    Action::WriteFront,
    Action::WriteBack,
    Action::WriteAcrossNodes,
    Action::WriteEverywhere,
    Action::Append,
    Action::AppendAcrossNode,
    Action::WriteBeyondEnd,
    Action::TruncateDown,
    Action::TruncateUp,
    Action::TruncateToZero,
    Action::TruncateAndRewrite,
    Action::Punch,
    Action::ZeroRange,
    Action::Allocate,
    Action::OpenTruncating,
    Action::Sync,
    Action::SyncVolume,
    Action::MigrateElsewhere,
    Action::Unlink,
    Action::RenameOver,
];

fn first_content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| pattern(1, LENGTH))
}

fn second_content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| pattern(9, crate::mebibytes(3)))
}

/// Writes `length` bytes to the file and to the vector.
fn put(volume: &Volume, handle: HandleId, content: &mut Vec<u8>, offset: usize, length: usize) {
    let data = &second_content()[..length];
    let mut done = 0;
    while done < length {
        let place = (offset + done) as u64;
        done += volume
            .fs()
            .write(&Caller::root(), handle, place, &data[done..], WriteOrigin::Call)
            .expect("a write succeeds while blocks move");
    }
    content.resize(content.len().max(offset + length), 0);
    content[offset..offset + length].copy_from_slice(data);
}

fn set_size(volume: &Volume, ino: Ino, content: &mut Vec<u8>, size: usize) {
    let change = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("a size is set while blocks move");
    content.resize(size, 0);
}

fn allocate(volume: &Volume, handle: HandleId, range: (usize, usize), kind: AllocateKind) {
    let (offset, length) = (range.0 as u64, range.1 as u64);
    volume
        .fs()
        .allocate(&Caller::root(), handle, offset, length, kind)
        .expect("room is given and taken while blocks move");
}

impl Action {
    fn apply(self, volume: &Volume, (ino, handle): (Ino, HandleId), content: &mut Vec<u8>) {
        let root = Caller::root();
        let end = content.len();
        match self {
            Self::WriteFront => put(volume, handle, content, 4096, 10_000),
            Self::WriteBack => put(volume, handle, content, end - 9_000, 9_000),
            Self::WriteAcrossNodes => put(volume, handle, content, crate::mebibytes(2) - 5_000, 10_000),
            Self::WriteEverywhere => put(volume, handle, content, crate::mebibytes(1), crate::mebibytes(3)),
            Self::Append => put(volume, handle, content, end, 500),
            Self::AppendAcrossNode => put(volume, handle, content, end, crate::mebibytes(2)),
            Self::WriteBeyondEnd => put(volume, handle, content, crate::mebibytes(9), 10_000),
            Self::TruncateDown => set_size(volume, ino, content, crate::mebibytes(3) + 77),
            Self::TruncateUp => set_size(volume, ino, content, crate::mebibytes(7) + 77),
            Self::TruncateToZero => set_size(volume, ino, content, 0),
            Self::TruncateAndRewrite => {
                set_size(volume, ino, content, 1000);
                put(volume, handle, content, crate::mebibytes(3), 10_000);
            }
            Self::Punch => {
                allocate(volume, handle, (crate::mebibytes(1), crate::mebibytes(2)), AllocateKind::PunchHole);
                content[crate::mebibytes(1)..crate::mebibytes(3)].fill(0);
            }
            Self::ZeroRange => {
                allocate(volume, handle, (crate::mebibytes(1), crate::mebibytes(2)), AllocateKind::ZeroRange);
                content[crate::mebibytes(1)..crate::mebibytes(3)].fill(0);
            }
            Self::Allocate => {
                allocate(volume, handle, (crate::mebibytes(4), crate::mebibytes(3)), AllocateKind::Extend);
                content.resize(crate::mebibytes(7), 0);
            }
            Self::OpenTruncating => {
                let options = OpenOptions { read: true, write: true, truncate: true, ..OpenOptions::default() };
                let second = volume.fs().open(&root, ino, options).expect("opened");
                content.clear();
                put(volume, second, content, 0, crate::mebibytes(1) + 5);
                volume.fs().release(second).expect("released");
            }
            Self::Sync => volume.fs().sync(&root, handle, SyncKind::All).expect("synced"),
            Self::SyncVolume => volume.fs().sync_volume().expect("synced"),
            Self::MigrateElsewhere => {
                volume.fs().migrate(ino, "middle", None).expect("accepted");
            }
            Self::Unlink => volume.fs().unlink(&root, Ino::ROOT, b"f").expect("unlinked"),
            Self::RenameOver => {
                let (_, other) = create(volume.fs(), "other");
                write_all(volume.fs(), other, 0, b"other").expect("written");
                volume.fs().rename(&root, Ino::ROOT, b"other", Ino::ROOT, b"f", RenameMode::Replace).expect("renamed");
                volume.fs().release(other).expect("released");
            }
        }
    }

    fn leaves_the_name(self) -> bool {
        !matches!(self, Self::Unlink | Self::RenameOver)
    }

    /// Reserved space and written zeros are not visible in the content alone.
    fn has_room_of_its_own(self) -> bool {
        matches!(self, Self::ZeroRange | Self::Allocate)
    }
}

/// How the file lies before the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// Whole on the fast tier; the slow one has no object.
    WholeToNew,
    /// Node 1 lies on the target already, whose object the file has.
    PartToExisting,
    /// The other way.
    WholeBack,
}

fn prepare(beginning: Beginning, volume: &Volume) -> ((Ino, HandleId), &'static str) {
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, first_content()).expect("written");
    let target = match beginning {
        Beginning::WholeToNew => "slow",
        Beginning::PartToExisting => {
            volume.fs().migrate(ino, "slow", Some(2 * MIB..2 * MIB + 1)).expect("accepted");
            settle(volume);
            "slow"
        }
        Beginning::WholeBack => {
            migrate(volume, ino, "slow");
            "fast"
        }
    };
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    ((ino, handle), target)
}

fn bytes_with_data(content: &[u8]) -> u64 {
    content.chunks(4096).filter(|block| **block != [0; 4096][..block.len()]).count() as u64 * 4096
}

#[track_caller]
fn assert_content(volume: &Volume, ino: Ino, expected: &[u8], what: &str) {
    let found = read_whole(volume.fs(), ino).expect("read");
    assert_eq!(found.len(), expected.len(), "{what}: size");
    // Whole slices first: byte by byte is slow where the compiler does not optimize.
    if found != expected {
        let place = (0..found.len()).find(|place| found[*place] != expected[*place]).expect("they differ");
        panic!("{what}: byte {place} is {}, should be {}", found[place], expected[place]);
    }
}

/// Runs one action at one place. Returns whether the move came to that place.
fn run(action: Action, beginning: Beginning, moment: Moment, index: usize) -> bool {
    let what = format!("{action:?}, {beginning:?}, before {moment:?} {index}");
    let (mut volume, gate) = gated(&[64 * MIB, 64 * MIB, 64 * MIB]);
    let (file, target) = prepare(beginning, &volume);
    volume.fs().migrate(file.0, target, None).expect("accepted");
    let mut content = first_content().to_vec();
    let reached = gate.at(moment, index, || move_all(&volume), || action.apply(&volume, file, &mut content));
    settle(&volume);
    assert_eq!(volume.fs().moves().parked_count + volume.fs().moves().queued_count, 0, "{what}");
    assert_content(&volume, file.0, &content, &what);
    if !action.leaves_the_name() {
        volume.fs().release(file.1).expect("released");
        settle(&volume);
        let used: u64 = (0..3).map(|tier| volume.used(tier)).sum();
        assert!(used <= 4096, "{what}: {used} bytes are left of a deleted file");
        return reached;
    }
    volume.fs().sync(&Caller::root(), file.1, SyncKind::All).expect("synced");
    volume.crash();
    assert_content(&volume, file.0, &content, &format!("{what}, after a crash"));
    settle(&volume);
    let used: u64 = (0..3).map(|tier| volume.used(tier)).sum();
    if !action.has_room_of_its_own() {
        assert_eq!(used, bytes_with_data(&content), "{what}: bytes on all tiers");
    }
    // No ghost bytes: a range that the file grows over reads as zeros.
    let ino = find(volume.fs(), "f").ino;
    let cut = content.len() / 2;
    set_size(&volume, ino, &mut content, cut);
    set_size(&volume, ino, &mut content, crate::mebibytes(12));
    assert_content(&volume, ino, &content, &format!("{what}, cut and extended"));
    migrate(&volume, ino, "middle");
    assert_content(&volume, ino, &content, &format!("{what}, moved again"));
    reached
}

fn try_everywhere(beginning: Beginning) {
    let is_heavy = std::env::var_os("POLYMUX_HEAVY").is_some();
    // Which places a move has is the same for all actions: the gate is passed before they happen.
    let is_place = |moment, index: &usize| run(Action::Sync, beginning, moment, *index);
    for moment in [Moment::Read, Moment::Write, Moment::Sync] {
        let places: Vec<usize> = (0..).take_while(|index| is_place(moment, index)).collect();
        assert!(!places.is_empty(), "a move reads, writes and syncs");
        // The first, one in the middle and the last; the long form takes all.
        let ends = [0, places.len() / 2, places.len() - 1];
        let chosen = |place: &&usize| is_heavy || ends.contains(*place);
        for index in places.iter().filter(chosen) {
            for action in ACTIONS {
                run(action, beginning, moment, *index);
            }
        }
    }
}

#[test]
fn every_action_at_every_place_of_a_move_to_a_tier_without_an_object() {
    try_everywhere(Beginning::WholeToNew);
}

#[test]
fn every_action_at_every_place_of_a_move_onto_an_object_that_is_there() {
    try_everywhere(Beginning::PartToExisting);
}

#[test]
fn every_action_at_every_place_of_a_move_back() {
    try_everywhere(Beginning::WholeBack);
}
