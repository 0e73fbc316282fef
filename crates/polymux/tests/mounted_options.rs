//! Options of mount(8): each is in force on a mounted volume or refused in one line, and some change while it is mounted.

mod mounted;

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use mounted::command::copy_program;
use mounted::native::text;
use mounted::volume::Ground;
use mounted::{Finished, Plan, TestVolume, is_root, run, skip};

/// No user and group of this machine.
const OTHER: u32 = 65_534;

fn plan() -> Plan {
    Plan { ground: Ground::Directories, fast_capacity: None }
}

fn as_root() -> bool {
    if !is_root() {
        skip("fusermount3 sets nosuid and nodev in any case");
    }
    is_root()
}

/// Puts a program with the set-user-id bit of root, a link and a device on a volume.
fn furnish(volume: &TestVolume) {
    let root = volume.path();
    fs::set_permissions(root, PermissionsExt::from_mode(0o755)).unwrap();
    copy_program("/usr/bin/id", &root.join("program"));
    fs::set_permissions(root.join("program"), PermissionsExt::from_mode(0o4755)).unwrap();
    fs::write(root.join("file"), "text").unwrap();
    symlink("file", root.join("link")).unwrap();
    run(Command::new("mknod").arg(root.join("null")).args(["c", "1", "3"])).assert_success();
}

/// The operations that work on it, a letter each: run a program, with its set-user-id bit, open a device, follow a link, write.
fn what_works(root: &Path) -> String {
    let ran = Command::new(root.join("program")).arg("-u").uid(OTHER).gid(OTHER).output();
    let user = ran.map(|ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned()).unwrap_or_default();
    [
        ("x", !user.is_empty()),
        ("s", user == "0"),
        ("d", File::open(root.join("null")).is_ok()),
        ("l", fs::read(root.join("link")).is_ok()),
        ("w", fs::write(root.join("written"), "").is_ok()),
    ]
    .into_iter()
    .map(|(letter, works)| if works { letter } else { "-" })
    .collect()
}

#[test]
fn restrictions_of_a_mount_are_in_force() {
    if !as_root() {
        return;
    }
    let Some(mut volume) = TestVolume::start(&plan()) else { return };
    furnish(&volume);
    assert_eq!(what_works(volume.path()), "xsdlw");
    for (options, expected) in [
        ("noexec", "--dlw"),
        ("nosuid", "x-dlw"),
        ("nodev", "xs-lw"),
        ("nosymfollow", "xsd-w"),
        ("nosuid,nodev,noexec,exec,ro", "x--l-"),
        ("user,async,diratime,exec,suid,dev,symfollow", "xsdlw"),
    ] {
        volume.unmount();
        volume.mount_with(&["-o", options]);
        assert_eq!(what_works(volume.path()), expected, "{options}");
    }
}

#[test]
fn options_that_are_not_in_force_are_refused_in_one_line() {
    let Some(mut volume) = TestVolume::create(&plan()) else { return };
    for option in ["sync", "dirsync", "strictatime", "norelatime", "lazytime", "nodiratime", "mand", "unheard_of"] {
        let said = volume.try_mount(&["-o", option]).unwrap_err();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(option), "{said}");
    }
}

fn remount(volume: &TestVolume, options: &str) -> Finished {
    // As mount(8) calls it: by the type that its table shows.
    let helper = volume.outside().join("mount.fuse.polymux");
    if !helper.exists() {
        symlink(env!("CARGO_BIN_EXE_polymux"), &helper).unwrap();
    }
    let mut command = Command::new(helper);
    command.args([&volume.name, text(volume.path()), "-o", options]);
    command.env("POLYMUX_CONFIG_DIR", volume.outside().join("config"));
    command.env("POLYMUX_RUNTIME_DIR", volume.outside().join("runtime"));
    run(&mut command)
}

#[test]
fn a_remount_changes_what_the_kernel_lets_programs_do() {
    if !as_root() {
        return;
    }
    let Some(mut volume) = TestVolume::start(&plan()) else { return };
    furnish(&volume);
    let root = volume.path().to_path_buf();
    for (options, expected) in [
        ("remount,ro", "xsdl-"),
        ("remount,noexec", "--dl-"),
        ("rw,remount,nosuid,relatime,user_id=0,group_id=0,default_permissions,allow_other", "--dlw"),
        ("remount,exec", "x-dlw"),
        ("remount,suid,nosymfollow", "xsd-w"),
        ("remount,symfollow", "xsdlw"),
    ] {
        remount(&volume, options).assert_success();
        assert_eq!(what_works(&root), expected, "{options}");
    }
    let file = File::create(root.join("open")).unwrap();
    let refused = remount(&volume, "remount,ro");
    assert!(!refused.is_success() && refused.text().contains("open for writing"), "{}", refused.text());
    assert_eq!(what_works(&root), "xsdlw");
    drop(file);
    for options in ["remount,noatime", "remount,passthrough=off", "remount,sync"] {
        let refused = remount(&volume, options);
        assert!(!refused.is_success(), "{options}");
        assert_eq!(refused.text().lines().count(), 1, "{}", refused.text());
    }
    volume.unmount();
    volume.mount_with(&["-o", "ro"]);
    let refused = remount(&volume, "remount,rw");
    assert!(!refused.is_success() && refused.text().contains("read-only"), "{}", refused.text());
}

#[test]
fn a_remount_of_what_is_no_volume_is_refused() {
    let Some(volume) = TestVolume::create(&plan()) else { return };
    let refused = remount(&volume, "remount,ro");
    assert!(!refused.is_success() && refused.text().contains("no volume is mounted on"), "{}", refused.text());
}
