//! overlayfs with its upper and its work directory on a volume, as containers have it; and the features it needs: whiteouts,
//! kinds in listings, files without a name, `trusted.` attributes.

mod mounted;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mounted::command::shell;
use mounted::{FileSystemKind, NativeMount, Plan, TestVolume, is_root, run, skip, succeed};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// An overlay file system, unmounted when dropped.
struct Overlay {
    path: PathBuf,
}

impl Overlay {
    /// Mounts it at `base/merged` over `base/lower`, with changes on the file system at `upper`.
    fn new(base: &Path, upper: &Path, options: &str) -> Self {
        for directory in [base.join("lower"), base.join("merged"), upper.join("upper"), upper.join("work")] {
            fs::create_dir_all(directory).expect("made");
        }
        let overlay = Self { path: base.join("merged") };
        let options = format!(
            "lowerdir={},upperdir={},workdir={}{options}",
            base.join("lower").display(),
            upper.join("upper").display(),
            upper.join("work").display()
        );
        let path = overlay.path.to_str().expect("a path of plain text");
        succeed("mount", ["-t", "overlay", "overlay", "-o", &options, path]);
        overlay
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = run(std::process::Command::new("umount").arg(&self.path));
    }
}

/// A lower layer of files, directories, links and special files.
const LOWER: &str = "
    mkdir -p lower/kept lower/removed/deep lower/moved/deep lower/replaced lower/remade
    for name in kept/file removed/file removed/deep/file moved/file moved/deep/file replaced/file remade/file changed renamed gone
    do echo \"lower $name\" > lower/$name; done
    ln -s kept/file lower/symlink; ln lower/changed lower/hardlink; mkfifo lower/fifo; mknod lower/null c 1 3
    cp lower/changed lower/capable; cp lower/changed lower/shadow; chgrp 42 lower/shadow; chmod 2755 lower/shadow
    chmod 4755 lower/changed; setfattr -n user.colour -v blue lower/changed
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 lower/capable";

/// Changes of a container to its root, from building an image to an upgrade of packages.
const CHANGES: &str = "
    set -e
    echo more >> changed; rm gone; touch -d @1000000000 capable; mv shadow shadow-to; mv renamed renamed-to; rm -r removed
    mv moved moved-to; echo new > moved-to/deep/new; mv moved-to/file moved-to/deep/other
    rm -r remade; mkdir remade; echo remade > remade/new
    mkdir fresh; echo fresh > fresh/file; mv fresh/file kept/file; rmdir fresh; mkdir fresh
    rm symlink; ln -s elsewhere symlink; ln kept/file linked; mv fifo replaced/fifo; rm null
    mkdir -p replaced2/sub; mv -T replaced2 exchanged; chown 12:34 exchanged; chmod 2751 exchanged
    touch -d @1000000000 replaced/file; setfattr -n user.size -v large replaced/file
    rm replaced/file; mkdir replaced/file; rmdir replaced/file; echo again > replaced/file";

/// A listing of a tree: kinds, modes, owners, links, sizes, contents, attributes.
const LOOK: &str = "
    find . -mindepth 1 \\( -type d -printf '%p %y %m %U:%G\\n' -o -printf '%p %y %m %U:%G %n %s %l\\n' \\) | sort
    find . -type f | sort | while read name; do echo \"$name: $(cat $name)\"; getfattr -d -m '^(user|security)' $name; done";

/// The content of an overlay over `LOWER` after `CHANGES`, then after it was mounted anew.
fn changed_overlay(base: &Path, upper: &Path, options: &str) -> [String; 2] {
    shell(base, LOWER);
    let overlay = Overlay::new(base, upper, options);
    shell(&overlay.path, CHANGES);
    let seen = shell(&overlay.path, LOOK);
    drop(overlay);
    let overlay = Overlay::new(base, upper, options);
    [seen, shell(&overlay.path, LOOK)]
}

