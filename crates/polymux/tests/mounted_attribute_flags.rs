//! Append-only and immutable files, no-dump and no-access-time, through the mount and with the usual tools: as on ext4.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mounted::command::shell;
use mounted::environment::{collects_writes, skip_where_writes_are_collected};
use mounted::{
    FileSystemKind, NativeMount, Plan, TestVolume, have_program, is_root, run, skip, skip_where_io_is_named,
};

fn can_run() -> bool {
    let can = is_root() && have_program("chattr") && have_program("setpriv") && have_program("setfacl");
    if !can {
        skip("it takes root, chattr, setpriv and setfacl");
    }
    can
}

/// The output of `lsattr`, limited to the flags that both file systems have.
const SHOW: &str = "lsattr -d \"$@\" | while read flags name; do echo \"$name $(echo $flags | tr -cd aiAd)\"; done";

fn flags_of(directory: &Path, names: &str) -> String {
    shell(directory, &format!("set -- {names}; {SHOW}"))
}

fn chattr(directory: &Path, arguments: &str) -> bool {
    let mut command = std::process::Command::new("sh");
    run(command.args(["-c", &format!("chattr {arguments}")]).current_dir(directory)).is_success()
}

fn matrix(directory: &Path) -> Vec<String> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/privileges/flags.py");
    shell(directory, &format!("python3 {} .", program.display())).lines().map(str::to_owned).collect()
}

/// Files that are passed through refuse the flags while they are open for changes, so descriptors that are older than the flag are
/// compared without.
fn compare(options: &str, is_compared: impl Fn(&str) -> bool) {
    let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), options) else { return };
    let native = NativeMount::new(volume.outside(), "ext4", FileSystemKind::Ext4, 64);
    let (expected, found) = (matrix(native.path()), matrix(volume.path()));
    assert_eq!(expected.len(), found.len());
    assert!(expected.len() > 120);
    let different: Vec<String> = expected
        .iter()
        .zip(&found)
        .filter(|(expected, found)| expected != found && is_compared(expected))
        .map(|(expected, found)| format!("ext4: {expected}\n here: {found}"))
        .collect();
    assert!(
        different.is_empty(),
        "{options:?}: {} of {} differ:\n{}",
        different.len(),
        expected.len(),
        different.join("\n")
    );
}

#[test]
fn append_only_and_immutable_files_refuse_what_they_refuse_on_ext4() {
    if !can_run() {
        return;
    }
    compare("", |line| !line.starts_with("old "));
    if skip_where_io_is_named() {
        return;
    }
    compare("passthrough = \"off\"", |_| true);
    compare("passthrough = \"off\"\npage_cache = \"off\"", |_| true);
}

#[test]
fn flags_are_set_shown_inherited_and_kept_as_on_ext4() {
    if !can_run() {
        return;
    }
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let native = NativeMount::new(volume.outside(), "ext4", FileSystemKind::Ext4, 64);
    let mut seen = Vec::new();
    for root in [volume.path(), native.path()] {
        shell(
            root,
            "mkdir d plain; echo 1 > f; echo 2 > plain/f; chattr +Ad d; echo 3 > d/f; mkdir d/sub; echo 4 > d/sub/f",
        );
        shell(root, "chattr +a f; chattr +i plain/f; touch moved; mv moved d/moved; chmod 777 .");
        let refused = [
            chattr(root, "+d plain/f"),
            chattr(root, "+s d/f"),
            chattr(root, "-i +d plain/f"),
            chattr(root, "+i plain/f"),
        ];
        let names = "f plain plain/f d d/f d/sub d/sub/f d/moved";
        let before = root.join("f").metadata().unwrap();
        shell(root, "sleep 0.05; chattr +A f");
        let after = root.join("f").metadata().unwrap();
        // A kernel that collects writes keeps the times of a file itself, and knows nothing of this change.
        if !collects_writes() || root == native.path() {
            let times = [&after, &before].map(|found| (found.ctime(), found.ctime_nsec()));
            assert!(times[0] > times[1], "the change time moves");
        }
        assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
        let xfs_io = "for f in f plain/f d; do lsattr -d -p $f | cut -c1-6 | tr -d ' '; done";
        seen.push((refused, flags_of(root, names), shell(root, xfs_io)));
    }
    assert_eq!(seen[0].1, seen[1].1);
    // ext4 has flags that are not here: secure deletion.
    assert_eq!((seen[0].0[0], seen[0].0[1], seen[0].0[2], seen[0].0[3]), (false, false, true, true));
    assert_eq!((seen[1].0[0], seen[1].0[2], seen[1].0[3]), (false, true, true));
    volume.unmount();
    volume.mount();
    assert_eq!(flags_of(volume.path(), "f plain plain/f d d/f d/sub d/sub/f d/moved"), seen[0].1);
    assert!(fs::write(volume.path().join("plain/f"), "x").is_err());
    shell(volume.path(), "chattr -R -ai . && echo more > plain/f && rm -r f plain d");
}

