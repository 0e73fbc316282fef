//! Every kind of request that changes or tells something, made once by a program.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};

use crate::mounted::succeed;

/// Names in a directory.
pub type Names = &'static [&'static str];

/// Prepares something in a directory, calls its second argument, makes a request at once, and checks that it took effect once.
/// Returns the names that it was about.
type Check = fn(&Path, &dyn Fn()) -> Names;

/// Kinds of requests, by the name that the daemon has for them, each with a check of its visible effect.
pub const CHECKS: &[(&str, Check)] = &[
    ("lookup", looks_up),
    ("mknod", makes_a_pipe),
    ("mkdir", makes_a_directory),
    ("symlink", makes_a_symlink),
    ("link", links),
    ("create", creates),
    ("tmpfile", creates_without_a_name),
    ("unlink", unlinks),
    ("unlink", unlinks_one_of_two_names),
    ("rmdir", removes_a_directory),
    ("rename", renames),
    ("rename", renames_over_another),
    ("rename2", renames_without_replacing),
    ("rename2", exchanges),
    ("rename2", leaves_a_whiteout),
    ("setxattr", makes_an_attribute),
    ("setxattr", replaces_an_attribute),
    ("removexattr", removes_an_attribute),
    ("setattr", changes_a_mode),
    ("setattr", truncates),
    ("open", opens_and_empties),
    ("write", writes_and_syncs),
    ("write", writes_past_the_cache),
    ("fsync", syncs),
    ("fallocate", punches),
    ("copy_file_range|copy_file_range_64", copies),
    ("read", reads_past_the_cache),
    ("readdirplus", lists),
    ("ioctl", reads_a_flag),
];

/// The state behind names in a directory: inode, mode, links, bytes and an attribute. The kernel reports its cached state, and lists
/// nothing, which would correct it.
pub fn state(root: &Path, names: Names) -> Vec<String> {
    let of_name = |name: &&str| {
        let path = root.join(name);
        let Ok(found) = fs::symlink_metadata(&path) else { return format!("{name} is missing") };
        let bytes = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let sum = bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let (ino, mode, links, length) = (found.ino(), found.mode(), found.nlink(), bytes.len());
        format!("{name}: {ino} {mode:o} {links} {length} {sum:x} {:?}", attribute(&path))
    };
    names.iter().map(of_name).collect()
}

fn new_file(path: &Path, text: &[u8]) -> File {
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all(text).unwrap();
    file.sync_all().unwrap();
    file
}

fn ino(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn names(root: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn looks_up(root: &Path, begin: &dyn Fn()) -> Names {
    begin();
    assert!(!root.join("missing").exists());
    &["missing"]
}

fn makes_a_pipe(root: &Path, begin: &dyn Fn()) -> Names {
    begin();
    rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(fs::metadata(root.join("pipe")).unwrap().file_type().is_fifo());
    &["pipe"]
}

fn makes_a_directory(root: &Path, begin: &dyn Fn()) -> Names {
    let links = fs::metadata(root).unwrap().nlink();
    begin();
    fs::create_dir(root.join("made")).unwrap();
    assert_eq!(fs::create_dir(root.join("made")).unwrap_err().raw_os_error(), Some(libc::EEXIST));
    assert_eq!(fs::metadata(root).unwrap().nlink(), links + 1);
    &["made"]
}

fn makes_a_symlink(root: &Path, begin: &dyn Fn()) -> Names {
    begin();
    symlink("target", root.join("link")).unwrap();
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("target"));
    &["link"]
}

fn links(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("file"), b"text");
    begin();
    fs::hard_link(root.join("file"), root.join("link")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 2);
    assert_eq!(ino(&root.join("link")), ino(&root.join("file")));
    &["file", "link"]
}

fn creates(root: &Path, begin: &dyn Fn()) -> Names {
    begin();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(root.join("file")).unwrap();
    file.write_all(b"text").unwrap();
    drop(file);
    assert_eq!(fs::read(root.join("file")).unwrap(), b"text");
    assert_eq!(fs::metadata(root.join("file")).unwrap().nlink(), 1);
    &["file"]
}

