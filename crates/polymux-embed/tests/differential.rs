//! Random calls on paths, on a volume and on a native file system: results, errors and final trees are equal. Paths are full of `.`, `..`,
//! slashes and symbolic links, because resolving them is done here and not by the kernel.

#[allow(dead_code, reason = "shared with other tests")]
mod common;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::{Random, TestVolume};
use polymux_embed::{Attributes, Errno, FileOptions, LastLink, NodeKind, RenameMode, SetAttributes, Volume};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};

/// Both trees lie so deep that `..` of the paths and of the links below does not leave the test.
const DEPTH: usize = 12;

const CALLS: usize = 8_000;

/// A path of up to so many names.
fn random_path(random: &mut Random, names_max: u64) -> String {
    let mut path = String::new();
    for number in 0..=random.below(names_max) {
        if number > 0 {
            path.push_str(random.of(&["/", "/", "/", "//"]));
        }
        path.push_str(random.of(&["a", "b", "c", "a", "b", "c", "d", ".", ".."]));
    }
    path.push_str(random.of(&["", "", "", "", "/"]));
    path
}

#[derive(Debug)]
enum Call {
    Make(String),
    Remove(String),
    Unlink(String),
    Node(String),
    Symlink(String, String),
    ReadSymlink(String),
    Link(String, String),
    Rename(String, String, RenameMode),
    Stat(String, LastLink),
    Mode(String, u32),
    Size(String, u64),
    Open(String, Way),
    List(String),
}

/// How a file is opened, and which bytes are written to it.
#[derive(Clone, Copy, Debug)]
struct Way {
    writes: Option<u8>,
    creates: bool,
    exclusive: bool,
    truncates: bool,
    appends: bool,
    no_follow: bool,
}

impl Call {
    fn random(random: &mut Random) -> Self {
        let path = random_path(random, 4);
        match random.below(17) {
            0..3 => Self::Make(path),
            3 => Self::Remove(path),
            4 => Self::Unlink(path),
            5 => Self::Node(path),
            6 | 7 => Self::Symlink(random_path(random, 2), path),
            8 => Self::ReadSymlink(path),
            9 => Self::Link(path, random_path(random, 4)),
            10 => {
                let mode = random.of(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
                Self::Rename(path, random_path(random, 4), mode)
            }
            11 => Self::Stat(path, random.of(&[LastLink::Follow, LastLink::Keep])),
            12 => Self::Mode(path, random.of(&[0o600, 0o755, 0o4711, 0o2770])),
            13 => Self::Size(path, random.below(20_000)),
            14 | 15 => {
                let mut chance = || random.below(3) == 0;
                let [creates, exclusive, truncates, appends, no_follow] = [(); 5].map(|()| chance());
                let writes = random.of(&[None, Some(b'x'), Some(b'y')]);
                Self::Open(path, Way { writes, creates, exclusive, truncates, appends, no_follow })
            }
            _ => Self::List(path),
        }
    }
}

/// Attributes that are equal on both sides.
fn shown(kind: FileType, permissions: u32, links: u64, size: u64) -> String {
    // Directories count their links and bytes differently on other file systems.
    let sizes = if kind == FileType::Directory { String::new() } else { format!(" {links} {size}") };
    format!("{kind:?} {permissions:o}{sizes}")
}

fn of_stat(stat: &Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    #[allow(clippy::useless_conversion, reason = "its width differs between processors")]
    let links = u64::from(stat.st_nlink);
    shown(kind, stat.st_mode & 0o7777, links, u64::try_from(stat.st_size).unwrap())
}

fn of_attributes(attributes: &Attributes) -> String {
    let kind = FileType::from_raw_mode(attributes.kind.type_bits());
    shown(kind, attributes.permissions, attributes.links.into(), attributes.size)
}

type Answer = Result<String, Errno>;

fn text(answer: impl Debug) -> String {
    format!("{answer:?}")
}

struct Native(PathBuf);

impl Native {
    fn apply(&self, call: &Call) -> Answer {
        self.call(call).map_err(|errno| Errno::from_raw(errno.raw_os_error()))
    }

    fn at(&self, path: &str) -> PathBuf {
        // Not `Path::join`, which drops slashes at the end.
        PathBuf::from(format!("{}/{path}", self.0.display()))
    }

