//! Mode bits, groups, sticky and set-group-id directories, and the limits of root.

use polymux_fs::{Caller, NodeKind, OpenOptions, Permissions, RenameMode, SetAttributes, WriteOrigin};
use polymux_types::{Errno, Ino};

use super::*;
use crate::common::{errno, find, read_only, read_whole, read_write};

fn may(volume: &Volume, caller: &Caller, ino: Ino, mask: u32) -> bool {
    match volume.fs().access(caller, ino, mask) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), Errno::EACCES);
            false
        }
    }
}

#[test]
fn the_first_class_that_fits_decides_alone() {
    let volume = volume();
    let ino = file(&volume, "f", 0o421);
    for (caller, allowed) in [(owner(), 4), (member(), 2), (stranger(), 1)] {
        for mask in [4, 2, 1] {
            assert_eq!(may(&volume, &caller, ino, mask), mask == allowed, "uid {} mask {mask}", caller.uid);
        }
        assert!(may(&volume, &caller, ino, 0), "existence is no permission");
    }
    // The owner gets no help from the bits for others.
    let closed = file(&volume, "closed", 0o077);
    assert!(!may(&volume, &owner(), closed, 4));
    assert!(may(&volume, &stranger(), closed, 7));
    assert!(!may(&volume, &stranger(), ino, 5), "all wanted bits are needed");
}

#[test]
fn root_may_everything_but_execute_what_nobody_may() {
    let volume = volume();
    let ino = file(&volume, "f", 0);
    assert!(may(&volume, &root(), ino, 6));
    assert!(!may(&volume, &root(), ino, 1));
    give(&volume, ino, 0o001);
    assert!(may(&volume, &root(), ino, 7));
    let closed = directory(&volume, "d", 0);
    assert!(may(&volume, &root(), closed, 7), "a directory may always be searched by root");
}

#[test]
fn opening_needs_the_permission_that_it_asks_for() {
    let volume = volume();
    let (readable, writable) = (file(&volume, "r", 0o444), file(&volume, "w", 0o222));
    let open = |ino, options| volume.fs().open(&stranger(), ino, options);
    let write = OpenOptions { write: true, ..OpenOptions::default() };
    open(readable, read_only()).expect("it may be read");
    open(writable, write).expect("it may be written");
    assert_eq!(errno(open(readable, write)), Errno::EACCES);
    assert_eq!(errno(open(writable, read_only())), Errno::EACCES);
    assert_eq!(errno(open(readable, read_write())), Errno::EACCES);
    let truncate = OpenOptions { truncate: true, ..write };
    assert_eq!(errno(open(readable, truncate)), Errno::EACCES);
    let execute = OpenOptions { read: true, execute: true, ..OpenOptions::default() };
    assert_eq!(errno(open(readable, execute)), Errno::EACCES);
    let program = file(&volume, "x", 0o111);
    open(program, execute).expect("executing needs no read permission");
}

#[test]
fn an_open_file_goes_on_working_when_permission_is_withdrawn() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    let handle = volume.fs().open(&stranger(), ino, read_write()).expect("opened");
    give(&volume, ino, 0);
    volume.fs().write(&stranger(), handle, 0, b"still", WriteOrigin::Call).expect("the description may write");
    let change = SetAttributes { size: Some(2), handle: Some(handle), ..SetAttributes::default() };
    volume.fs().set_attributes(&stranger(), ino, &change).expect("ftruncate through it too");
    let by_name = SetAttributes { size: Some(1), ..SetAttributes::default() };
    assert_eq!(errno(volume.fs().set_attributes(&stranger(), ino, &by_name)), Errno::EACCES);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"st");
}

