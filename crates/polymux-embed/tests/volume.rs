//! A volume inside a program: opening, closing, and calls on files and directories.

#[allow(dead_code, reason = "shared with other tests")]
mod common;

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom, Write};
use std::thread;

use common::{NAME, TestVolume};
use polymux_embed::{
    AllocateKind, Caller, CloseError, Errno, FileKind, FileOptions, LastLink, RenameMode, SeekTarget, SetAttributes,
    Volume, XattrMode,
};

fn errno<T>(result: polymux_embed::Result<T>) -> Errno {
    result.err().expect("it fails").errno()
}

fn write_file(volume: &Volume, path: &str, content: &[u8]) {
    let file = volume.open_file(path, &FileOptions::new().write().create(0o644).truncate()).unwrap();
    assert_eq!(file.write(content).unwrap(), content.len());
    file.close().unwrap();
}

fn read_file(volume: &Volume, path: &str) -> Vec<u8> {
    let mut content = Vec::new();
    volume.open_file(path, &FileOptions::new().read()).unwrap().read_to_end(&mut content).unwrap();
    content
}

#[test]
fn everything_written_is_there_after_the_next_open() {
    let made = TestVolume::make(2);
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let volume = made.open();
    volume.make_directory("/a", 0o750).unwrap();
    write_file(&volume, "a/small", b"inline");
    write_file(&volume, "/a/large", &content);
    volume.make_symlink("large", "/a/link").unwrap();
    volume.link("/a/small", "/a/second").unwrap();
    volume.close().unwrap();
    let volume = made.open();
    assert_eq!(read_file(&volume, "/a/second"), b"inline");
    assert!(read_file(&volume, "/a/link") == content);
    assert_eq!(volume.attributes("/a/small", LastLink::Follow).unwrap().links, 2);
    assert_eq!(volume.attributes("/a", LastLink::Follow).unwrap().permissions, 0o750 & !umask());
    volume.close().unwrap();
}

fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap().trim().to_owned();
    u32::from_str_radix(&line, 8).unwrap()
}

#[test]
fn a_volume_that_is_open_is_refused_to_others_in_one_line_that_names_the_process() {
    let made = TestVolume::make(1);
    let volume = made.open();
    let error = made.options().open(NAME).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    let expected = format!("volume `{NAME}` is in use already in a program by process {}", std::process::id());
    assert_eq!(error.to_string(), expected);
    // By a user with other directories: the tiers refuse.
    let [configurations, _] = made.directories();
    let elsewhere = made.directory().join("other-run");
    let error = made.options().directories(configurations, elsewhere).open(NAME).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY, "{error}");
    assert!(!error.to_string().contains('\n') && error.to_string().contains("tier-0"), "{error}");
    volume.close().unwrap();
    made.open().close().unwrap();
}

#[test]
fn errors_of_opening_have_numbers() {
    let made = TestVolume::make(2);
    assert_eq!(made.options().open("other").unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(made.options().open("not/../plain name").unwrap_err().errno(), Errno::ENOENT);
    std::fs::rename(made.directory().join("tier-1"), made.directory().join("away")).unwrap();
    assert_eq!(made.options().open(NAME).unwrap_err().errno(), Errno::ENODEV);
    let volume = made.options().degraded().open(NAME).unwrap();
    assert!(volume.warnings().iter().any(|warning| warning.contains("tier-1")), "{:?}", volume.warnings());
    volume.close().unwrap();
    std::fs::write(made.directories()[0].join("broken.toml"), "name = 7").unwrap();
    let error = made.options().open("broken").unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("broken.toml:1"), "{error}");
}