    fn call(&self, call: &Call) -> rustix::io::Result<String> {
        let mode = Mode::from_raw_mode;
        let done = |()| String::new();
        match call {
            Call::Make(path) => rustix::fs::mkdir(self.at(path), mode(0o3755)).map(done),
            Call::Remove(path) => rustix::fs::rmdir(self.at(path)).map(done),
            Call::Unlink(path) => rustix::fs::unlink(self.at(path)).map(done),
            Call::Node(path) => rustix::fs::mknodat(CWD, self.at(path), FileType::Fifo, mode(0o644), 0).map(done),
            Call::Symlink(target, path) => rustix::fs::symlink(target.as_str(), self.at(path)).map(done),
            Call::ReadSymlink(path) => rustix::fs::readlink(self.at(path), Vec::new()).map(text),
            Call::Link(from, to) => rustix::fs::link(self.at(from), self.at(to)).map(done),
            Call::Rename(from, to, mode) => {
                let flags = match mode {
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags).map(done)
            }
            Call::Stat(path, last) => {
                let flags = if *last == LastLink::Keep { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
                rustix::fs::statat(CWD, self.at(path), flags).map(|stat| of_stat(&stat))
            }
            Call::Mode(path, permissions) => rustix::fs::chmod(self.at(path), mode(*permissions)).map(done),
            Call::Size(path, size) => truncate(&self.at(path), *size).map(done),
            Call::Open(path, way) => self.open(path, *way),
            Call::List(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let directory = rustix::fs::open(self.at(path), flags, Mode::empty())?;
                let names: Result<BTreeSet<Vec<u8>>, _> = rustix::fs::Dir::new(directory)?
                    .map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()))
                    .filter(|name| !name.as_ref().is_ok_and(|name| matches!(name.as_slice(), b"." | b"..")))
                    .collect();
                names.map(text)
            }
        }
    }

    fn open(&self, path: &str, way: Way) -> rustix::io::Result<String> {
        let mut flags = OFlags::NONBLOCK | if way.writes.is_some() { OFlags::RDWR } else { OFlags::RDONLY };
        flags.set(OFlags::CREATE, way.creates);
        flags.set(OFlags::EXCL, way.creates && way.exclusive);
        flags.set(OFlags::TRUNC, way.truncates && way.writes.is_some());
        flags.set(OFlags::APPEND, way.appends);
        flags.set(OFlags::NOFOLLOW, way.no_follow);
        let file = rustix::fs::open(self.at(path), flags, Mode::from_raw_mode(0o640))?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::Directory => return Err(rustix::io::Errno::ISDIR),
            // Pipes are not opened in a program.
            FileType::Fifo => return Err(rustix::io::Errno::NXIO),
            _ => {}
        }
        let mut content = [0; 64];
        let read = rustix::io::read(&file, &mut content)?;
        if let Some(byte) = way.writes {
            rustix::io::write(&file, &[byte; 100])?;
        }
        Ok(text((&content[..read], of_stat(&rustix::fs::fstat(&file)?))))
    }
}

/// truncate(2), which opens no pipe.
fn truncate(path: &Path, size: u64) -> rustix::io::Result<()> {
    let found = rustix::fs::stat(path)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Err(rustix::io::Errno::ISDIR),
        FileType::RegularFile => rustix::fs::ftruncate(rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?, size),
        _ => Err(rustix::io::Errno::INVAL),
    }
}

struct Embedded<'a>(&'a Volume, String);