#[test]
fn names_in_a_directory_need_search_and_changes_need_write_too() {
    let volume = volume();
    let place = directory(&volume, "d", 0o750);
    let fs = volume.fs();
    fs.make_node(&owner(), place, b"f", NodeKind::Regular, 0o666).expect("the owner may");
    fs.lookup(&member(), place, b"f").expect("members may search");
    assert_eq!(errno(fs.lookup(&stranger(), place, b"f")), Errno::EACCES);
    fs.check_listing(&member(), place).expect("members may list");
    assert_eq!(errno(fs.check_listing(&stranger(), place)), Errno::EACCES);
    let denied = [
        errno(fs.make_node(&member(), place, b"g", NodeKind::Regular, 0o666)),
        errno(fs.make_directory(&member(), place, b"g", 0o777)),
        errno(fs.make_symlink(&member(), place, b"g", b"x")),
        errno(fs.create(&member(), place, b"g", 0o666, read_write())),
        errno(fs.create_unnamed(&member(), place, 0o666, read_write())),
        errno(fs.unlink(&member(), place, b"f")),
        errno(fs.rename(&member(), place, b"f", place, b"g", RenameMode::Replace)),
        errno(fs.rename(&member(), place, b"f", Ino::ROOT, b"g", RenameMode::Replace)),
    ];
    assert_eq!(denied, [Errno::EACCES; 8]);
    let other = file(&volume, "other", 0o666);
    assert_eq!(errno(volume.fs().link(&member(), other, place, b"h")), Errno::EACCES);
    // Write without search is of no use.
    give(&volume, place, 0o760);
    assert_eq!(errno(volume.fs().unlink(&member(), place, b"f")), Errno::EACCES);
}

#[test]
fn moving_a_directory_elsewhere_needs_write_permission_on_it() {
    let volume = volume();
    let (place, moved) = (directory(&volume, "to", 0o777), directory(&volume, "moved", 0o755));
    let rename = |caller: &Caller, parent, name: &[u8]| {
        volume.fs().rename(caller, Ino::ROOT, b"moved", parent, name, RenameMode::Replace)
    };
    // Its `..` would change, which only those who may write to it may do.
    assert_eq!(errno(rename(&stranger(), place, b"moved")), Errno::EACCES);
    rename(&owner(), place, b"moved").expect("the owner may");
    assert_eq!(volume.fs().parent_of(&root(), moved).expect("it has a parent").ino, place);
}

#[test]
fn a_sticky_directory_keeps_names_for_their_owners() {
    let volume = volume();
    let place = directory(&volume, "tmp", 0o1777);
    let fs = volume.fs();
    fs.make_node(&member(), place, b"theirs", NodeKind::Regular, 0o666).expect("anybody may create");
    fs.make_directory(&member(), place, b"their-directory", 0o777).expect("anybody may create");
    fs.make_node(&stranger(), place, b"mine", NodeKind::Regular, 0o666).expect("anybody may create");
    assert_eq!(errno(fs.unlink(&stranger(), place, b"theirs")), Errno::EPERM);
    assert_eq!(errno(fs.remove_directory(&stranger(), place, b"their-directory")), Errno::EPERM);
    let rename = |from: &[u8], to: &[u8], mode| fs.rename(&stranger(), place, from, place, to, mode);
    assert_eq!(errno(rename(b"theirs", b"new", RenameMode::Replace)), Errno::EPERM);
    assert_eq!(errno(rename(b"mine", b"theirs", RenameMode::Replace)), Errno::EPERM);
    assert_eq!(errno(rename(b"mine", b"theirs", RenameMode::Exchange)), Errno::EPERM);
    rename(b"mine", b"renamed", RenameMode::Replace).expect("one's own may be renamed");
    fs.unlink(&owner(), place, b"renamed").expect("the owner of the directory may remove any");
    fs.unlink(&root(), place, b"theirs").expect("root may");
    fs.remove_directory(&member(), place, b"their-directory").expect("its owner may");
}

#[test]
fn a_set_group_id_directory_hands_its_group_on() {
    let volume = volume();
    let place = directory(&volume, "d", 0o2777);
    let fs = volume.fs();
    let file = fs.make_node(&stranger(), place, b"f", NodeKind::Regular, 0o644).expect("made");
    assert_eq!((file.uid, file.gid, file.permissions), (STRANGER, GROUP, 0o644));
    let child = fs.make_directory(&stranger(), place, b"d", 0o755).expect("made");
    assert_eq!((child.gid, child.permissions), (GROUP, 0o2755));
    let link = fs.make_symlink(&stranger(), place, b"l", b"t").expect("made");
    assert_eq!(link.gid, GROUP);
    // Elsewhere the creator's own group counts.
    let (elsewhere, handle) = fs.create(&stranger(), Ino::ROOT, b"f", 0o644, read_write()).expect("made");
    assert_eq!(elsewhere.gid, OTHER_GROUP);
    fs.release(handle).expect("released");
    // A program that would run with a group its maker is no member of is not made.
    let program = fs.make_node(&stranger(), place, b"x", NodeKind::Regular, 0o2755).expect("made");
    assert_eq!(program.permissions, 0o755);
    let program = fs.make_node(&member(), place, b"y", NodeKind::Regular, 0o2755).expect("made");
    assert_eq!(program.permissions, 0o2755);
}

