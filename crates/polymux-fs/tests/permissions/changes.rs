//! Changing owner, mode and times, and the set-id bits that vanish when a file changes.

use polymux_fs::{Caller, OpenOptions, SetAttributes, SetIdBits, SetTime, WriteOrigin, XattrMode};
use polymux_types::{Errno, Ino, Timestamp};

use super::*;
use crate::common::{errno, read_write};

fn set(volume: &Volume, caller: &Caller, ino: Ino, change: SetAttributes) -> polymux_fs::Result<()> {
    volume.fs().set_attributes(caller, ino, &change).map(|_| ())
}

fn mode(permissions: u32) -> SetAttributes {
    SetAttributes { permissions: Some(permissions), ..SetAttributes::default() }
}

fn group(gid: u32) -> SetAttributes {
    SetAttributes { gid: Some(gid), ..SetAttributes::default() }
}

fn user(uid: u32) -> SetAttributes {
    SetAttributes { uid: Some(uid), ..SetAttributes::default() }
}

#[test]
fn only_the_owner_and_root_change_the_mode() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    assert_eq!(errno(set(&volume, &member(), ino, mode(0o600))), Errno::EPERM);
    set(&volume, &owner(), ino, mode(0o6755)).expect("the owner may");
    assert_eq!(permissions_of(&volume, ino), 0o6755);
    set(&volume, &root(), ino, mode(0o600)).expect("root may");
    assert_eq!(permissions_of(&volume, ino), 0o600);
}

#[test]
fn an_owner_outside_the_group_cannot_set_its_set_group_id_bit() {
    let volume = volume();
    let ino = file(&volume, "f", 0o755);
    change(&volume, ino, group(OTHER_GROUP));
    set(&volume, &owner(), ino, mode(0o2755)).expect("it succeeds");
    assert_eq!(permissions_of(&volume, ino), 0o755, "and leaves the bit out");
    set(&volume, &root(), ino, mode(0o2755)).expect("root may");
    assert_eq!(permissions_of(&volume, ino), 0o2755);
}

#[test]
fn only_root_gives_files_away_and_owners_choose_among_their_groups() {
    let volume = volume();
    let ino = file(&volume, "f", 0o644);
    assert_eq!(errno(set(&volume, &owner(), ino, user(STRANGER))), Errno::EPERM);
    assert_eq!(errno(set(&volume, &owner(), ino, group(OTHER_GROUP))), Errno::EPERM);
    assert_eq!(errno(set(&volume, &member(), ino, group(GROUP))), Errno::EPERM);
    set(&volume, &owner(), ino, user(OWNER)).expect("giving it to oneself is nothing");
    let in_both = Caller { groups: vec![OTHER_GROUP], ..owner() };
    set(&volume, &in_both, ino, group(OTHER_GROUP)).expect("a group of one's own");
    set(&volume, &root(), ino, user(STRANGER)).expect("root may");
    let attributes = volume.fs().attributes(&root(), ino).expect("it exists");
    assert_eq!((attributes.uid, attributes.gid), (STRANGER, OTHER_GROUP));
}

#[test]
fn a_change_of_owner_clears_set_id_bits_of_files_and_not_of_directories() {
    let volume = volume();
    let ino = file(&volume, "f", 0o6755);
    let in_both = Caller { groups: vec![OTHER_GROUP], ..owner() };
    set(&volume, &in_both, ino, group(OTHER_GROUP)).expect("changed");
    assert_eq!(permissions_of(&volume, ino), 0o755);
    let place = directory(&volume, "d", 0o2755);
    set(&volume, &in_both, place, group(OTHER_GROUP)).expect("changed");
    assert_eq!(permissions_of(&volume, place), 0o2755);
}