#[test]
fn a_volume_that_was_closed_is_opened_again_at_once() {
    let made = TestVolume::make(1);
    made.open().close().unwrap();
    let began = std::time::Instant::now();
    // This process lives on, and is no longer the user of the volume.
    made.open().close().unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn a_truncate_that_is_refused_leaves_the_capabilities_of_the_file() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root gives capabilities to files");
    }
    let made = TestVolume::make(1);
    let volume = made.open();
    write_file(&volume, "/program", b"content");
    let name = b"security.capability";
    let value = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    volume.set_xattr("/program", LastLink::Follow, (name, &value), XattrMode::Create).unwrap();
    volume.close().unwrap();
    let volume = made.options().identity(Caller::user(1234, 1234)).open(NAME).unwrap();
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(errno(volume.set_attributes("/program", LastLink::Follow, &cut)), Errno::EACCES);
    assert_eq!(volume.xattr("/program", LastLink::Follow, name).unwrap(), value);
    volume.close().unwrap();
}

#[test]
fn an_open_file_keeps_its_volume_open() {
    let made = TestVolume::make(1);
    let volume = made.open();
    write_file(&volume, "/f", b"1");
    let file = volume.open_file("/f", &FileOptions::new().read().write()).unwrap();
    let CloseError::InUse(volume) = volume.close().unwrap_err() else { panic!("a file is open") };
    assert_eq!(file.write(b"22").unwrap(), 2);
    drop(volume);
    assert_eq!(file.write(b"3").unwrap(), 1);
    assert_eq!(made.options().open(NAME).unwrap_err().errno(), Errno::EBUSY);
    // The last user ends it.
    drop(file);
    let volume = made.open();
    assert_eq!(read_file(&volume, "/f"), b"223");
}

#[test]
fn a_read_only_volume_changes_nothing() {
    let made = TestVolume::make(1);
    let volume = made.open();
    write_file(&volume, "/f", b"content");
    volume.close().unwrap();
    let volume = made.options().read_only().open(NAME).unwrap();
    assert_eq!(read_file(&volume, "/f"), b"content");
    assert_eq!(errno(volume.open_file("/f", &FileOptions::new().write())), Errno::EROFS);
    assert_eq!(errno(volume.unlink("/f")), Errno::EROFS);
    assert_eq!(errno(volume.make_directory("/d", 0o755)), Errno::EROFS);
    volume.close().unwrap();
}

#[test]
fn positions_move_as_those_of_descriptors() {
    let made = TestVolume::make(1);
    let volume = made.open();
    let mut file = volume.open_file("/f", &FileOptions::new().read().write().create_new(0o600)).unwrap();
    file.write_all(b"0123456789").unwrap();
    assert_eq!(file.stream_position().unwrap(), 10);
    file.seek(SeekFrom::Start(4)).unwrap();
    let mut two = [0; 2];
    file.read_exact(&mut two).unwrap();
    assert_eq!((&two, file.seek(SeekFrom::Current(-1)).unwrap()), (b"45", 5));
    assert_eq!(file.read_at(&mut two, 8).unwrap(), 2);
    assert_eq!((&two, file.stream_position().unwrap()), (b"89", 5));
    assert_eq!(errno(polymux_embed::File::seek(&file, SeekFrom::Current(-6))), Errno::EINVAL);
    assert_eq!(file.seek(SeekFrom::End(2)).unwrap(), 12);
    file.write_all(b"x").unwrap();
    assert_eq!(read_file(&volume, "/f"), b"0123456789\0\0x");
    file.set_size(1 << 20).unwrap();
    file.allocate(AllocateKind::PunchHole, 0, 1 << 20).unwrap();
    assert_eq!(errno(file.seek_to(SeekTarget::Data, 0)), Errno::ENXIO);
    assert_eq!(file.seek_to(SeekTarget::Hole, 5).unwrap(), 5);
    assert_eq!(errno(file.allocate(AllocateKind::Extend, 0, 0)), Errno::EINVAL);
    assert_eq!(errno(file.write_at(b"x", u64::MAX)), Errno::EINVAL);
    assert_eq!(errno(file.set_size(u64::MAX)), Errno::EFBIG);
}

