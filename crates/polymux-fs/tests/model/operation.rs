//! The operations that the model test draws from.
//!
//! Invariants: an index selects among the existing items at that moment (modulo their number), so that every drawn
//! operation means something and a failing sequence can shrink. Names come from a tiny alphabet so that they collide.

use polymux_fs::{AllocateKind, RenameMode, XattrMode};
use proptest::prelude::*;

/// Picks one of the things that exist.
pub type Index = u8;

/// How an open file is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    Read,
    Write,
    ReadWrite,
    Append,
    Truncate,
}

/// A position or length near an edge where things change.
pub type Position = u64;

/// One operation.
#[derive(Clone, Debug)]
pub enum Operation {
    Lookup {
        directory: Index,
        name: Index,
    },
    LookupInFile {
        file: Index,
        name: Index,
    },
    Create {
        directory: Index,
        name: Index,
        mode: OpenMode,
        exclusive: bool,
        permissions: u32,
    },
    CreateUnnamed {
        directory: Index,
    },
    LinkUnnamed {
        directory: Index,
        name: Index,
    },
    MakeDirectory {
        directory: Index,
        name: Index,
        permissions: u32,
    },
    MakeFifo {
        directory: Index,
        name: Index,
    },
    MakeSymlink {
        directory: Index,
        name: Index,
        length: u8,
    },
    MakeWithLongName {
        directory: Index,
        length: u16,
    },
    Link {
        file: Index,
        directory: Index,
        name: Index,
    },
    Unlink {
        directory: Index,
        name: Index,
    },
    RemoveDirectory {
        directory: Index,
        name: Index,
    },
    Rename {
        from: (Index, Index),
        to: (Index, Index),
        mode: RenameMode,
    },
    Open {
        file: Index,
        mode: OpenMode,
    },
    Close {
        handle: Index,
    },
    Write {
        handle: Index,
        offset: Position,
        length: Position,
        fill: u8,
    },
    Read {
        handle: Index,
        offset: Position,
        length: Position,
    },
    Truncate {
        file: Index,
        size: Position,
    },
    TruncateHandle {
        handle: Index,
        size: Position,
    },
    Allocate {
        handle: Index,
        offset: Position,
        length: Position,
        kind: AllocateKind,
    },
    Seek {
        handle: Index,
        offset: Position,
    },
    CopyRange {
        source: (Index, Position),
        target: (Index, Position),
        length: Position,
    },
    ChangeMode {
        node: Index,
        permissions: u32,
    },
    ChangeOwner {
        node: Index,
        uid: u32,
        gid: u32,
    },
    ChangeTimes {
        node: Index,
        seconds: i64,
        nanoseconds: u32,
    },
    SetXattr {
        node: Index,
        name: Index,
        length: u16,
        mode: XattrMode,
    },
    GetXattr {
        node: Index,
        name: Index,
    },
    RemoveXattr {
        node: Index,
        name: Index,
    },
    ListXattrs {
        node: Index,
    },
    ReadDirectory {
        directory: Index,
        chunk: u8,
    },
    Sync {
        handle: Index,
    },
    SyncDirectory {
        directory: Index,
    },
    SyncVolume,
    Step,
    /// Asks for a move of the file, whole or of the node that a position lies in.
    Migrate {
        file: Index,
        tier: Index,
        node: Option<Position>,
    },
    /// One batch of the mover.
    MoveStep,
    /// All that the mover has to do.
    MoveAll,
    Drain {
        tier: Index,
    },
    CancelDrain {
        tier: Index,
    },
    PauseMovers,
    Remount,
    SyncAndCrash,
    /// The daemon dies, and nothing else: all that was answered is there.
    ProcessDeath,
}

/// The names: few, so that they collide, and one of the greatest length.
pub fn name(index: Index) -> Vec<u8> {
    const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"a-", b"\xff\xfe", b"dd"];
    match NAMES.get(usize::from(index % 7)) {
        Some(name) => name.to_vec(),
        None => vec![b'n'; 255],
    }
}

/// The names of extended attributes.
pub fn xattr_name(index: Index) -> Vec<u8> {
    const NAMES: [&[u8]; 3] = [b"user.a", b"user.b", b"user.long-name"];
    NAMES[usize::from(index) % NAMES.len()].to_vec()
}

fn position() -> impl Strategy<Value = Position> {
    const RANGE_NODE: u64 = 2 << 20;
    prop_oneof![
        6 => prop::sample::select(vec![0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 12_288]),
        // Most of a small file's life is far from every edge.
        3 => 0_u64..4096,
        2 => 0_u64..70_000,
        1 => prop::sample::select(vec![RANGE_NODE - 4096, RANGE_NODE - 1, RANGE_NODE, RANGE_NODE + 1, RANGE_NODE + 4097]),
    ]
}

fn length() -> impl Strategy<Value = Position> {
    prop_oneof![
        6 => prop::sample::select(vec![0, 1, 7, 4095, 4096, 4097, 8192, 12_289]),
        3 => 0_u64..2048,
        2 => 0_u64..70_000,
    ]
}

fn open_mode() -> impl Strategy<Value = OpenMode> {
    prop_oneof![
        1 => Just(OpenMode::Read),
        1 => Just(OpenMode::Write),
        4 => Just(OpenMode::ReadWrite),
        1 => Just(OpenMode::Append),
        1 => Just(OpenMode::Truncate),
    ]
}

fn allocate_kind() -> impl Strategy<Value = AllocateKind> {
    prop::sample::select(vec![
        AllocateKind::Extend,
        AllocateKind::KeepSize,
        AllocateKind::PunchHole,
        AllocateKind::ZeroRange,
        AllocateKind::ZeroRangeKeepSize,
    ])
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange),
    ]
}

