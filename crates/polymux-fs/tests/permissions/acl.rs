//! POSIX ACLs in the kernel's form (`system.posix_acl_access`, `system.posix_acl_default`, version 2).

use polymux_fs::{Caller, NodeKind, Permissions, SetAttributes, XattrMode};
use polymux_types::{Errno, Ino};

use super::*;
use crate::common::{errno, read_write};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// An entry: its subject and its permissions.
#[derive(Clone, Copy)]
enum Entry {
    Owner(u16),
    User(u32, u16),
    OwningGroup(u16),
    Group(u32, u16),
    Mask(u16),
    Others(u16),
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, permissions, id) = match *entry {
            Entry::Owner(permissions) => (0x01_u16, permissions, u32::MAX),
            Entry::User(id, permissions) => (0x02, permissions, id),
            Entry::OwningGroup(permissions) => (0x04, permissions, u32::MAX),
            Entry::Group(id, permissions) => (0x08, permissions, id),
            Entry::Mask(permissions) => (0x10, permissions, u32::MAX),
            Entry::Others(permissions) => (0x20, permissions, u32::MAX),
        };
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn set_acl(volume: &Volume, caller: &Caller, ino: Ino, name: &[u8], entries: &[Entry]) -> polymux_fs::Result<()> {
    volume.fs().set_xattr(caller, ino, name, &encode(entries), XattrMode::CreateOrReplace)
}

fn permitted(volume: &Volume, caller: &Caller, ino: Ino) -> u32 {
    [4, 2, 1].into_iter().filter(|mask| volume.fs().access(caller, ino, *mask).is_ok()).sum()
}

fn named(user: u16, group: u16, mask: u16) -> Vec<Entry> {
    vec![
        Entry::Owner(7),
        Entry::User(STRANGER, user),
        Entry::OwningGroup(group),
        Entry::Group(OTHER_GROUP, 1),
        Entry::Mask(mask),
        Entry::Others(0),
    ]
}

#[test]
fn a_named_user_gets_what_the_entry_and_the_mask_allow() {
    let volume = volume();
    let ino = file(&volume, "f", 0o600);
    set_acl(&volume, &owner(), ino, ACCESS, &named(6, 4, 7)).expect("the owner may");
    assert_eq!(permitted(&volume, &stranger(), ino), 6);
    set_acl(&volume, &owner(), ino, ACCESS, &named(6, 4, 4)).expect("the owner may");
    assert_eq!(permitted(&volume, &stranger(), ino), 4, "the mask limits");
    assert_eq!(permitted(&volume, &owner(), ino), 7, "the mask does not limit the owner");
    set_acl(&volume, &owner(), ino, ACCESS, &named(0, 4, 7)).expect("the owner may");
    assert_eq!(permitted(&volume, &stranger(), ino), 0, "a named user gets nothing from a group");
}

#[test]
fn a_member_of_several_groups_needs_one_entry_that_allows_all() {
    let volume = volume();
    let ino = file(&volume, "f", 0o600);
    set_acl(&volume, &owner(), ino, ACCESS, &named(0, 4, 7)).expect("the owner may");
    // The member is in the owning group (4) and in the named one (1), but neither entry has 5.
    assert_eq!(permitted(&volume, &member(), ino), 5);
    assert_eq!(errno(volume.fs().access(&member(), ino, 5)), Errno::EACCES);
    let outsider = Caller::user(5000, 5000);
    assert_eq!(permitted(&volume, &outsider, ino), 0);
}

#[test]
fn the_group_bits_of_the_mode_are_the_mask() {
    let volume = volume();
    let ino = file(&volume, "f", 0o600);
    set_acl(&volume, &owner(), ino, ACCESS, &named(7, 7, 5)).expect("the owner may");
    assert_eq!(permissions_of(&volume, ino), 0o750);
    let change = SetAttributes { permissions: Some(0o724), ..SetAttributes::default() };
    volume.fs().set_attributes(&owner(), ino, &change).expect("the owner may");
    assert_eq!(permitted(&volume, &stranger(), ino), 2, "chmod changed the mask");
    let expected = [
        Entry::Owner(7),
        Entry::User(STRANGER, 7),
        Entry::OwningGroup(7),
        Entry::Group(OTHER_GROUP, 1),
        Entry::Mask(2),
        Entry::Others(4),
    ];
    assert_eq!(volume.fs().xattr(&owner(), ino, ACCESS).expect("it is there"), encode(&expected));
}

#[test]
fn an_acl_that_says_no_more_than_a_mode_becomes_the_mode() {
    let volume = volume();
    let ino = file(&volume, "f", 0o600);
    let minimal = [Entry::Owner(6), Entry::OwningGroup(4), Entry::Others(0)];
    set_acl(&volume, &owner(), ino, ACCESS, &minimal).expect("the owner may");
    assert_eq!(permissions_of(&volume, ino), 0o640);
    assert_eq!(errno(volume.fs().xattr(&owner(), ino, ACCESS)), Errno::ENODATA);
}

#[test]
fn removing_an_acl_leaves_the_mode() {
    let volume = volume();
    let ino = file(&volume, "f", 0o600);
    set_acl(&volume, &owner(), ino, ACCESS, &named(6, 4, 6)).expect("the owner may");
    volume.fs().remove_xattr(&owner(), ino, ACCESS).expect("the owner may");
    assert_eq!(errno(volume.fs().xattr(&owner(), ino, ACCESS)), Errno::ENODATA);
    assert!(volume.fs().list_xattrs(&owner(), ino).expect("listed").is_empty());
    assert_eq!(permitted(&volume, &stranger(), ino), 0);
}

