//! Programs with set-id bits that others may write: a write clears the bits before any user can run the written program.
//!
//! Invariants: each way to write is tried on the volume and on native ext4, and must come to the same mode and to the same
//! user of the program that runs afterwards. The writer is a thread with the identity of another user; root runs the test. Where files
//! are passed through, an old description is one through which the kernel changes the object itself, which `where` confirms.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mounted::passed_through::overwrite_in_place;
use mounted::users::as_user;
use mounted::{
    FileSystemKind, NativeMount, Plan, TestVolume, have_program, is_root, run, skip, skip_where_io_is_named,
};
use rustix::fs::FallocateFlags;

/// An unprivileged user.
const OTHER: u32 = 65_534;
/// Prints the user that it runs as; the kernel ignores the bytes behind a program in its file.
const PROGRAM: &str = "/usr/bin/id";
const ALIGNMENT: u64 = 4096;

/// Does something as another user, with none of the privileges of root.
fn as_other<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    as_user(OTHER, body)
}

/// A page in memory that `O_DIRECT` can write from.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// The ways to write through a description.
const WAYS: [&str; 9] =
    ["write", "pwrite", "append direct", "ftruncate", "fallocate", "punch", "copy_file_range", "splice", "vectors"];

/// Changes a file in one of these ways; the program in it stays one.
fn change(way: &str, file: &File, source: &File) {
    let end = file.metadata().expect("it is open").len();
    match way {
        "write" => {
            rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).expect("the end is found");
            (&*file).write_all(b"x").expect("written");
        }
        "pwrite" => file.write_all_at(b"x", end).expect("written"),
        "append direct" => {
            let flags = rustix::fs::fcntl_getfl(file).expect("it is open");
            rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::DIRECT).expect("direct I/O is offered");
            let page = Box::new(Page([0; 4096]));
            file.write_all_at(&page.0, end.next_multiple_of(ALIGNMENT)).expect("written");
        }
        "ftruncate" => file.set_len(end).expect("cut"),
        "fallocate" => {
            rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, end, ALIGNMENT).expect("reserved");
        }
        "punch" => {
            let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            rustix::fs::fallocate(file, flags, end.next_multiple_of(ALIGNMENT), ALIGNMENT).expect("punched");
        }
        "copy_file_range" => {
            let mut to = end;
            assert_eq!(rustix::fs::copy_file_range(source, Some(&mut 0), file, Some(&mut to), 1).expect("copied"), 1);
        }
        "splice" => {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            writer.write_all(b"x").expect("written");
            drop(writer);
            rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).expect("the end is found");
            // From a pipe to a file the library splices.
            let mut reader = File::from(std::os::fd::OwnedFd::from(reader));
            assert_eq!(std::io::copy(&mut reader, &mut &*file).expect("spliced"), 1);
        }
        "vectors" => {
            let vectors = [std::io::IoSlice::new(b"x"), std::io::IoSlice::new(b"y")];
            assert_eq!(rustix::io::pwritev(file.as_fd(), &vectors, end).expect("written"), 2);
        }
        other => panic!("{other}"),
    }
}

fn open_for_writing(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("he may write")
}

fn lay(directory: &Path, owner: u32) -> PathBuf {
    let path = directory.join("program");
    let _ = fs::remove_file(&path);
    let mut file = File::create(&path).expect("made");
    file.write_all(&fs::read(PROGRAM).expect("it is installed")).and_then(|()| file.sync_all()).expect("written");
    drop(file);
    chown(&path, Some(owner), Some(owner)).expect("given away");
    path
}

/// Opens a file for writing as another user.
fn opened_by_other(path: &Path) -> File {
    as_other(|| open_for_writing(path))
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    assert_eq!(mode_of(path), mode);
}

fn mode_of(path: &Path) -> u32 {
    path.symlink_metadata().expect("there").mode() & 0o7777
}

/// The mode that a program shows and the effective user and group that it runs as when another user starts it.
fn found(path: &Path) -> (String, u32) {
    let ids = |argument: &str| {
        let began = Instant::now();
        loop {
            match Command::new(path).arg(argument).uid(OTHER).gid(OTHER).output() {
                Ok(ran) => break String::from_utf8_lossy(&ran.stdout).trim().to_owned(),
                // A process that another test of this program just started may have its descriptors for a moment.
                Err(error) if error.raw_os_error() == Some(26) && began.elapsed() < Duration::from_secs(20) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => break error.to_string(),
            }
        }
    };
    (format!("user {} group {}", ids("-u"), ids("-g")), mode_of(path))
}

