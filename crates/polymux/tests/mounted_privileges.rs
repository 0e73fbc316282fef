//! Operations of each kind of user on each kind of file, and which of its privileges remain: the mount answers as ext4 does.

mod mounted;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mounted::environment::{have_loop_devices, wanted_io};
use mounted::{FileSystemKind, NativeMount, Plan, TestVolume, have_program, is_heavy, one_at_a_time, run_within, skip};

const DEADLINE: Duration = Duration::from_secs(900);

/// The short form leaves out ways that the kernel takes through the same code, and modes that differ in one bit.
fn form() -> &'static str {
    if is_heavy() { "all" } else { "short" }
}

/// Output of `privileges/matrix.py` for a file system. Where a volume is named, each file that is open since before it got its mode is one
/// that the kernel changes itself.
fn matrix(directory: &Path, changed_directly_on: Option<&TestVolume>) -> String {
    let place = directory.join("matrix");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/privileges/matrix.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(&place).arg(form());
    if let Some(volume) = changed_directly_on {
        volume.give_registry(&mut command);
        command.args([env!("CARGO_BIN_EXE_polymux"), "where"]);
    }
    let finished = run_within(&mut command, DEADLINE);
    assert!(finished.is_success(), "{}", finished.text());
    finished.stdout
}

/// A difference that the protocol leaves no choice about, for programs with capabilities *and* set-id bits (docs/design/0024):
/// where a writer with `CAP_FSETID` takes the capabilities away, the kernel announces a removal without saying that the set-id
/// bits stay, and they go as well; where a `chown` that names nothing is refused, the kernel has removed the capabilities before it
/// asks.
fn is_removal_that_names_nothing(native: &str, found: &str) -> bool {
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (native, found) = (fields(native), fields(found));
    if native[..4] != found[..4] || native[2] != "capable-4777" {
        return false;
    }
    let keeps_bits = matches!(native[1].as_str(), "root" | "stranger-with-fsetid");
    let bits_went = keeps_bits && (native[4].as_str(), found[4].as_str()) == ("04777", "00777");
    let capabilities_went = native[0] == "chown-nothing" && native[3] == "EPERM" && native[4] == found[4];
    bits_went || capabilities_went
}

/// Compares the mount, in one way of doing I/O, with ext4.
fn compare(native: &str, options: &[&str]) {
    let Some(mut volume) = TestVolume::create(&Plan::anywhere().with_reserve()) else { return };
    volume.mount_with(options);
    let is_passed_through = options.is_empty() && wanted_io().is_empty();
    let found = matrix(volume.path(), is_passed_through.then_some(&volume));
    let pairs = native.lines().zip(found.lines());
    let differences: Vec<String> = pairs
        .filter(|(native, found)| native != found && !is_removal_that_names_nothing(native, found))
        .map(|(native, found)| format!("ext4    {native}\npolymux {found}"))
        .collect();
    assert_eq!(native.lines().count(), found.lines().count(), "a part of the matrix is missing");
    let shown = differences[..differences.len().min(40)].join("\n");
    assert!(differences.is_empty(), "{options:?}: {} entries differ:\n{shown}", differences.len());
}

#[test]
fn every_user_finds_and_leaves_the_privileges_that_ext4_would() {
    if !have_loop_devices() || !have_program("python3") {
        return skip("acting as other users beside a native ext4 needs root, loop devices and python3");
    }
    let _turn = one_at_a_time();
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let native = NativeMount::new(base.path(), "native", FileSystemKind::Ext4, 128);
    let expected = matrix(native.path(), None);
    assert!(expected.lines().count() >= 800, "the matrix is large enough to mean something");
    compare(&expected, &[]);
    compare(&expected, &["-o", "passthrough=off"]);
    compare(&expected, &["-o", "passthrough=off,page_cache=off"]);
}
