//! Permission checks below any front end.
//!
//! Setup: each test names its callers by uid: `OWNER` owns, `MEMBER` is in the owning group, `STRANGER` is
//! neither. The rules are those of Linux.

#[path = "permissions/acl.rs"]
mod acl;
#[path = "permissions/changes.rs"]
mod changes;
mod common;
#[path = "permissions/flags.rs"]
mod flags;
#[path = "permissions/modes.rs"]
mod modes;

use common::Volume;
use polymux_fs::{Caller, SetAttributes};
use polymux_types::Ino;

const OWNER: u32 = 1000;
const MEMBER: u32 = 1001;
const STRANGER: u32 = 1002;
const GROUP: u32 = 2000;
const OTHER_GROUP: u32 = 2001;

fn owner() -> Caller {
    Caller::user(OWNER, GROUP)
}

fn member() -> Caller {
    Caller { groups: vec![GROUP], ..Caller::user(MEMBER, OTHER_GROUP) }
}

fn stranger() -> Caller {
    Caller::user(STRANGER, OTHER_GROUP)
}

fn root() -> Caller {
    Caller::root()
}

/// A volume whose root directory is writable by all users.
fn volume() -> Volume {
    let volume = Volume::new(&[1 << 20, 16 << 20]);
    change(&volume, Ino::ROOT, SetAttributes { permissions: Some(0o777), ..SetAttributes::default() });
    volume
}

/// Changes attributes as root.
fn change(volume: &Volume, ino: Ino, change: SetAttributes) {
    volume.fs().set_attributes(&root(), ino, &change).expect("root may");
}

fn give(volume: &Volume, ino: Ino, permissions: u32) {
    change(volume, ino, SetAttributes { uid: Some(OWNER), gid: Some(GROUP), ..SetAttributes::default() });
    change(volume, ino, SetAttributes { permissions: Some(permissions), ..SetAttributes::default() });
}

/// A file of `OWNER` and `GROUP`.
fn file(volume: &Volume, name: &str, permissions: u32) -> Ino {
    let (ino, handle) = common::create(volume.fs(), name);
    volume.fs().release(handle).expect("released");
    give(volume, ino, permissions);
    ino
}

/// A directory of `OWNER` and `GROUP`.
fn directory(volume: &Volume, name: &str, permissions: u32) -> Ino {
    let ino = common::make_directory(volume.fs(), name);
    give(volume, ino, permissions);
    ino
}

fn permissions_of(volume: &Volume, ino: Ino) -> u32 {
    volume.fs().attributes(&root(), ino).expect("it exists").permissions
}