/// Another user writes to a program of root that all users may write.
fn written_by_another(directory: &Path, way: &str, mode: u32) -> (String, u32) {
    let path = lay(directory, 0);
    set_mode(&path, mode);
    let mut after_emptying = 0;
    as_other(|| {
        let source = File::open(PROGRAM).expect("it is readable");
        let source_inside = directory.join("source");
        let _ = fs::remove_file(&source_inside);
        fs::write(&source_inside, "source").expect("written");
        match way {
            "truncate" => {
                let script = "truncate($ARGV[0], -s $ARGV[0]) or die $!";
                let cut = run(Command::new("perl").args(["-e", script]).arg(&path).uid(OTHER).gid(OTHER));
                assert!(cut.is_success(), "{}", cut.text());
            }
            "O_TRUNC" => {
                let mut file = OpenOptions::new().write(true).truncate(true).open(&path).expect("he may write");
                // Nothing was written yet.
                after_emptying = mode_of(&path);
                std::io::copy(&mut &source, &mut file).expect("written");
            }
            way => change(way, &open_for_writing(&path), &File::open(&source_inside).expect("there")),
        }
    });
    let (ids, mode) = found(&path);
    (format!("{ids}, {after_emptying:o} when it was emptied"), mode)
}

/// A user's own program, which he has open when it becomes root's and gets the bits.
fn written_through_an_old_description(
    directory: &Path,
    open: impl FnOnce(&Path) -> File,
    way: &str,
    mode: u32,
) -> (String, u32) {
    let path = lay(directory, OTHER);
    set_mode(&path, 0o755);
    let file = open(&path);
    let source_inside = directory.join("source");
    fs::write(&source_inside, "source").expect("written");
    file.read_exact_at(&mut [0], 0).expect("read");
    chown(&path, Some(0), Some(0)).expect("root may");
    set_mode(&path, mode);
    let source = File::open(&source_inside).expect("there");
    as_other(|| {
        change(way, &file, &source);
        drop(file);
    });
    found(&path)
}