#[test]
fn every_change_of_data_or_owner_takes_the_capabilities_of_a_program_away() {
    const CAPABILITIES: &[u8] = b"security.capability";
    const NOTE: &[u8] = b"security.note";
    let volume = volume();
    let fs = volume.fs();
    let changes: [(&str, &dyn Fn(Ino)); 5] = [
        ("write", &|ino| {
            let handle = fs.open(&root(), ino, read_write()).expect("opened");
            fs.write(&root(), handle, 0, b"x", WriteOrigin::Call).expect("written");
            fs.release(handle).expect("released");
        }),
        ("truncate", &|ino| {
            change(&volume, ino, SetAttributes { size: Some(3), ..SetAttributes::default() });
        }),
        ("open that empties", &|ino| {
            let handle = fs.open(&root(), ino, OpenOptions { truncate: true, ..read_write() }).expect("opened");
            fs.release(handle).expect("released");
        }),
        ("fallocate", &|ino| {
            let handle = fs.open(&root(), ino, read_write()).expect("opened");
            fs.allocate(&root(), handle, 0, 4096, polymux_fs::AllocateKind::Extend).expect("reserved");
            fs.release(handle).expect("released");
        }),
        ("chown", &|ino| change(&volume, ino, user(STRANGER))),
    ];
    for (index, (what, change)) in changes.iter().enumerate() {
        let ino = file(&volume, &format!("f{index}"), 0o755);
        // Twice: a wrong result must not be cached the first time.
        for round in 0..2 {
            for name in [CAPABILITIES, NOTE] {
                fs.set_xattr(&root(), ino, name, b"value", XattrMode::CreateOrReplace).expect("root may");
            }
            change(ino);
            assert_eq!(errno(fs.xattr(&root(), ino, CAPABILITIES)), Errno::ENODATA, "{what}, round {round}");
            assert_eq!(fs.xattr(&root(), ino, NOTE).expect("it stays"), b"value", "{what}");
        }
    }
}

#[test]
fn without_execution_by_the_group_only_its_members_keep_the_set_group_id_bit() {
    let volume = volume();
    let ino = file(&volume, "f", 0o2767);
    let write = |caller: &Caller| {
        let handle = volume.fs().open(caller, ino, read_write()).expect("opened");
        volume.fs().write(caller, handle, 0, b"x", WriteOrigin::Call).expect("written");
        volume.fs().release(handle).expect("released");
    };
    write(&member());
    assert_eq!(permissions_of(&volume, ino), 0o2767);
    write(&stranger());
    assert_eq!(permissions_of(&volume, ino), 0o767);
    change(&volume, ino, mode(0o2767));
    set(&volume, &Caller { groups: vec![OTHER_GROUP], ..Caller::user(OWNER, OTHER_GROUP) }, ino, group(OTHER_GROUP))
        .expect("the owner chooses among their groups");
    assert_eq!(permissions_of(&volume, ino), 0o767, "judged by the group that the file had");
}

#[test]
fn a_write_of_anybody_but_root_clears_set_id_bits() {
    let volume = volume();
    let ino = file(&volume, "f", 0o6777);
    let write = |caller: &Caller| {
        let handle = volume.fs().open(caller, ino, read_write()).expect("opened");
        volume.fs().write(caller, handle, 0, b"x", WriteOrigin::Call).expect("written");
        volume.fs().release(handle).expect("released");
    };
    write(&root());
    assert_eq!(permissions_of(&volume, ino), 0o6777, "root has the right to keep them");
    write(&stranger());
    assert_eq!(permissions_of(&volume, ino), 0o777);
    // Without execute permission of the group the bit does not make a set-group-id program.
    give(&volume, ino, 0o6767);
    write(&owner());
    assert_eq!(permissions_of(&volume, ino), 0o2767);
}

#[test]
fn truncation_clears_set_id_bits_too() {
    let volume = volume();
    let ino = file(&volume, "f", 0o6777);
    let truncate = SetAttributes { size: Some(10), ..SetAttributes::default() };
    set(&volume, &stranger(), ino, truncate).expect("truncated");
    assert_eq!(permissions_of(&volume, ino), 0o777);
    give(&volume, ino, 0o6777);
    let options = OpenOptions { truncate: true, ..read_write() };
    let handle = volume.fs().open(&stranger(), ino, options).expect("opened");
    volume.fs().release(handle).expect("released");
    assert_eq!(permissions_of(&volume, ino), 0o777);
}

