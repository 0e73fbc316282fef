//! A native directory and a volume with the same files, and programs that run on both.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::asking::{granted, migrate};
use crate::mounted::native::text;
use crate::mounted::{Finished, Plan, Random, TestVolume, run_within, succeed};

const MIB: usize = 1 << 20;
/// Files on two tiers, which get leases.
const SPLIT: [&str; 3] = ["table", "other", "sparse"];
/// Open files of a process.
const OPEN_MAX: u64 = 1024;
const DEADLINE: Duration = Duration::from_secs(60);

/// Both directories, and the libraries as `make install-preload` lays them out.
pub struct Stage {
    pub volume: TestVolume,
    native: PathBuf,
    /// `bin` and `lib/polymux` below it.
    installed: PathBuf,
    /// The files as they are in the beginning.
    pristine: Tree,
}

/// As many open files as programs commonly may have, so that the limit can be raised for leases wherever this runs.
fn lower_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.current.map_or(Some(OPEN_MAX), |current| Some(current.min(OPEN_MAX)));
    setrlimit(Resource::Nofile, limit).expect("a limit can be lowered");
}

/// Writes the files of `cases.h` into a directory, in the place of all others there.
fn fill(directory: &Path) {
    if directory.exists() {
        succeed("chmod", ["-R", "u+rwX", text(directory)]);
        fs::remove_dir_all(directory).expect("removed");
    }
    fs::create_dir(directory).expect("made");
    let write = |name: &str, parts: &[(u64, Vec<u8>)]| {
        let file = File::create(directory.join(name)).expect("made");
        parts.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).expect("written"));
        file.sync_all().expect("synced");
    };
    let mut random = Random::new(5);
    write("table", &[(0, random.bytes(8 * MIB))]);
    write("other", &[(0, random.bytes(8 * MIB))]);
    write("sparse", &[(0, random.bytes(MIB)), (3 << 20, random.bytes(MIB))]);
    write("small", &[(0, random.bytes(1000))]);
    write("empty", &[]);
}

impl Stage {
    pub fn start() -> Option<Self> {
        lower_limit();
        let mut volume = TestVolume::create_with_options(&Plan::anywhere(), "leases = \"on\"\nmovers = 1")?;
        // Files that are read must stay on two tiers.
        volume.set_policy("static");
        volume.mount();
        let (native, installed) = (volume.outside().join("native"), volume.outside().join("installed"));
        let mut stage = Self { volume, native, installed, pristine: Tree::new() };
        stage.install();
        stage.fill();
        stage.pristine = tree_of(&stage.native);
        Some(stage)
    }

    /// The directory on the volume.
    pub fn mounted(&self) -> PathBuf {
        self.volume.path().join("files")
    }

    /// Both directories with their files as they were in the beginning.
    fn fill(&self) {
        fill(&self.native);
        fill(&self.mounted());
        for name in SPLIT {
            let path = self.mounted().join(name);
            migrate(&self.volume, &path, "slow", "2MiB-4MiB");
            self.volume.assert_is_split(&path);
            // Not before the bytes that it gave up are freed.
            drop(granted(&File::open(&path).expect("opened")));
        }
    }

    fn install(&self) {
        let tests = std::env::current_exe().expect("this test");
        let built = tests.parent().expect("a directory");
        let profile = built.parent().expect("a directory");
        let (programs, libraries) = (self.installed.join("bin"), self.libraries());
        fs::create_dir_all(&programs).expect("made");
        fs::create_dir_all(&libraries).expect("made");
        let copy = |from: PathBuf, to: PathBuf| {
            fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        };
        copy(built.join("libpolymux_direct.so"), libraries.join("libpolymux_direct.so"));
        copy(profile.join("libpolymux_preload.so"), libraries.join("libpolymux_preload.so"));
        copy(PathBuf::from(env!("CARGO_BIN_EXE_polymux")), programs.join("polymux"));
    }

    fn libraries(&self) -> PathBuf {
        self.installed.join("lib/polymux")
    }