fn creates_without_a_name(root: &Path, begin: &dyn Fn()) -> Names {
    begin();
    let mut file = File::from(rustix::fs::open(root, OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU).unwrap());
    file.write_all(b"text").unwrap();
    let mut read = [0; 4];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!((&read, names(root).len()), (b"text", 0));
    &[]
}

fn unlinks(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("file"), b"text");
    begin();
    fs::remove_file(root.join("file")).unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), names(root).len()), (0, 0));
    let mut read = [0; 4];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"text");
    &["file"]
}

fn unlinks_one_of_two_names(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("file"), b"text");
    fs::hard_link(root.join("file"), root.join("link")).unwrap();
    begin();
    fs::remove_file(root.join("file")).unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), names(root)), (1, vec!["link".to_owned()]));
    &["file", "link"]
}

fn removes_a_directory(root: &Path, begin: &dyn Fn()) -> Names {
    fs::create_dir(root.join("gone")).unwrap();
    let links = fs::metadata(root).unwrap().nlink();
    begin();
    fs::remove_dir(root.join("gone")).unwrap();
    assert_eq!((fs::metadata(root).unwrap().nlink(), names(root).len()), (links - 1, 0));
    &["gone"]
}

fn renames(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("old"), b"text");
    begin();
    fs::rename(root.join("old"), root.join("new")).unwrap();
    assert_eq!((ino(&root.join("new")), names(root)), (file.metadata().unwrap().ino(), vec!["new".to_owned()]));
    &["old", "new"]
}

fn renames_over_another(root: &Path, begin: &dyn Fn()) -> Names {
    let (old, new) = (new_file(&root.join("old"), b"old"), new_file(&root.join("new"), b"new"));
    begin();
    fs::rename(root.join("old"), root.join("new")).unwrap();
    assert_eq!((ino(&root.join("new")), names(root)), (old.metadata().unwrap().ino(), vec!["new".to_owned()]));
    assert_eq!((old.metadata().unwrap().nlink(), new.metadata().unwrap().nlink()), (1, 0));
    &["old", "new"]
}

fn renames_without_replacing(root: &Path, begin: &dyn Fn()) -> Names {
    drop(new_file(&root.join("old"), b"text"));
    begin();
    rustix::fs::renameat_with(CWD, root.join("old"), CWD, root.join("new"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(root), ["new"]);
    &["old", "new"]
}

fn exchanges(root: &Path, begin: &dyn Fn()) -> Names {
    let (a, b) = (root.join("a"), root.join("b"));
    drop((new_file(&a, b"a"), new_file(&b, b"b")));
    begin();
    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    &["a", "b"]
}

fn leaves_a_whiteout(root: &Path, begin: &dyn Fn()) -> Names {
    let old = ino_of_new(&root.join("old"));
    begin();
    let renamed = rustix::fs::renameat_with(CWD, root.join("old"), CWD, root.join("new"), RenameFlags::WHITEOUT);
    if renamed == Err(rustix::io::Errno::PERM) {
        // Without rights to make devices the kernel asks nothing.
        assert!(!crate::mounted::is_root());
        drop(fs::metadata(root.join("missing")));
        return &[];
    }
    renamed.unwrap();
    assert_eq!(ino(&root.join("new")), old);
    assert!(fs::symlink_metadata(root.join("old")).unwrap().file_type().is_char_device());
    &["old", "new"]
}

fn ino_of_new(path: &Path) -> u64 {
    new_file(path, b"text").metadata().unwrap().ino()
}

fn attribute(path: &Path) -> Result<Vec<u8>, rustix::io::Errno> {
    let mut value = vec![0; 10];
    let length = rustix::fs::getxattr(path, "user.one", &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

fn makes_an_attribute(root: &Path, begin: &dyn Fn()) -> Names {
    begin();
    rustix::fs::setxattr(root, "user.one", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(attribute(root).unwrap(), b"1");
    &["."]
}

fn replaces_an_attribute(root: &Path, begin: &dyn Fn()) -> Names {
    rustix::fs::setxattr(root, "user.one", b"1", XattrFlags::CREATE).unwrap();
    begin();
    rustix::fs::setxattr(root, "user.one", b"2", XattrFlags::REPLACE).unwrap();
    assert_eq!(attribute(root).unwrap(), b"2");
    &["."]
}

fn removes_an_attribute(root: &Path, begin: &dyn Fn()) -> Names {
    rustix::fs::setxattr(root, "user.one", b"1", XattrFlags::CREATE).unwrap();
    begin();
    rustix::fs::removexattr(root, "user.one").unwrap();
    assert_eq!(attribute(root), Err(rustix::io::Errno::NODATA));
    &["."]
}

fn changes_a_mode(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("file"), b"text");
    begin();
    file.set_permissions(fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o751);
    &["file"]
}

fn truncates(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("file"), &[1; 100_000]);
    begin();
    file.set_len(50_001).unwrap();
    assert!(fs::read(root.join("file")).unwrap() == [1; 50_001]);
    &["file"]
}

fn opens_and_empties(root: &Path, begin: &dyn Fn()) -> Names {
    drop(new_file(&root.join("file"), &[1; 100_000]));
    begin();
    let mut file = OpenOptions::new().write(true).truncate(true).open(root.join("file")).unwrap();
    file.write_all(b"new").unwrap();
    assert_eq!(fs::read(root.join("file")).unwrap(), b"new");
    &["file"]
}

fn writes_and_syncs(root: &Path, begin: &dyn Fn()) -> Names {
    let mut file = new_file(&root.join("file"), b"");
    begin();
    file.write_all(&[7; 300_000]).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(root.join("file")).unwrap() == [7; 300_000]);
    &["file"]
}

/// A page in memory at an address that direct I/O takes.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn writes_past_the_cache(root: &Path, begin: &dyn Fn()) -> Names {
    drop(new_file(&root.join("file"), &[1; 8192]));
    let direct = libc::O_DIRECT | libc::O_APPEND;
    let mut file = OpenOptions::new().write(true).custom_flags(direct).open(root.join("file")).unwrap();
    begin();
    file.write_all(&Page([2; 4096]).0).unwrap();
    assert!(fs::read(root.join("file")).unwrap() == [[1; 4096], [1; 4096], [2; 4096]].concat(), "appended once");
    &["file"]
}

