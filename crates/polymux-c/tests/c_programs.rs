//! Programs in C and Python that use the library as their authors would.

#[path = "../../polymux-embed/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{NAME, TestVolume};
use polymux_embed::{FileOptions, LastLink};

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library that cargo built.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libpolymux_c.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// A directory with the library by the names under which `make install-library` installs it.
fn installed(volume: &TestVolume) -> PathBuf {
    let directory = volume.directory().join("lib");
    if std::fs::create_dir(&directory).is_ok() {
        for name in ["libpolymux.so", "libpolymux.so.1"] {
            std::os::unix::fs::symlink(library(), directory.join(name)).unwrap();
        }
    }
    directory
}

fn compile(volume: &TestVolume, path: &str) -> PathBuf {
    compile_with(volume, path, &[])
}

fn compile_with(volume: &TestVolume, path: &str, options: &[&str]) -> PathBuf {
    let program = volume.directory().join(Path::new(path).file_stem().unwrap());
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-O1"]).args(options).arg("-o").arg(&program);
    command.arg(source(path)).arg("-I").arg(source("include"));
    command.arg("-L").arg(installed(volume)).arg("-lpolymux");
    let output = command.output().expect("cc is needed: scripts/install-dependencies.sh test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A program that finds the library and the volume.
fn command(volume: &TestVolume, program: &OsStr) -> Command {
    let [configurations, locks] = volume.directories();
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", installed(volume)).env("LIBPOLYMUX", library());
    command.env("POLYMUX_CONFIG_DIR", configurations).env("POLYMUX_RUNTIME_DIR", locks).env("POLYMUX_VOLUME", NAME);
    command.env("POLYMUX_MEMORY_DIR", volume.memory());
    command
}

fn run<S: AsRef<OsStr>>(volume: &TestVolume, program: &OsStr, arguments: &[S], input: &[u8]) -> Output {
    // None of them waits for anything but the disk.
    let mut command = command(volume, OsStr::new("timeout"));
    command.arg("300").arg(program).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn every_function_does_what_the_header_says() {
    let volume = TestVolume::make(2);
    let program = compile(&volume, "tests/programs/checks.c");
    succeeds(&run(&volume, program.as_os_str(), &[NAME], b""));
    volume.open().close().unwrap();
}

#[test]
fn the_examples_work_and_a_volume_in_use_is_refused_in_one_line() {
    let volume = TestVolume::make(2);
    let program = compile(&volume, "examples/log_lines.c");
    assert_eq!(succeeds(&run(&volume, program.as_os_str(), &[NAME, "/kernel"], b"one\ntwo\n")), "8\n");
    assert_eq!(succeeds(&run(&volume, program.as_os_str(), &[NAME, "/kernel"], b"three\n")), "14\n");
    let tree = source("examples/tree.py");
    let tree = tree.to_str().unwrap();
    let large = volume.directory().join("large");
    std::fs::write(&large, vec![7; 3 << 20]).unwrap();
    let put = [tree, NAME, "put", large.to_str().unwrap(), "/large"];
    succeeds(&run(&volume, OsStr::new("python3"), &put, b""));
    assert_eq!(succeeds(&run(&volume, OsStr::new("python3"), &[tree, NAME], b"")), "kernel 14\nlarge 3145728\n");
    let open = volume.open();
    let refused = run(&volume, OsStr::new("python3"), &[tree, NAME], b"");
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && message.lines().count() == 1, "{message}");
    assert!(message.contains(&format!("in use already in a program by process {}", std::process::id())), "{message}");
    open.close().unwrap();
}

#[test]
fn a_program_that_is_killed_leaves_everything_that_it_synced() {
    const ROUNDS: usize = 5;
    let volume = TestVolume::make(2);
    let program = compile(&volume, "tests/programs/appends.c");
    for round in 1..=ROUNDS {
        let mut appends = command(&volume, program.as_os_str());
        let mut child = appends.arg(NAME).stdout(Stdio::piped()).spawn().unwrap();
        let acknowledged: Vec<String> =
            BufReader::new(child.stdout.take().unwrap()).lines().take(50 * round).map(Result::unwrap).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(acknowledged.len(), 50 * round);
        let open = volume.open();
        let mut log = String::new();
        open.open_file("/log", &FileOptions::new().read()).unwrap().read_to_string(&mut log).unwrap();
        let lines: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
        assert!(lines.len() >= acknowledged.len(), "{} of {} lines", lines.len(), acknowledged.len());
        assert!(lines.iter().enumerate().all(|(number, line)| number == *line), "{lines:?}");
        open.unlink("/log").unwrap();
        open.close().unwrap();
    }
}

/// Runs the shell of SQLite on a database of the volume.
fn sqlite(volume: &TestVolume, extension: &Path, script: &str) -> Output {
    let load = format!(".load {}", extension.display());
    let arguments = ["-batch", "-cmd", &load, "-cmd", ".open file:/app.db?vfs=polymux", "-cmd", ".timeout 0"];
    run(volume, OsStr::new("sqlite3"), &arguments, script.as_bytes())
}

#[test]
fn sqlite_runs_on_a_volume_without_a_mount() {
    let volume = TestVolume::make(2);
    let extension = compile_with(&volume, "examples/sqlite_vfs.c", &["-shared", "-fPIC"]);
    let made = "pragma synchronous = full; create table t(a integer primary key, b blob);\n\
                with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000)\n\
                insert into t select i, randomblob(1000) from n;\nselect count(*) from t;\n";
    assert_eq!(succeeds(&sqlite(&volume, &extension, made)), "2000\n");
    for (mode, count) in [("wal", 2001), ("delete", 2002), ("truncate", 2003), ("wal", 2004)] {
        let script = format!(
            "pragma journal_mode = {mode};\npragma synchronous = full;\nbegin; insert into t(b) values ('kept'); commit;\n\
             begin; delete from t; rollback;\nselect count(*) from t;\npragma integrity_check;\n"
        );
        assert_eq!(succeeds(&sqlite(&volume, &extension, &script)), format!("{mode}\n{count}\nok\n"));
    }
    // Two connections of one program: a reader beside a writer of the write-ahead log, and one writer at a time.
    let two = ".open file:/app.db?vfs=polymux\n.connection 1\n.open file:/app.db?vfs=polymux\n.timeout 0\nbegin immediate; \
               insert into t(b) values ('later');\n.connection 0\nselect count(*) from t;\nbegin immediate;\n.connection 1\n\
               commit;\n.connection 0\nselect count(*) from t;\n";
    let output = sqlite(&volume, &extension, two);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2004\n2005\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("database is locked"), "{output:?}");
    let embedded = volume.open();
    assert!(embedded.attributes("/app.db", LastLink::Follow).unwrap().size > 2_000_000);
    embedded.close().unwrap();
}

#[test]
fn a_database_outlives_its_killed_program() {
    let volume = TestVolume::make(2);
    let extension = compile_with(&volume, "examples/sqlite_vfs.c", &["-shared", "-fPIC"]);
    for mode in ["delete", "wal"] {
        succeeds(&sqlite(&volume, &extension, &format!("pragma journal_mode = {mode}; create table {mode}_t(a);\n")));
        let mut command = command(&volume, OsStr::new("sqlite3"));
        let load = format!(".load {}", extension.display());
        command.args(["-batch", "-cmd", &load, "-cmd", ".open file:/app.db?vfs=polymux"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut script = format!("pragma journal_mode = {mode};\npragma synchronous = full;\n");
        for number in 0..2_000 {
            script.push_str(&format!("insert into {mode}_t values ({number});\nselect 'committed {number}';\n"));
        }
        let mut input = child.stdin.take().unwrap();
        // Ends with an error once the program is dead.
        let writer = std::thread::spawn(move || drop(input.write_all(script.as_bytes())));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let committed = lines.filter(|line| line.starts_with("committed")).take(100).count();
        child.kill().unwrap();
        child.wait().unwrap();
        writer.join().unwrap();
        let script = format!("pragma integrity_check;\nselect count(*) >= {committed} from {mode}_t;\n");
        assert_eq!((committed, succeeds(&sqlite(&volume, &extension, &script)).as_str()), (100, "ok\n1\n"), "{mode}");
    }
}

#[test]
fn every_function_of_the_header_is_in_the_library_and_no_other() {
    let header = std::fs::read_to_string(source("include/polymux.h")).unwrap();
    let declared: std::collections::BTreeSet<&str> = header
        .lines()
        .filter(|line| line.ends_with(");"))
        .filter_map(|line| line[..line.find('(')?].rsplit([' ', '*']).next())
        .collect();
    assert!(declared.len() > 40, "{declared:?}");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().expect("nm comes with cc");
    let symbols = String::from_utf8(output.stdout).unwrap();
    let exported: std::collections::BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|name| name.starts_with("polymux_"))
        .collect();
    assert_eq!(declared, exported);
    let build = std::fs::read_to_string(source("build.rs")).unwrap();
    let abi = header.lines().find_map(|line| line.strip_prefix("#define POLYMUX_ABI ")).unwrap();
    assert!(
        build.contains(&format!("libpolymux.so.{abi}\"")),
        "the name of the library has the number of its interface"
    );
}