#[test]
fn flags_take_the_owner_and_those_that_protect_take_the_capability() {
    if !can_run() {
        return;
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let root = volume.path();
    shell(root, "touch f theirs; chown 1234 theirs; chmod 777 . f");
    let without = "setpriv --bounding-set=-linux_immutable --inh-caps=-linux_immutable";
    let as_user = "setpriv --reuid=1234 --regid=1234 --clear-groups";
    let refuses = |who: &str, what: &str| shell(root, &format!("! {who} chattr {what} 2> /dev/null"));
    refuses(without, "+i f");
    refuses(without, "+a f");
    shell(root, &format!("{without} chattr +Ad f"));
    shell(root, "chattr +i f");
    refuses(without, "-- -i f");
    refuses(as_user, "+d f");
    refuses(as_user, "+i theirs");
    shell(root, &format!("{as_user} chattr +d theirs"));
    assert_eq!(flags_of(root, "f theirs"), "f iAd\ntheirs d\n".replace("iAd", "idA"));
}

#[test]
fn a_file_that_the_kernel_changes_itself_takes_no_flag_that_it_would_not_obey() {
    if !can_run() || skip_where_io_is_named() {
        return;
    }
    let Some(volume) = TestVolume::start_with_options(&Plan::anywhere().with_reserve(), "movers = 0") else { return };
    let path = volume.path().join("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let write = || OpenOptions::new().write(true).open(&path);
    // Who overwrote it last did not make it longer: the next one is passed through.
    rustix::io::pwrite(write().unwrap(), &[2; 4096], 0).unwrap();
    let writer = write().unwrap();
    let said = volume.polymux(["where", path.to_str().unwrap()]).text();
    let is_passed = said.contains("itself") || said.contains("passed through");
    let is_set = chattr(volume.path(), "+i file");
    assert!(is_set != is_passed, "passed through: {is_passed}, set: {is_set}: {said}");
    let written = rustix::io::pwrite(&writer, &[3; 4096], 0);
    assert_eq!(written.is_ok(), !is_set, "what is immutable is not written");
    drop(writer);
    assert!(chattr(volume.path(), "+i file"), "nobody has it any more");
    assert_eq!(write().unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_log_that_is_open_may_become_append_only_and_goes_on() {
    if !can_run() || skip_where_writes_are_collected("such a log stays as it is (EBUSY)") {
        return;
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("log");
    let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    log.write_all(b"first\n").unwrap();
    assert!(chattr(volume.path(), "+a log"));
    log.write_all(b"second\n").unwrap();
    log.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first\nsecond\n");
    assert_eq!(fs::remove_file(&path).unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_file_that_keeps_its_access_time_keeps_it_and_an_immutable_one_moves() {
    if !can_run() {
        return;
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    shell(volume.path(), "chattr +A file; touch -d @1000000000 file; chattr +i file");
    assert_eq!(fs::read(&path).unwrap(), vec![1; 1 << 20]);
    let before = path.metadata().unwrap();
    assert_eq!(before.atime(), 1_000_000_000);
    let moved = volume.polymux(["migrate", path.to_str().unwrap(), "--to", "slow", "--wait"]);
    moved.assert_success();
    let bytes = |tier: &str| volume.bytes_per_tier(&path).get(tier).copied().unwrap_or(0);
    assert!(bytes("slow") >= 1 << 20 && bytes("fast") == 0, "{:?}", volume.bytes_per_tier(&path));
    let after = path.metadata().unwrap();
    assert_eq!((after.mtime(), after.ctime(), after.atime()), (before.mtime(), before.ctime(), before.atime()));
    assert_eq!(fs::read(&path).unwrap(), vec![1; 1 << 20]);
    assert_eq!(fs::write(&path, "x").unwrap_err().raw_os_error(), Some(libc::EPERM));
}