#[test]
fn what_a_descriptor_may_not_do_fails() {
    let made = TestVolume::make(1);
    let volume = made.open();
    write_file(&volume, "/f", b"content");
    let reader = volume.open_file("/f", &FileOptions::new().read()).unwrap();
    assert_eq!(errno(reader.write(b"x")), Errno::EBADF);
    assert_eq!(errno(reader.set_size(0)), Errno::EINVAL);
    assert_eq!(errno(reader.allocate(AllocateKind::Extend, 0, 1)), Errno::EBADF);
    let writer = volume.open_file("/f", &FileOptions::new().write()).unwrap();
    assert_eq!(errno(writer.read(&mut [0; 4])), Errno::EBADF);
    assert_eq!(errno(volume.open_file("/f", &FileOptions::new())), Errno::EINVAL);
    assert_eq!(errno(volume.open_file("/", &FileOptions::new().read())), Errno::EISDIR);
    assert_eq!(errno(volume.open_file("/f", &FileOptions::new().write().create_new(0o600))), Errno::EEXIST);
}

#[test]
fn appends_of_several_threads_are_whole() {
    const THREADS: u8 = 4;
    const LINES: usize = 200;
    let made = TestVolume::make(2);
    let volume = made.open();
    let options = FileOptions::new().write().create(0o644).append();
    thread::scope(|scope| {
        for writer in 0..THREADS {
            let (volume, options) = (&volume, &options);
            scope.spawn(move || {
                let file = volume.open_file("/log", options).unwrap();
                for _ in 0..LINES {
                    assert_eq!(file.write(&[b'a' + writer; 100]).unwrap(), 100);
                }
            });
        }
    });
    let log = read_file(&volume, "/log");
    assert_eq!(log.len(), usize::from(THREADS) * LINES * 100);
    assert!(log.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
    let mut file = volume.open_file("/log", &options).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(file.stream_position().unwrap(), log.len() as u64 + 3);
    // Without the right to write, appending means nothing.
    let reader = volume.open_file("/log", &FileOptions::new().read().append()).unwrap();
    assert_eq!(errno(reader.write(b"x")), Errno::EBADF);
}

#[test]
fn links_are_followed_within_the_volume_and_not_for_ever() {
    let made = TestVolume::make(1);
    let volume = made.open();
    volume.make_directory("/a", 0o755).unwrap();
    volume.make_directory("/a/b", 0o755).unwrap();
    write_file(&volume, "/a/f", b"f");
    volume.make_symlink("/a/f", "/a/b/absolute").unwrap();
    volume.make_symlink("../../../../../a/f", "/a/b/above").unwrap();
    volume.make_symlink("loop", "/loop").unwrap();
    volume.make_symlink("new", "/dangling").unwrap();
    assert_eq!(read_file(&volume, "/a/b/absolute"), b"f");
    assert_eq!(read_file(&volume, "a//b/./above"), b"f");
    assert_eq!(read_file(&volume, "/../../a/f"), b"f");
    assert_eq!(errno(volume.attributes("/loop", LastLink::Follow)), Errno::ELOOP);
    assert_eq!(volume.attributes("/loop", LastLink::Keep).unwrap().kind, FileKind::Symlink);
    assert_eq!(errno(volume.open_file("/dangling", &FileOptions::new().read())), Errno::ENOENT);
    let exclusively = FileOptions::new().write().create_new(0o600);
    assert_eq!(errno(volume.open_file("/dangling", &exclusively)), Errno::EEXIST);
    assert_eq!(errno(volume.open_file("/a/b/absolute", &FileOptions::new().read().no_follow())), Errno::ELOOP);
    write_file(&volume, "/dangling", b"made through a link");
    assert_eq!(read_file(&volume, "/new"), b"made through a link");
    assert_eq!(errno(volume.attributes("/a/f/x", LastLink::Follow)), Errno::ENOTDIR);
    assert_eq!(errno(volume.attributes("/a/f/", LastLink::Follow)), Errno::ENOTDIR);
    assert_eq!(errno(volume.attributes("", LastLink::Follow)), Errno::ENOENT);
    assert_eq!(errno(volume.attributes("x\0y", LastLink::Follow)), Errno::EINVAL);
    assert_eq!(errno(volume.attributes("n".repeat(256), LastLink::Follow)), Errno::ENAMETOOLONG);
    assert_eq!(errno(volume.attributes("d/".repeat(3000), LastLink::Follow)), Errno::ENAMETOOLONG);
    assert_eq!(volume.read_symlink("/dangling").unwrap().to_str(), Some("new"));
    assert_eq!(errno(volume.read_symlink("/a/f")), Errno::EINVAL);
}

#[test]
fn listings_have_each_name_once_and_go_on_where_they_were() {
    let made = TestVolume::make(1);
    let volume = made.open();
    volume.make_directory("/d", 0o755).unwrap();
    let names: BTreeSet<String> = (0..1_000).map(|number| format!("name-{number}")).collect();
    names.iter().for_each(|name| write_file(&volume, &format!("/d/{name}"), b""));
    let directory = volume.open_directory("/d", LastLink::Follow).unwrap();
    let listed: Vec<String> = (&directory).map(|entry| String::from_utf8(entry.unwrap().name).unwrap()).collect();
    assert_eq!((listed.len(), listed.iter().cloned().collect::<BTreeSet<_>>()), (1_000, names));
    directory.seek(0).unwrap();
    let first: Vec<_> = (&directory).take(10).map(Result::unwrap).collect();
    let position = directory.position().unwrap();
    assert_eq!(position, first[9].cookie);
    let next = directory.next_entry().unwrap();
    directory.seek(position).unwrap();
    assert_eq!(directory.next_entry().unwrap(), next);
    assert_eq!(directory.parent().unwrap().ino, volume.attributes("/", LastLink::Follow).unwrap().ino);
    directory.sync().unwrap();
    assert_eq!(errno(volume.open_directory("/d/name-1", LastLink::Follow)), Errno::ENOTDIR);
}

#[test]
fn a_file_without_a_name_gets_one() {
    let made = TestVolume::make(1);
    let volume = made.open();
    let file = volume.open_unnamed("/", 0o600, &FileOptions::new().read().write()).unwrap();
    file.write(b"kept").unwrap();
    assert_eq!(file.attributes().unwrap().links, 0);
    volume.link_file(&file, "/named").unwrap();
    file.close().unwrap();
    assert_eq!(read_file(&volume, "/named"), b"kept");
    volume.rename("/named", "/other", RenameMode::NoReplace).unwrap();
    assert_eq!(errno(volume.rename("/named", "/other", RenameMode::Replace)), Errno::ENOENT);
    // An open file outlives its last name.
    let file = volume.open_file("/other", &FileOptions::new().read()).unwrap();
    volume.unlink("/other").unwrap();
    let mut content = [0; 4];
    assert_eq!(file.read(&mut content).unwrap(), 4);
    assert_eq!(&content, b"kept");
}

#[test]
fn permissions_are_those_of_the_chosen_user() {
    let made = TestVolume::make(1);
    let volume = made.open();
    volume.make_directory("/shared", 0o777).unwrap();
    let all = SetAttributes { permissions: Some(0o777), ..SetAttributes::default() };
    volume.set_attributes("/shared", LastLink::Follow, &all).unwrap();
    write_file(&volume, "/private", b"secret");
    let none = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
    volume.set_attributes("/private", LastLink::Follow, &none).unwrap();
    volume.make_directory("/closed", 0o700).unwrap();
    volume.close().unwrap();
    let stranger = Caller { umask: 0o027, ..Caller::user(1234, 1234) };
    let volume = made.options().identity(stranger).open(NAME).unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: refusals to another user, because this is not run as root");
    } else {
        assert_eq!(errno(volume.open_file("/private", &FileOptions::new().read())), Errno::EACCES);
        assert_eq!(errno(volume.attributes("/closed/x", LastLink::Follow)), Errno::EACCES);
        assert_eq!(errno(volume.open_directory("/closed", LastLink::Follow)), Errno::EACCES);
        assert_eq!(errno(volume.unlink("/private")), Errno::EACCES);
        assert_eq!(errno(volume.check_access("/private", 4)), Errno::EACCES);
    }
    write_file(&volume, "/shared/own", b"mine");
    let found = volume.attributes("/shared/own", LastLink::Follow).unwrap();
    assert_eq!((found.uid, found.gid, found.permissions), (1234, 1234, 0o640));
}