#[test]
fn the_umask_clears_bits_of_what_is_made() {
    let volume = volume();
    let careful = Caller { umask: 0o027, ..owner() };
    let fs = volume.fs();
    let (made, handle) = fs.create(&careful, Ino::ROOT, b"f", 0o666, read_write()).expect("made");
    assert_eq!(made.permissions, 0o640);
    fs.release(handle).expect("released");
    assert_eq!(fs.make_directory(&careful, Ino::ROOT, b"d", 0o777).expect("made").permissions, 0o750);
    assert_eq!(fs.make_node(&careful, Ino::ROOT, b"n", NodeKind::Fifo, 0o666).expect("made").permissions, 0o640);
    assert_eq!(fs.make_symlink(&careful, Ino::ROOT, b"l", b"t").expect("made").permissions, 0o777);
}

#[test]
fn creating_a_file_that_nobody_may_write_still_gives_a_writable_description() {
    let volume = volume();
    let (made, handle) = volume.fs().create(&owner(), Ino::ROOT, b"f", 0o000, read_write()).expect("made");
    volume.fs().write(&owner(), handle, 0, b"x", WriteOrigin::Call).expect("written");
    assert_eq!(made.permissions, 0);
    assert_eq!(errno(volume.fs().open(&owner(), made.ino, read_only())), Errno::EACCES);
}

#[test]
fn only_root_makes_device_nodes() {
    let volume = volume();
    let fs = volume.fs();
    assert_eq!(errno(fs.make_node(&owner(), Ino::ROOT, b"c", NodeKind::CharacterDevice(0x501), 0o666)), Errno::EPERM);
    let made = fs.make_node(&root(), Ino::ROOT, b"c", NodeKind::CharacterDevice(0x501), 0o666).expect("root may");
    assert_eq!(made.device, 0x501);
    fs.make_node(&owner(), Ino::ROOT, b"fifo", NodeKind::Fifo, 0o666).expect("fifos are for everybody");
}

#[test]
fn a_front_end_whose_kernel_checks_is_not_checked_again_and_still_inherits() {
    let volume = volume();
    let closed = directory(&volume, "closed", 0o2000);
    let trusted = Caller { permissions: Permissions::CheckedByKernel, ..stranger() };
    let fs = volume.fs();
    let made = fs.make_node(&trusted, closed, b"f", NodeKind::Regular, 0o600).expect("not checked here");
    assert_eq!((made.uid, made.gid), (STRANGER, GROUP), "the group is inherited all the same");
    fs.lookup(&trusted, closed, b"f").expect("not checked here");
    fs.unlink(&trusted, closed, b"f").expect("not checked here");
    assert_eq!(errno(fs.lookup(&stranger(), closed, b"f")), Errno::EACCES, "the same caller, checked");
    assert_eq!(find(fs, "closed").ino, closed);
}

#[test]
fn a_description_without_the_mode_refuses_the_operation() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    let fs = volume.fs();
    let write = OpenOptions { write: true, ..OpenOptions::default() };
    let (reader, writer) =
        (fs.open(&root(), ino, read_only()).expect("opened"), fs.open(&root(), ino, write).expect("opened"));
    assert_eq!(errno(fs.write(&root(), reader, 0, b"x", WriteOrigin::Call)), Errno::EBADF);
    assert_eq!(errno(fs.read(&root(), writer, 0, &mut [0])), Errno::EBADF);
    fs.release(reader).expect("released");
    assert_eq!(errno(fs.read(&root(), reader, 0, &mut [0])), Errno::EBADF, "a closed description is gone");
}

#[test]
fn an_appending_description_writes_at_the_end_whatever_the_offset() {
    let volume = volume();
    let ino = file(&volume, "f", 0o666);
    let fs = volume.fs();
    let append = OpenOptions { append: true, ..read_write() };
    let (first, second) =
        (fs.open(&owner(), ino, append).expect("opened"), fs.open(&owner(), ino, append).expect("opened"));
    for (handle, text) in [(first, b"one"), (second, b"two"), (first, b"six")] {
        assert_eq!(fs.write(&owner(), handle, 0, text, WriteOrigin::Call).expect("written"), 3);
    }
    assert_eq!(read_whole(fs, ino).expect("read"), b"onetwosix");
}
