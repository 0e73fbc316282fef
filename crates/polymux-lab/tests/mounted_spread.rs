//! The policies that exist for comparison, through the command and plain mounts.

#[path = "../../polymux/tests/mounted/mod.rs"]
mod mounted;

use std::fs;

use mounted::native::text;
use mounted::{Plan, TestVolume};

fn create(policy: &str) -> Option<TestVolume> {
    let volume = TestVolume::create(&Plan::anywhere())?;
    volume.set_policy(policy);
    Some(volume)
}

#[test]
fn parts_of_a_file_written_by_threads_at_once_are_what_they_wrote_while_it_is_moved() {
    for policy in ["poly-static", "poly-climb"] {
        let Some(mut volume) = create(policy) else { return };
        volume.mount();
        mounted::shared_file::write_while_it_is_moved(&volume);
    }
}

#[test]
fn the_daemon_that_serves_a_mount_in_the_background_has_the_policies_too() {
    let Some(volume) = create("poly-climb") else { return };
    let mount = volume.polymux(["mount", &volume.name, text(volume.path())]);
    mount.assert_success();
    let path = volume.path().join("file");
    let written = fs::write(&path, "some bytes");
    let explained = volume.polymux(["explain", text(&path)]);
    let listed = volume.polymux(["policy", "list", &volume.name]);
    // It is unmounted before anything can fail, because no guard does that.
    volume.polymux(["umount", text(volume.path())]).assert_success();
    written.expect("written");
    assert!(explained.stdout.contains("poly-climb"), "{}", explained.text());
    let names = ["poly-static", "poly-dynamic", "poly-climb", "promote-always"];
    assert!(names.iter().all(|name| listed.stdout.contains(name)), "{}", listed.text());
    let said = [mount, listed].map(|finished| finished.stderr).concat();
    assert!(!said.contains("instead"), "{said}");
}