#[test]
fn an_overlay_with_its_upper_layer_on_a_volume_is_as_one_on_ext4() {
    if !is_root() {
        return skip("overlayfs is mounted by root");
    }
    for options in ["", ",redirect_dir=on", ",redirect_dir=on,metacopy=on", ",volatile"] {
        let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
        let native = volume.outside().join("native");
        fs::create_dir(&native).unwrap();
        let ext4 = NativeMount::new(&native, "ext4", FileSystemKind::Ext4, 64);
        let beside = volume.outside().join("beside");
        fs::create_dir(&beside).unwrap();
        // A volatile overlay refuses to be mounted a second time.
        if options == ",volatile" {
            let overlay = Overlay::new(&beside, volume.path(), options);
            shell(&overlay.path, "echo text > file && mv file other && rm other");
            continue;
        }
        let expected = changed_overlay(&native, ext4.path(), options);
        let found = changed_overlay(&beside, volume.path(), options);
        assert_eq!(found[0], expected[0], "options {options:?}");
        assert_eq!(found, expected, "options {options:?}, mounted anew");
        let whiteout = volume.path().join("upper/gone").symlink_metadata().expect("a removed name is a whiteout");
        assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    }
}

#[test]
fn a_rename_leaves_a_whiteout_where_it_is_asked_to_as_on_ext4() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    if !is_root() {
        return skip("ext4 is mounted by root");
    }
    let native = NativeMount::new(volume.outside(), "ext4", FileSystemKind::Ext4, 64);
    let mut seen = Vec::new();
    for root in [volume.path(), native.path()] {
        let path = |name: &str| root.join(name);
        shell(
            root,
            "mkdir -p a/sub b/empty; chmod 777 a b; chmod g+s b; chown 0:7 b; echo 1 > a/one; echo 2 > a/two; echo 3 > b/three",
        );
        shell(root, "setfacl -d -m u:9:rwx a 2> /dev/null || true");
        let rename = |from: &str, to: &str, flags: RenameFlags| {
            renameat_with(CWD, path(from), CWD, path(to), flags | RenameFlags::WHITEOUT)
                .map_err(|errno| errno.raw_os_error())
        };
        let none = RenameFlags::empty();
        let outcomes = [
            rename("a/one", "a/moved", none),
            rename("a/two", "b/three", none),
            rename("a/sub", "b/empty", none),
            rename("b/three", "a/moved", RenameFlags::NOREPLACE),
            rename("b/three", "b/new", RenameFlags::NOREPLACE),
            rename("a/moved", "b/new", RenameFlags::EXCHANGE),
            rename("a/missing", "b/new", none),
            rename("b/empty", "b/new", none),
            rename("a/moved", "a/moved", none),
        ];
        let look =
            "for d in a b; do find $d -printf '%p %y %m %U:%G %n\\n' | sort; stat -c '%n %F %t:%T' $d/*; done; ls a b";
        seen.push((outcomes, shell(root, look)));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].0.iter().filter(|outcome| outcome.is_ok()).count(), 5);
    let before = shell(volume.path(), "ls -lR --time-style=full-iso");
    volume.unmount();
    volume.mount();
    assert_eq!(shell(volume.path(), "ls -lR --time-style=full-iso"), before);
    fs::remove_file(volume.path().join("a/one")).expect("a whiteout is removed like any file");
}

#[test]
fn any_user_who_may_rename_may_leave_a_whiteout() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    if !is_root() {
        return skip("another user takes part");
    }
    shell(volume.path(), "mkdir theirs && chown 1234:1234 theirs");
    let script = "import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
os.setgid(1234); os.setuid(1234)
open('theirs/file', 'w').close()
if libc.renameat2(-100, b'theirs/file', -100, b'theirs/moved', 4): sys.exit(os.strerror(ctypes.get_errno()))
";
    fs::write(volume.outside().join("rename.py"), script).unwrap();
    shell(volume.path(), &format!("python3 {}/rename.py", volume.outside().display()));
    let whiteout = volume.path().join("theirs/file").symlink_metadata().unwrap();
    assert!(whiteout.file_type().is_char_device());
    assert_eq!((whiteout.uid(), whiteout.gid(), whiteout.mode() & 0o7777, whiteout.rdev()), (1234, 1234, 0, 0));
}