impl Embedded<'_> {
    fn apply(&self, call: &Call) -> Answer {
        self.call(call).map_err(|error| error.errno())
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.1)
    }

    fn call(&self, call: &Call) -> polymux_embed::Result<String> {
        let volume = self.0;
        let done = |()| String::new();
        match call {
            Call::Make(path) => volume.make_directory(self.at(path), 0o3755).map(|_| String::new()),
            Call::Remove(path) => volume.remove_directory(self.at(path)).map(done),
            Call::Unlink(path) => volume.unlink(self.at(path)).map(done),
            Call::Node(path) => volume.make_node(self.at(path), NodeKind::Fifo, 0o644).map(|_| String::new()),
            Call::Symlink(target, path) => volume.make_symlink(target, self.at(path)).map(|_| String::new()),
            Call::ReadSymlink(path) => {
                let target = volume.read_symlink(self.at(path))?;
                Ok(text(std::ffi::CString::new(target.as_os_str().as_bytes()).unwrap()))
            }
            Call::Link(from, to) => volume.link(self.at(from), self.at(to)).map(|_| String::new()),
            Call::Rename(from, to, mode) => volume.rename(self.at(from), self.at(to), *mode).map(done),
            Call::Stat(path, last) => volume.attributes(self.at(path), *last).map(|found| of_attributes(&found)),
            Call::Mode(path, permissions) => {
                let change = SetAttributes { permissions: Some(*permissions), ..SetAttributes::default() };
                volume.set_attributes(self.at(path), LastLink::Follow, &change).map(|_| String::new())
            }
            Call::Size(path, size) => {
                let change = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                volume.set_attributes(self.at(path), LastLink::Follow, &change).map(|_| String::new())
            }
            Call::Open(path, way) => self.open(path, *way),
            Call::List(path) => {
                let directory = volume.open_directory(self.at(path), LastLink::Follow)?;
                let names: polymux_embed::Result<BTreeSet<Vec<u8>>> =
                    (&directory).map(|entry| entry.map(|entry| entry.name)).collect();
                names.map(text)
            }
        }
    }

    fn open(&self, path: &str, way: Way) -> polymux_embed::Result<String> {
        let mut options = FileOptions::new().read();
        if way.writes.is_some() {
            options = options.write();
        }
        if way.creates {
            options = if way.exclusive { options.create_new(0o640) } else { options.create(0o640) };
        }
        if way.truncates && way.writes.is_some() {
            options = options.truncate();
        }
        if way.appends {
            options = options.append();
        }
        if way.no_follow {
            options = options.no_follow();
        }
        let file = self.0.open_file(self.at(path), &options)?;
        let mut content = [0; 64];
        let read = file.read(&mut content)?;
        if let Some(byte) = way.writes {
            file.write(&[byte; 100])?;
        }
        let shown = text((&content[..read], of_attributes(&file.attributes()?)));
        file.close()?;
        Ok(shown)
    }
}

fn compare(seed: u64) {
    let made = TestVolume::make(2);
    let volume = made.open();
    let deep = (0..DEPTH).map(|number| format!("/deep-{number}")).collect::<String>();
    let native = Native(PathBuf::from(format!("{}/native{deep}", made.directory().display())));
    std::fs::create_dir_all(&native.0).unwrap();
    for depth in 1..=DEPTH {
        let path: String = (0..depth).map(|number| format!("/deep-{number}")).collect();
        volume.make_directory(path, 0o755).unwrap();
    }
    let embedded = Embedded(&volume, deep);
    let mut random = Random(seed);
    let mut history: Vec<String> = Vec::new();
    let mut succeeded = 0;
    let mut errors = BTreeSet::new();
    for number in 0..CALLS {
        let call = Call::random(&mut random);
        let (expected, found) = (native.apply(&call), embedded.apply(&call));
        history.push(format!("{number}: {call:?} -> {expected:?}"));
        match &expected {
            Ok(_) => succeeded += 1,
            Err(errno) => drop(errors.insert(errno.raw())),
        }
        if expected != found {
            let shown = history[history.len().saturating_sub(25)..].join("\n");
            panic!("seed {seed}: natively {expected:?}, in the program {found:?}; last calls:\n{shown}");
        }
    }
    assert!(succeeded > CALLS / 10, "only {succeeded} calls succeeded");
    assert!(errors.len() >= 7, "only these errors came: {errors:?}");
    let expected = tree(&native, "");
    assert_eq!(expected.len(), expected.iter().collect::<BTreeSet<_>>().len());
    for (path, shown) in expected {
        let found = embedded.apply(&Call::Stat(path.clone(), LastLink::Keep));
        assert_eq!(found, Ok(shown), "seed {seed}: {path}");
        let listed = [native.apply(&Call::List(path.clone())), embedded.apply(&Call::List(path.clone()))];
        assert_eq!(listed[0], listed[1], "seed {seed}: names in {path}");
    }
    volume.close().unwrap();
}

/// Every path of the native tree below `path`, with the attributes there.
fn tree(native: &Native, path: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(native.at(path)).unwrap() {
        let entry = entry.unwrap();
        let below = format!("{path}/{}", entry.file_name().to_str().unwrap());
        let stat = rustix::fs::lstat(native.at(&below)).unwrap();
        found.push((below.clone(), of_stat(&stat)));
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            found.extend(tree(native, &below));
        }
    }
    found
}

#[test]
fn a_volume_in_a_program_and_a_native_file_system_answer_alike() {
    for seed in 1..=4 {
        compare(seed);
    }
}