#[test]
fn files_inherit_the_default_acl_of_their_directory_instead_of_the_umask() {
    let volume = volume();
    let place = directory(&volume, "d", 0o777);
    set_acl(&volume, &owner(), place, DEFAULT, &named(6, 7, 7)).expect("the owner may");
    let careful = Caller { umask: 0o077, ..owner() };
    let fs = volume.fs();
    let (made, handle) = fs.create(&careful, place, b"f", 0o664, read_write()).expect("made");
    fs.release(handle).expect("released");
    // Owner, mask and others get the permissions that both the ACL and the mode of the call allow.
    assert_eq!(made.permissions, 0o660);
    assert_eq!(permitted(&volume, &stranger(), made.ino), 6);
    let expected = [
        Entry::Owner(6),
        Entry::User(STRANGER, 6),
        Entry::OwningGroup(7),
        Entry::Group(OTHER_GROUP, 1),
        Entry::Mask(6),
        Entry::Others(0),
    ];
    assert_eq!(fs.xattr(&owner(), made.ino, ACCESS).expect("inherited"), encode(&expected));
    assert_eq!(errno(fs.xattr(&owner(), made.ino, DEFAULT)), Errno::ENODATA, "files hand nothing on");
}

#[test]
fn directories_inherit_the_default_acl_in_both_roles() {
    let volume = volume();
    let place = directory(&volume, "d", 0o777);
    set_acl(&volume, &owner(), place, DEFAULT, &named(5, 5, 5)).expect("the owner may");
    let made = volume.fs().make_directory(&owner(), place, b"e", 0o777).expect("made");
    assert_eq!(made.permissions, 0o750);
    assert_eq!(volume.fs().xattr(&owner(), made.ino, DEFAULT).expect("handed on"), encode(&named(5, 5, 5)));
    assert_eq!(permitted(&volume, &stranger(), made.ino), 5);
    let below = volume.fs().make_node(&owner(), made.ino, b"f", NodeKind::Regular, 0o666).expect("made");
    assert_eq!(permitted(&volume, &stranger(), below.ino), 4);
}

#[test]
fn a_minimal_default_acl_replaces_the_umask_and_leaves_no_attribute_on_files() {
    let volume = volume();
    let place = directory(&volume, "d", 0o777);
    let minimal = [Entry::Owner(7), Entry::OwningGroup(7), Entry::Others(5)];
    set_acl(&volume, &owner(), place, DEFAULT, &minimal).expect("the owner may");
    let careful = Caller { umask: 0o077, ..owner() };
    let made = volume.fs().make_node(&careful, place, b"f", NodeKind::Regular, 0o666).expect("made");
    assert_eq!(made.permissions, 0o664);
    assert_eq!(errno(volume.fs().xattr(&owner(), made.ino, ACCESS)), Errno::ENODATA);
}

#[test]
fn default_acls_are_inherited_under_a_kernel_that_checks_too() {
    let volume = volume();
    let place = directory(&volume, "d", 0o777);
    set_acl(&volume, &owner(), place, DEFAULT, &named(6, 7, 7)).expect("the owner may");
    let trusted = Caller { permissions: Permissions::CheckedByKernel, umask: 0o077, ..owner() };
    let made = volume.fs().make_node(&trusted, place, b"f", NodeKind::Regular, 0o664).expect("made");
    assert_eq!(made.permissions, 0o660);
    assert_eq!(permitted(&volume, &stranger(), made.ino), 6);
}

#[test]
fn acls_survive_a_remount() {
    let mut volume = volume();
    let ino = file(&volume, "f", 0o600);
    set_acl(&volume, &owner(), ino, ACCESS, &named(6, 4, 7)).expect("the owner may");
    volume.remount();
    assert_eq!(permitted(&volume, &stranger(), ino), 6);
}

#[test]
fn an_acl_that_makes_no_sense_or_comes_from_a_stranger_is_refused() {
    let volume = volume();
    let (ino, place) = (file(&volume, "f", 0o666), directory(&volume, "d", 0o777));
    let refused = |ino, entries: &[Entry]| errno(set_acl(&volume, &owner(), ino, ACCESS, entries));
    assert_eq!(refused(ino, &[Entry::Owner(6), Entry::OwningGroup(4)]), Errno::EINVAL, "nobody said what others may");
    let without_mask = [Entry::Owner(6), Entry::User(STRANGER, 4), Entry::OwningGroup(4), Entry::Others(0)];
    assert_eq!(refused(ino, &without_mask), Errno::EINVAL);
    assert_eq!(refused(ino, &[Entry::Owner(8), Entry::OwningGroup(4), Entry::Others(0)]), Errno::EINVAL);
    let fs = volume.fs();
    let put =
        |caller: &Caller, name: &[u8], value: &[u8]| fs.set_xattr(caller, ino, name, value, XattrMode::CreateOrReplace);
    assert_eq!(errno(put(&owner(), ACCESS, b"\x02\0\0")), Errno::EINVAL);
    assert_eq!(errno(put(&owner(), ACCESS, &3_u32.to_le_bytes())), Errno::EOPNOTSUPP, "a version from the future");
    assert_eq!(errno(put(&stranger(), ACCESS, &encode(&named(7, 7, 7)))), Errno::EPERM);
    assert_eq!(errno(put(&owner(), DEFAULT, &encode(&named(7, 7, 7)))), Errno::EACCES, "files hand nothing on");
    assert_eq!(errno(set_acl(&volume, &stranger(), place, DEFAULT, &named(7, 7, 7))), Errno::EPERM);
    assert_eq!(permissions_of(&volume, ino), 0o666, "nothing changed");
}
