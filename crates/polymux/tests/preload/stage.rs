//! A native directory and a volume with the same files, and programs that run on both.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::asking::{granted, has_leases_for_changing_files, migrate};
use crate::libraries::{install_libraries, lower_limit};
use crate::mounted::native::text;
use crate::mounted::{Finished, Plan, Random, TestVolume, run_within, succeed};

const MIB: usize = 1 << 20;
/// All files.
const NAMES: [&str; 5] = ["table", "other", "sparse", "small", "empty"];
/// Those on two tiers, which get leases.
const SPLIT: [&str; 3] = ["table", "other", "sparse"];
const DEADLINE: Duration = Duration::from_secs(60);

/// Both directories, and the libraries as `make install-preload` lays them out.
pub struct Stage {
    pub volume: TestVolume,
    native: PathBuf,
    /// `bin` and `lib/polymux` below it.
    installed: PathBuf,
    preloaded: PathBuf,
    /// The files as they are in the beginning.
    pristine: Tree,
}

/// Parts of a file of `cases.h`: offsets and bytes.
fn parts_of(name: &str) -> Vec<(u64, Vec<u8>)> {
    match name {
        "table" => vec![(0, Random::new(5).bytes(8 * MIB))],
        "other" => vec![(0, Random::new(6).bytes(8 * MIB))],
        "sparse" => vec![(0, Random::new(7).bytes(MIB)), (3 << 20, Random::new(8).bytes(MIB))],
        "small" => vec![(0, Random::new(9).bytes(1000))],
        _ => Vec::new(),
    }
}

/// Makes a file of `cases.h` anew; others are removed.
fn restore(directory: &Path, name: &str) {
    let path = directory.join(name);
    if let Ok(facts) = path.symlink_metadata() {
        let removed = if facts.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.expect("removed");
    }
    if NAMES.contains(&name) {
        let file = File::create(path).expect("made");
        parts_of(name).iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).expect("written"));
        file.sync_all().expect("synced");
    }
}

impl Stage {
    /// On a mount that collects writes: files that change have no leases.
    pub fn start() -> Option<Self> {
        Self::start_with("leases = \"on\"\nmovers = 1")
    }

    /// On a mount where files that change have leases.
    pub fn start_for_changes() -> Option<Self> {
        if !has_leases_for_changing_files() {
            return None;
        }
        Self::start_with("leases = \"on\"\nmovers = 1\nio = \"passthrough\"")
    }

    fn start_with(options: &str) -> Option<Self> {
        lower_limit();
        let mut volume = TestVolume::create_with_options(&Plan::anywhere(), options)?;
        // Files that are read must stay on two tiers.
        volume.set_policy("static");
        volume.mount();
        let (native, installed) = (volume.outside().join("native"), volume.outside().join("installed"));
        let (preloaded, programs) = (install_libraries(&installed.join("lib/polymux")), installed.join("bin"));
        fs::create_dir(&programs).expect("made");
        fs::copy(env!("CARGO_BIN_EXE_polymux"), programs.join("polymux")).expect("copied");
        let mut stage = Self { volume, native, installed, preloaded, pristine: Tree::new() };
        [&stage.native, &stage.mounted()].into_iter().for_each(|directory| fs::create_dir(directory).expect("made"));
        stage.fill(&NAMES);
        stage.pristine = tree_of(&stage.native);
        Some(stage)
    }

    /// The directory on the volume.
    pub fn mounted(&self) -> PathBuf {
        self.volume.path().join("files")
    }

    /// Makes files anew in both directories, as they were in the beginning.
    fn fill(&self, names: &[&str]) {
        for directory in [&self.native, &self.mounted()] {
            succeed("chmod", ["-R", "u+rwX", text(directory)]);
            names.iter().for_each(|name| restore(directory, name));
        }
        for name in SPLIT.into_iter().filter(|name| names.contains(name)) {
            let path = self.mounted().join(name);
            migrate(&self.volume, &path, "slow", "2MiB-4MiB");
            self.volume.assert_is_split(&path);
            // Not before the bytes that it gave up are freed.
            drop(granted(&File::open(&path).expect("opened")));
        }
    }

    /// The preloaded library.
    pub fn preloaded(&self) -> &Path {
        &self.preloaded
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

    /// Runs a program on both sides, which must say and leave behind the same. Files that it changed are made anew. Returns the report, or how the sides differ.
    pub fn compare(&self, name: &str, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let expected = self.run_natively(program, arguments);
        let (found, report) = self.run_past_the_mount(program, arguments);
        let of = |finished: &Finished| format!("{}\n{}", finished.text(), finished.status);
        let said = [of(&found), of(&expected)];
        let [found, expected] = [&self.mounted(), &self.native].map(|directory| tree_of(directory));
        let all = found.keys().chain(expected.keys()).chain(self.pristine.keys());
        let is_changed = |name: &&PathBuf| {
            let pristine = self.pristine.get(*name);
            found.get(*name) != pristine || expected.get(*name) != pristine
        };
        // Whole directories with all that lies in them.
        let changed = all.filter(is_changed).filter_map(|name| name.iter().next()?.to_str());
        self.fill(&changed.collect::<BTreeSet<&str>>().into_iter().collect::<Vec<_>>());
        if said[0] != said[1] {
            return Err(format!("{name}: past the mount:\n{}\nnatively:\n{}\nreport: {report}", said[0], said[1]));
        }
        if found != expected {
            return Err(format!("{name}: {}", differences(&found, &expected)));
        }
        Ok(report)
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

/// Whether a report tells of a file that was written past the mount.
pub fn has_direct_writes(report: &str) -> bool {
    let after_writes = |line: &str| line.split_once("writes: ").is_some_and(|(_, writes)| has_direct_reads(writes));
    report.lines().any(after_writes)
}

/// A program in the user's path.
pub fn in_path(name: &str) -> PathBuf {
    let finished = run_within(Command::new("sh").args(["-c", &format!("command -v {name}")]), DEADLINE);
    PathBuf::from(OsStr::new(finished.stdout.trim()))
}