fn compare_with_native(options: &[&str]) {
    if !is_root() {
        return skip("acting as another user needs root");
    }
    let Some(mut volume) = TestVolume::create(&Plan::anywhere().with_reserve()) else { return };
    volume.mount_with(options);
    let volume = volume;
    let open_here = |path: &Path| match options {
        [] => volume.opened_for_direct_changes(path, || opened_by_other(path)),
        _ => opened_by_other(path),
    };
    let native = NativeMount::new(volume.outside(), "native", FileSystemKind::Ext4, 64);
    for directory in [volume.path(), native.path()] {
        fs::set_permissions(directory, PermissionsExt::from_mode(0o777)).expect("set");
    }
    let mut wrong = Vec::new();
    for mode in [0o4777, 0o2777, 0o6777, 0o2767, 0o6666] {
        for way in WAYS.into_iter().chain(["truncate", "O_TRUNC"]) {
            let [here, there] = [volume.path(), native.path()].map(|path| written_by_another(path, way, mode));
            if here != there {
                wrong.push(format!("{way}, {mode:o}: {here:?}, natively {there:?}"));
            }
        }
    }
    for mode in [0o4755, 0o6755, 0o2745] {
        for way in WAYS {
            let here = written_through_an_old_description(volume.path(), open_here, way, mode);
            let there = written_through_an_old_description(native.path(), opened_by_other, way, mode);
            if here != there {
                wrong.push(format!("{way}, old description, {mode:o}: {here:?}, natively {there:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "with {options:?}:\n{}", wrong.join("\n"));
}

#[test]
fn every_way_to_write_takes_set_id_bits_away_as_natively() {
    compare_with_native(&[]);
}

#[test]
fn every_way_to_write_takes_set_id_bits_away_without_passthrough() {
    if skip_where_io_is_named() {
        return;
    }
    compare_with_native(&["-o", "passthrough=off"]);
}

#[test]
fn every_way_to_write_takes_set_id_bits_away_without_a_page_cache() {
    if skip_where_io_is_named() {
        return;
    }
    compare_with_native(&["-o", "passthrough=off,page_cache=off"]);
}

#[test]
fn a_stranger_cannot_take_set_id_bits_away_without_writing() {
    if !is_root() {
        return skip("acting as another user needs root");
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let native = NativeMount::new(volume.outside(), "native", FileSystemKind::Ext4, 64);
    let [here, there] = [volume.path(), native.path()].map(|directory| {
        let path = lay(directory, 0);
        set_mode(&path, 0o4755);
        // It is open for writing.
        let _writer = open_for_writing(&path);
        let outcome = as_other(|| chown(&path, None, None)).map_err(|error| error.raw_os_error());
        (outcome, mode_of(&path))
    });
    assert_eq!(here, there, "while another user has it open for writing");
    let attempt = |directory: &Path, owner: u32| {
        let path = directory.join(format!("program of {owner}"));
        if !path.exists() {
            fs::rename(lay(directory, owner), &path).expect("renamed");
        }
        set_mode(&path, 0o4755);
        let outcome = as_other(|| chown(&path, None, None)).map_err(|error| error.raw_os_error());
        (outcome, mode_of(&path))
    };
    for owner in [0, OTHER] {
        let (there, began) = (attempt(native.path(), owner), Instant::now());
        loop {
            let here = attempt(volume.path(), owner);
            if here == there {
                break;
            }
            // The daemon may still have to hear that the file was closed.
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "a program of user {owner}: {here:?}, natively {there:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Questions for attributes that the daemon of a volume was asked.
fn questions(volume: &TestVolume) -> u64 {
    let volume_told = volume.status();
    ["getattr", "statx"].iter().filter_map(|name| volume_told["messages"][*name].as_u64()).sum()
}

/// The kernel installs the attributes in the answer to a change of attributes, although it may have been notified since that its
/// attributes are outdated.
#[test]
fn a_mode_with_set_id_bits_that_a_change_is_answered_with_is_asked_for_again() {
    if !is_root() {
        return skip("the volume of another user has no set-id programs");
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_reserve()) else { return };
    let path = lay(volume.path(), 0);
    let asked_after = |change: &dyn Fn()| {
        change();
        let before = questions(&volume);
        (0..10).for_each(|_| assert!(path.metadata().is_ok()));
        questions(&volume) - before
    };
    let set = |mode| fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
    // The birth time is asked for once.
    assert!(path.metadata().is_ok());
    assert_eq!(asked_after(&|| set(0o755)), 0, "what the answer says of a file without such bits is kept");
    let is_asked_anew = |questions: u64| questions > 0 && questions < 5;
    assert!(is_asked_anew(asked_after(&|| set(0o4755))), "at first, and then kept");
    let touch = || File::open(&path).and_then(|file| file.set_modified(std::time::SystemTime::now())).expect("set");
    assert!(is_asked_anew(asked_after(&touch)), "a change of times");
    let link = || fs::hard_link(&path, volume.path().join("other")).expect("linked");
    assert!(is_asked_anew(asked_after(&link)), "a link");
}

/// Maps a file, closes its descriptor and the copy that the library made, stores a byte, says so, and goes on to have the mapping.
const MAPS: &str = "import mmap, os, sys, time\nfd = os.open(sys.argv[1], os.O_RDWR)\nm = mmap.mmap(fd, 4096)\nos.closerange(3, 99)\n\
                    m[0] = m[0]\nprint('mapped', flush=True)\ntime.sleep(600)";

/// A program that has a file mapped, and is ended when this is dropped.
struct Mapping(std::process::Child);

impl Mapping {
    fn of(path: &Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", MAPS]).arg(path).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut said).expect("it maps the file");
        Self(child)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_that_is_mapped_or_was_just_closed_takes_set_id_bits_as_natively() {
    if skip_where_io_is_named() || !is_root() || !have_program("python3") {
        return skip("needs python3, a volume with set-id programs, and the choice of the way");
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_reserve()) else { return };
    let path = lay(volume.path(), 0);
    for _ in 0..50 {
        drop(volume.opened_for_direct_changes(&path, || open_for_writing(&path)));
        set_mode(&path, 0o4755);
        set_mode(&path, 0o755);
    }
    let began = Instant::now();
    let _mapping = loop {
        overwrite_in_place(&path);
        let mapping = Mapping::of(&path);
        let found = volume.io_of(&path);
        if found.starts_with("held by a program") {
            break mapping;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "a mapped file is {found}");
    };
    set_mode(&path, 0o4755);
}