fn syncs(root: &Path, begin: &dyn Fn()) -> Names {
    let mut file = new_file(&root.join("file"), b"first ");
    file.write_all(b"second").unwrap();
    begin();
    file.sync_all().unwrap();
    assert_eq!(fs::read(root.join("file")).unwrap(), b"first second");
    &["file"]
}

fn punches(root: &Path, begin: &dyn Fn()) -> Names {
    let file = new_file(&root.join("file"), &[1; 12288]);
    begin();
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096).unwrap();
    assert!(fs::read(root.join("file")).unwrap() == [[1; 4096], [0; 4096], [1; 4096]].concat());
    &["file"]
}

fn copies(root: &Path, begin: &dyn Fn()) -> Names {
    let (from, to) = (new_file(&root.join("from"), &[3; 100_000]), new_file(&root.join("to"), b""));
    begin();
    let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 100_000).unwrap();
    assert!(copied > 0 && fs::read(root.join("to")).unwrap() == vec![3; copied]);
    &["from", "to"]
}

fn reads_past_the_cache(root: &Path, begin: &dyn Fn()) -> Names {
    drop(new_file(&root.join("file"), &[5; 4096]));
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(root.join("file")).unwrap();
    begin();
    let mut page = Page([0; 4096]);
    assert_eq!(file.read(&mut page.0).unwrap(), 4096);
    assert!(page.0 == [5; 4096]);
    &["file"]
}

fn lists(root: &Path, begin: &dyn Fn()) -> Names {
    let expected: Vec<_> = (0..300).map(|number| format!("{number:03}")).collect();
    expected.iter().for_each(|name| drop(File::create(root.join(name)).unwrap()));
    begin();
    assert_eq!(names(root), expected);
    &["000", "299"]
}

fn reads_a_flag(root: &Path, begin: &dyn Fn()) -> Names {
    drop(new_file(&root.join("file"), b"text"));
    let path = root.join("file");
    succeed("chattr", ["+d", path.to_str().unwrap()]);
    begin();
    assert!(succeed("lsattr", [path.to_str().unwrap()]).split_whitespace().next().unwrap().contains('d'));
    &["file"]
}
