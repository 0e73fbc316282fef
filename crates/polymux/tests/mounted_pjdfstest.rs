//! The conformance suite pjdfstest on a volume of ext4 and XFS, and in the same run on native XFS: Polymux fails
//! nothing that native XFS does not fail too.

#[path = "preload/libraries.rs"]
mod libraries;
mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use libraries::{install_libraries, lower_limit};
use mounted::environment::have_loop_devices;
use mounted::native::NativeMount;
use mounted::tool::tool;
use mounted::volume::Ground;
use mounted::{FileSystemKind, Plan, TestVolume, is_heavy, one_at_a_time, run_within, skip};

const VERSION: &str = "0.2.2";

/// Every feature that ext4 and XFS have; two users that every Debian has.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The suite makes file systems read-only by `mount -o remount,ro DIRECTORY`. For every FUSE file system mount(8) hands
/// that to the program that serves it, which is outside the scope of these tests; the read-only mount that they need is
/// made by the kernel alone.
const REMOUNT: &str = "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec mount -o \"$2,bind\" \"$3\"\n";

/// How a test ended, by its name.
type Outcomes = BTreeMap<String, String>;

fn run_suite(
    program: &Path,
    config: &Path,
    directory: &Path,
    secondary: &Path,
    preloaded: Option<&Path>,
) -> (Outcomes, String) {
    fs::create_dir(directory).unwrap();
    let mut command = Command::new(program);
    if let Some(preloaded) = preloaded {
        command.env("LD_PRELOAD", preloaded);
    }
    command.arg("-c").arg(config).arg("-p").arg(directory).arg("-s").arg(secondary).env("NO_COLOR", "1");
    let programs = config.parent().expect("the configuration lies in a directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(paths).expect("paths of tests are plain"));
    let finished = run_within(&mut command, Duration::from_secs(400));
    let outcomes = outcomes(&finished.stdout);
    (outcomes, finished.text())
}

fn outcomes(text: &str) -> Outcomes {
    let endings = ["ok", "FAILED", "skipped"];
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, ending, rest) = (words.next()?, words.next()?, words.next());
        (name.contains("::") && endings.contains(&ending) && rest.is_none())
            .then(|| (name.to_owned(), ending.to_owned()))
    };
    text.lines().filter_map(parse).collect()
}

fn failed(outcomes: &Outcomes) -> BTreeSet<&str> {
    outcomes.iter().filter(|(_, ending)| *ending == "FAILED").map(|(name, _)| name.as_str()).collect()
}

fn exclusions() -> BTreeSet<&'static str> {
    let lines = include_str!("mounted/pjdfstest_exclusions.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").expect("an exclusion has a reason").0).collect()
}

/// Runs the suite on native XFS, and on a volume with these options, there with the library that `preload` gives.
fn assert_fails_nowhere_that_native_xfs_does_not(options: &str, preload: fn(&TestVolume) -> Option<PathBuf>) {
    let _turn = one_at_a_time();
    if !have_loop_devices() {
        return skip("the suite acts as several users on devices of its own, which needs root");
    }
    let program = tool("pjdfstest", VERSION);
    let plan = Plan { ground: Ground::LoopDevices { fast: 256, slow: 320 }, fast_capacity: None };
    let Some(volume) = TestVolume::start_with_options(&plan, options) else { return };
    let native = NativeMount::new(volume.outside(), "native", FileSystemKind::Xfs, 320);
    let other = NativeMount::new(volume.outside(), "other", FileSystemKind::Ext4, 64);
    let programs = volume.outside().join("programs");
    fs::create_dir(&programs).unwrap();
    let config = programs.join("pjdfstest.toml");
    fs::write(&config, CONFIG).unwrap();
    fs::write(programs.join("mount"), REMOUNT).unwrap();
    fs::set_permissions(programs.join("mount"), PermissionsExt::from_mode(0o755)).unwrap();

    let preloaded = preload(&volume);
    let (on_native, _) = run_suite(&program, &config, &native.path().join("suite"), other.path(), None);
    let (on_volume, text) =
        run_suite(&program, &config, &volume.path().join("suite"), other.path(), preloaded.as_deref());
    assert!(on_native.len() > 300, "the suite did not run on native XFS: {} results", on_native.len());
    let ran = |outcomes: &Outcomes| outcomes.values().filter(|ending| *ending != "skipped").count();
    println!("{} ran on the volume, {} on native XFS", ran(&on_volume), ran(&on_native));
    assert_eq!(on_volume.keys().collect::<Vec<_>>(), on_native.keys().collect::<Vec<_>>(), "the same tests ran");
    assert_eq!(ran(&on_volume), ran(&on_native), "no test is skipped on the volume alone");

    let native_failures = failed(&on_native);
    let excluded = exclusions();
    let worse: Vec<_> = failed(&on_volume)
        .into_iter()
        .filter(|name| !native_failures.contains(name) && !excluded.contains(name))
        .collect();
    assert!(worse.is_empty(), "fail on the volume and not on native XFS: {worse:#?}\n{text}");
}

#[test]
fn pjdfstest_fails_nowhere_that_native_xfs_does_not() {
    assert_fails_nowhere_that_native_xfs_does_not("", |_| None);
}

#[test]
fn pjdfstest_fails_nowhere_under_the_library_that_native_xfs_does_not() {
    if !is_heavy() {
        eprintln!("skipped: the suite under the library runs in `make test-leases`");
        return;
    }
    let options = "leases = \"on\"\nio = \"passthrough\"";
    assert_fails_nowhere_that_native_xfs_does_not(options, |volume| {
        lower_limit();
        Some(install_libraries(&volume.outside().join("libraries")))
    });
}
