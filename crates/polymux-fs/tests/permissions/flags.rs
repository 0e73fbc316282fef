//! Flags of files where permission is checked here: whose they are, and that a mover does not mind them.

use polymux_fs::{AttributeFlags, NodeKind, OpenOptions, SetAttributes, SetTime, WriteOrigin};
use polymux_types::{Errno, Ino};

use super::*;
use crate::common::{errno, read_only, read_write};

const LOG: OpenOptions = OpenOptions {
    read: false,
    write: true,
    append: true,
    positions_appends: false,
    truncate: false,
    exclusive: false,
    synchronous: false,
    execute: false,
};

#[test]
fn the_owner_sets_flags_and_only_root_those_that_protect() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    let set = |caller: &Caller, flags| volume.fs().set_attribute_flags(caller, ino, flags);
    set(&owner(), AttributeFlags::NO_DUMP).expect("it is theirs");
    assert_eq!(errno(set(&stranger(), AttributeFlags::NO_ATIME)), Errno::EPERM);
    assert_eq!(errno(set(&owner(), AttributeFlags::IMMUTABLE)), Errno::EPERM);
    set(&root(), AttributeFlags::IMMUTABLE.with(AttributeFlags::NO_DUMP)).expect("root may");
    assert_eq!(errno(set(&owner(), AttributeFlags::NO_DUMP)), Errno::EPERM, "nor may they clear it");
    assert_eq!(errno(set(&root(), AttributeFlags::IMMUTABLE)), Errno::EPERM, "its flags are part of it");
    assert_eq!(errno(volume.fs().open(&root(), ino, read_write())), Errno::EPERM);
    volume.fs().open(&owner(), ino, read_only()).expect("it is read");
    let fifo = volume.fs().make_node(&root(), Ino::ROOT, b"fifo", NodeKind::Fifo, 0o666).expect("made");
    assert_eq!(errno(volume.fs().attribute_flags(fifo.ino)), Errno::ENOTTY);
    assert_eq!(AttributeFlags::from_bits(0x8_0000), None);
}

#[test]
fn an_append_only_file_takes_appends_and_both_times_of_now_alone() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    let old = volume.fs().open(&root(), ino, read_write()).expect("opened before");
    volume.fs().set_attribute_flags(&root(), ino, AttributeFlags::APPEND_ONLY).expect("set");
    assert_eq!(errno(volume.fs().open(&owner(), ino, read_write())), Errno::EPERM);
    let log = volume.fs().open(&owner(), ino, LOG).expect("opened to append");
    volume.fs().write(&owner(), log, 0, b"one", WriteOrigin::Call).expect("appended");
    volume.fs().write(&root(), old, 0, b"O", WriteOrigin::Call).expect("an older description goes on");
    let change = |change| volume.fs().set_attributes(&root(), ino, &change);
    let nothing = SetAttributes::default;
    change(SetAttributes { accessed: Some(SetTime::Now), modified: Some(SetTime::Now), ..nothing() }).expect("a touch");
    for refused in [
        SetAttributes { size: Some(9), ..nothing() },
        SetAttributes { permissions: Some(0), ..nothing() },
        SetAttributes { gid: Some(1), ..nothing() },
        SetAttributes { modified: Some(SetTime::Now), ..nothing() },
    ] {
        assert_eq!(errno(change(refused)), Errno::EPERM, "{refused:?}");
    }
    assert_eq!(errno(volume.fs().unlink(&root(), Ino::ROOT, b"f")), Errno::EPERM);
}