    /// The preloaded library.
    pub fn preloaded(&self) -> PathBuf {
        self.libraries().join("libpolymux_preload.so")
    }

    /// The installed command.
    pub fn polymux(&self) -> PathBuf {
        self.installed.join("bin/polymux")
    }

    /// Compiles C sources of this directory into one program.
    pub fn compile(&self, sources: &[&str]) -> PathBuf {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload");
        let program = self.installed.join(Path::new(sources[0]).file_stem().expect("a name"));
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]).arg(&program);
        command.args(sources.iter().map(|source| directory.join(source)));
        run_within(&mut command, DEADLINE).assert_success();
        program
    }

    /// Runs a program natively.
    pub fn run_natively(&self, program: &Path, arguments: &[&str]) -> Finished {
        run_within(Command::new(program).args(arguments).current_dir(&self.native), DEADLINE)
    }

    /// Runs it on the volume under the library, whose report comes with it.
    pub fn run_past_the_mount(&self, program: &Path, arguments: &[&str]) -> (Finished, String) {
        let report = self.installed.join("report");
        let _ = fs::remove_file(&report);
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.mounted());
        command.env("LD_PRELOAD", self.preloaded()).env("POLYMUX_REPORT", &report);
        let finished = run_within(&mut command, DEADLINE);
        (finished, fs::read_to_string(&report).unwrap_or_default())
    }

    /// Runs a program on both sides, which must say and leave behind the same. Files that it changed are made anew. Returns the report.
    pub fn compare(&self, name: &str, program: &Path, arguments: &[&str]) -> String {
        let expected = self.run_natively(program, arguments);
        let (found, report) = self.run_past_the_mount(program, arguments);
        let of = |finished: &Finished| format!("{}\n{}", finished.text(), finished.status);
        assert_eq!(of(&found), of(&expected), "{name}: past the mount (left) and natively; {report}");
        let [found, expected] = [&self.mounted(), &self.native].map(|directory| tree_of(directory));
        assert!(found == expected, "{name}: {}", differences(&found, &expected));
        if expected != self.pristine {
            self.fill();
        }
        report
    }
}

/// One file of a tree: its mode, its names and its bytes. Bytes are compared as they are, because sums of them take long in a program that is not optimised.
#[derive(PartialEq, Eq)]
struct Entry {
    mode: u32,
    links: u64,
    content: Vec<u8>,
}

/// All files below a directory, by name; directories among them have no bytes.
type Tree = BTreeMap<PathBuf, Entry>;

fn tree_of(root: &Path) -> Tree {
    let (mut tree, mut directories) = (Tree::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            let facts = path.symlink_metadata().expect("a listed file has attributes");
            let is_directory = facts.is_dir();
            let content = if facts.is_file() { fs::read(&path).expect("it can be read") } else { Vec::new() };
            // The links of directories differ between file systems.
            let links = if is_directory { 1 } else { facts.nlink() };
            let name = path.strip_prefix(root).expect("it lies below").to_owned();
            tree.insert(name, Entry { mode: facts.mode(), links, content });
            if is_directory {
                directories.push(path);
            }
        }
    }
    tree
}

fn differences(found: &Tree, expected: &Tree) -> String {
    let names = found.keys().chain(expected.keys().filter(|name| !found.contains_key(*name)));
    let differing = names.filter(|name| found.get(*name) != expected.get(*name));
    let describe = |entry: Option<&Entry>| match entry {
        Some(entry) => format!("mode {:o}, {} names, {} bytes", entry.mode, entry.links, entry.content.len()),
        None => "missing".to_owned(),
    };
    let lines = differing.map(|name| {
        format!("{}: {}, natively {}", name.display(), describe(found.get(name)), describe(expected.get(name)))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a report tells of a file that was read past the mount.
pub fn has_direct_reads(report: &str) -> bool {
    report.contains(" directly")
}

/// A program in the user's path.
pub fn in_path(name: &str) -> PathBuf {
    let finished = run_within(Command::new("sh").args(["-c", &format!("command -v {name}")]), DEADLINE);
    PathBuf::from(OsStr::new(finished.stdout.trim()))
}