fn xattr_mode() -> impl Strategy<Value = XattrMode> {
    prop_oneof![
        2 => Just(XattrMode::CreateOrReplace),
        1 => Just(XattrMode::Create),
        1 => Just(XattrMode::Replace),
    ]
}

fn permissions() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0o644, 0o755, 0o600, 0o000, 0o777, 0o1777, 0o700])
}

fn namespace_operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    prop_oneof![
        1 => (index(), index()).prop_map(|(directory, name)| Operation::Lookup { directory, name }),
        1 => (index(), index()).prop_map(|(file, name)| Operation::LookupInFile { file, name }),
        4 => (index(), index(), open_mode(), any::<bool>(), permissions()).prop_map(
            |(directory, name, mode, exclusive, permissions)| Operation::Create {
                directory, name, mode, exclusive, permissions
            }
        ),
        1 => index().prop_map(|directory| Operation::CreateUnnamed { directory }),
        1 => (index(), index()).prop_map(|(directory, name)| Operation::LinkUnnamed { directory, name }),
        3 => (index(), index(), permissions()).prop_map(|(directory, name, permissions)| {
            Operation::MakeDirectory { directory, name, permissions }
        }),
        1 => (index(), index()).prop_map(|(directory, name)| Operation::MakeFifo { directory, name }),
        1 => (index(), index(), 1_u8..200).prop_map(|(directory, name, length)| Operation::MakeSymlink {
            directory, name, length
        }),
        1 => (index(), 250_u16..400).prop_map(|(directory, length)| Operation::MakeWithLongName { directory, length }),
        2 => (index(), index(), index()).prop_map(|(file, directory, name)| Operation::Link { file, directory, name }),
        2 => (index(), index()).prop_map(|(directory, name)| Operation::Unlink { directory, name }),
        2 => (index(), index()).prop_map(|(directory, name)| Operation::RemoveDirectory { directory, name }),
        5 => ((index(), index()), (index(), index()), rename_mode())
            .prop_map(|(from, to, mode)| Operation::Rename { from, to, mode }),
        2 => (index(), 1_u8..5).prop_map(|(directory, chunk)| Operation::ReadDirectory { directory, chunk }),
    ]
}

fn data_operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    prop_oneof![
        3 => (index(), open_mode()).prop_map(|(file, mode)| Operation::Open { file, mode }),
        2 => index().prop_map(|handle| Operation::Close { handle }),
        8 => (index(), position(), length(), 1_u8..=255)
            .prop_map(|(handle, offset, length, fill)| Operation::Write { handle, offset, length, fill }),
        4 => (index(), position(), length()).prop_map(|(handle, offset, length)| Operation::Read {
            handle, offset, length
        }),
        3 => (index(), position()).prop_map(|(file, size)| Operation::Truncate { file, size }),
        1 => (index(), position()).prop_map(|(handle, size)| Operation::TruncateHandle { handle, size }),
        4 => (index(), position(), length(), allocate_kind())
            .prop_map(|(handle, offset, length, kind)| Operation::Allocate { handle, offset, length, kind }),
        2 => (index(), position()).prop_map(|(handle, offset)| Operation::Seek { handle, offset }),
        3 => ((index(), position()), (index(), position()), length())
            .prop_map(|(source, target, length)| Operation::CopyRange { source, target, length }),
        1 => index().prop_map(|handle| Operation::Sync { handle }),
    ]
}

fn attribute_operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    prop_oneof![
        2 => (index(), permissions()).prop_map(|(node, permissions)| Operation::ChangeMode { node, permissions }),
        1 => (index(), 0_u32..3, 0_u32..3).prop_map(|(node, uid, gid)| Operation::ChangeOwner { node, uid, gid }),
        1 => (index(), -5_i64..5_000_000_000, 0_u32..1_000_000_000)
            .prop_map(|(node, seconds, nanoseconds)| Operation::ChangeTimes { node, seconds, nanoseconds }),
        3 => (index(), index(), 0_u16..300, xattr_mode())
            .prop_map(|(node, name, length, mode)| Operation::SetXattr { node, name, length, mode }),
        1 => (index(), index()).prop_map(|(node, name)| Operation::GetXattr { node, name }),
        1 => (index(), index()).prop_map(|(node, name)| Operation::RemoveXattr { node, name }),
        1 => index().prop_map(|node| Operation::ListXattrs { node }),
    ]
}

fn volume_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => Just(Operation::SyncVolume),
        1 => any::<Index>().prop_map(|directory| Operation::SyncDirectory { directory }),
        3 => Just(Operation::Step),
        2 => Just(Operation::Remount),
        2 => Just(Operation::SyncAndCrash),
        3 => Just(Operation::ProcessDeath),
    ]
}

fn move_operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    prop_oneof![
        5 => (index(), index()).prop_map(|(file, tier)| Operation::Migrate { file, tier, node: None }),
        2 => (index(), index(), position())
            .prop_map(|(file, tier, position)| Operation::Migrate { file, tier, node: Some(position) }),
        4 => Just(Operation::MoveStep),
        3 => Just(Operation::MoveAll),
        1 => index().prop_map(|tier| Operation::Drain { tier }),
        1 => index().prop_map(|tier| Operation::CancelDrain { tier }),
        1 => Just(Operation::PauseMovers),
    ]
}

/// Any operation, data operations most often.
pub fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => namespace_operation(),
        8 => data_operation(),
        2 => attribute_operation(),
        1 => volume_operation(),
        2 => move_operation(),
    ]
}