#[test]
fn writers_may_set_times_to_now_and_only_owners_to_anything_else() {
    let volume = volume();
    let ino = file(&volume, "f", 0o646);
    let now = SetAttributes { modified: Some(SetTime::Now), accessed: Some(SetTime::Now), ..SetAttributes::default() };
    let then = SetAttributes { modified: Some(SetTime::To(Timestamp::new(5, 7))), ..SetAttributes::default() };
    set(&volume, &stranger(), ino, now).expect("a writer may");
    assert_eq!(errno(set(&volume, &stranger(), ino, then)), Errno::EPERM);
    assert_eq!(errno(set(&volume, &member(), ino, now)), Errno::EACCES);
    set(&volume, &owner(), ino, then).expect("the owner may");
    let attributes = volume.fs().attributes(&root(), ino).expect("it exists");
    assert_eq!(attributes.modified, Timestamp::new(5, 7));
    assert!(attributes.changed > Timestamp::new(5, 7), "a change of times is a change now");
    let odd = SetAttributes { modified: Some(SetTime::Now), accessed: Some(SetTime::To(Timestamp::new(1, 1))), ..now };
    assert_eq!(errno(set(&volume, &stranger(), ino, odd)), Errno::EPERM);
}

#[test]
fn user_attributes_need_the_permission_of_the_data() {
    let volume = volume();
    let ino = file(&volume, "f", 0o640);
    let fs = volume.fs();
    let put = |caller: &Caller, ino, name: &[u8]| fs.set_xattr(caller, ino, name, b"v", XattrMode::CreateOrReplace);
    put(&owner(), ino, b"user.a").expect("the owner may write");
    assert_eq!(fs.xattr(&member(), ino, b"user.a").expect("members may read"), b"v");
    assert_eq!(errno(put(&member(), ino, b"user.a")), Errno::EACCES);
    assert_eq!(errno(fs.remove_xattr(&member(), ino, b"user.a")), Errno::EACCES);
    assert_eq!(errno(fs.xattr(&stranger(), ino, b"user.a")), Errno::EACCES);
    // Only files and directories carry them, and in a sticky directory only its owner's count.
    let link = fs.make_symlink(&root(), Ino::ROOT, b"l", b"t").expect("made").ino;
    assert_eq!(errno(put(&root(), link, b"user.a")), Errno::EPERM);
    let sticky = directory(&volume, "tmp", 0o1777);
    assert_eq!(errno(put(&stranger(), sticky, b"user.a")), Errno::EPERM);
    put(&owner(), sticky, b"user.a").expect("its owner may");
}

#[test]
fn trusted_attributes_are_for_root() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    let fs = volume.fs();
    let put = |caller: &Caller| fs.set_xattr(caller, ino, b"trusted.a", b"v", XattrMode::CreateOrReplace);
    assert_eq!(errno(put(&owner())), Errno::EPERM);
    put(&root()).expect("root may");
    assert_eq!(fs.xattr(&root(), ino, b"trusted.a").expect("root may"), b"v");
    assert_eq!(errno(fs.xattr(&owner(), ino, b"trusted.a")), Errno::ENODATA);
}

fn clear(group: Option<u32>) -> SetAttributes {
    SetAttributes { set_id: SetIdBits::Clear { member_of: group }, ..SetAttributes::default() }
}

#[test]
fn set_id_bits_are_cleared_by_the_rules_of_linux() {
    let volume = volume();
    let ino = file(&volume, "f", 0o644);
    change(&volume, ino, group(GROUP));
    for (old, of_member, of_others) in [
        (0o4755, 0o755, 0o755),
        (0o6755, 0o755, 0o755),
        (0o2755, 0o755, 0o755),
        (0o2745, 0o2745, 0o745),
        (0o2767, 0o2767, 0o767),
        (0o6745, 0o2745, 0o745),
        (0o1777, 0o1777, 0o1777),
    ] {
        for (member_of, left) in [(Some(GROUP), of_member), (None, of_others), (Some(OTHER_GROUP), of_others)] {
            change(&volume, ino, mode(old));
            let before = volume.fs().attributes(&root(), ino).expect("it exists");
            assert_eq!(before.loses_set_id(SetIdBits::Clear { member_of }), left != old, "{old:o}");
            change(&volume, ino, clear(member_of));
            assert_eq!(permissions_of(&volume, ino), left, "{old:o}");
        }
    }
    let directory = directory(&volume, "d", 0o2777);
    change(&volume, directory, clear(None));
    assert_eq!(permissions_of(&volume, directory), 0o2777);
}

#[test]
fn a_mode_given_while_set_id_bits_are_cleared_is_kept() {
    let volume = volume();
    let ino = file(&volume, "f", 0o4755);
    // The writer was judged by the old mode, and the mode changes before the bits go.
    let judged = clear(Some(GROUP));
    change(&volume, ino, mode(0o4700));
    change(&volume, ino, judged);
    assert_eq!(permissions_of(&volume, ino), 0o700);
}
