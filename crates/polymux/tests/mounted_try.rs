//! `polymux try` over sources of every kind. Its long form is `make test-try RUNS=50`: so many runs over all sources, as root
//! and as a user, alone and beside a load.

mod mounted;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mounted::{Plan, have_program, is_root, run_within, skip};

/// The unprivileged user that runs it without root.
const USER: u32 = 65_534;

/// Most lines that a trial may tell.
const LINES_MAX: usize = 20;

/// How long one may take on a machine that does much else.
const DEADLINE: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Caller,
    User,
}

/// Makes a directory of sources below a path; one for each kind.
fn make_sources(base: &Path) -> Vec<PathBuf> {
    let make = |name: &str| {
        let path = base.join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let many = |name: &str, count: usize, size: usize| {
        let path = make(name);
        (0..count).for_each(|number| fs::write(path.join(format!("file{number}")), vec![7; size]).unwrap());
        path
    };
    let huge = make("only huge files");
    for number in 0..3 {
        File::create(huge.join(format!("huge{number}"))).unwrap().set_len(1 << 40).unwrap();
    }
    let unreadable = make("unreadable");
    fs::create_dir(unreadable.join("closed")).unwrap();
    for name in ["closed/file", "file", "open"] {
        fs::write(unreadable.join(name), b"secret").unwrap();
    }
    fs::set_permissions(unreadable.join("file"), PermissionsExt::from_mode(0o000)).unwrap();
    fs::set_permissions(unreadable.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    symlink("nowhere", unreadable.join("dangling")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        unreadable.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let mixed = make("mixed");
    fs::create_dir_all(mixed.join("a/b/c")).unwrap();
    fs::write(mixed.join("a/b/c/program"), vec![1; 70_000]).unwrap();
    fs::set_permissions(mixed.join("a/b/c/program"), PermissionsExt::from_mode(0o6755)).unwrap();
    fs::set_permissions(mixed.join("a/b/c"), PermissionsExt::from_mode(0o2555)).unwrap();
    File::create(mixed.join("sparse")).unwrap().write_all_at(b"end", 30 << 20).unwrap();
    let names = make("odd names");
    for name in [&b"new\nline"[..], b"-rf", b"\xff\xfe", b"\x1b[31mred", &[b'n'; 255]] {
        fs::write(names.join(OsStr::from_bytes(name)), name).unwrap();
    }
    vec![
        make("empty"),
        many("one byte", 1, 1),
        many("100 KB", 20, 100_000),
        many("20 KB", 100, 20_000),
        many("64 KiB", 10, 65_536),
        huge,
        many("larger than the fast tier", 1, 40 << 20),
        unreadable,
        mixed,
        names,
    ]
}

/// Runs it once and checks its output and the files it leaves.
fn try_out(base: &Path, source: &Path, runner: Runner) {
    let directory = tempfile::tempdir_in(base).unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = env!("CARGO_BIN_EXE_polymux");
    let mut command = match runner {
        Runner::Caller => {
            let mut command = Command::new(program);
            command.arg("try");
            command
        }
        Runner::User => as_user(base, program),
    };
    command.arg(source).env("TMPDIR", directory.path());
    let ended = run_within(&mut command, DEADLINE);
    let what = format!("{} as {runner:?}", source.display());
    assert!(ended.is_success() && ended.stdout.contains("All checks passed"), "{what}: {}", ended.text());
    assert!(ended.stdout.lines().count() <= LINES_MAX, "{what}: {}", ended.text());
    assert_eq!(ended.stderr, "", "{what}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{what}: nothing is left behind");
}

/// `polymux try` as a user who may open /dev/fuse, whatever the machine says of that: in a mount namespace of its own.
fn as_user(base: &Path, program: &str) -> Command {
    let script = "mknod -m 666 \"$1\" c 10 229 2>/dev/null; mount --bind \"$1\" /dev/fuse && shift && exec setpriv \
                  --reuid \"$1\" --regid \"$1\" --clear-groups \"$2\" try \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(base.join("fuse")).arg(USER.to_string()).arg(program);
    command
}

/// Why another user cannot run it here.
fn obstacle_of_user(program: &Path) -> Option<&'static str> {
    if !is_root() {
        return Some("acting as a user needs root");
    }
    if !["unshare", "setpriv", "fusermount3"].into_iter().all(have_program) {
        return Some("unshare, setpriv or fusermount3 is not installed");
    }
    let readable = run_within(
        Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "test", "-x"])
            .arg(program),
        DEADLINE,
    );
    (!readable.is_success()).then_some("a user cannot get at the program under test")
}

fn base() -> Option<tempfile::TempDir> {
    if let Some(why) = (Plan { ground: mounted::volume::Ground::Directories, fast_capacity: None }).obstacle() {
        skip(why);
        return None;
    }
    let base = tempfile::Builder::new().prefix("polymux-sources-").tempdir().unwrap();
    fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    Some(base)
}

#[test]
fn a_trial_passes_over_every_kind_of_source_and_leaves_nothing_behind() {
    try_out_all(0);
}

#[test]
fn trials_beside_others_pass_over_every_kind_of_source() {
    try_out_all(1);
}

/// Every second source, of the first or of the second on; all of them by the first where many runs are asked for.
fn try_out_all(first: usize) {
    let Some(base) = base() else { return };
    let sources = make_sources(base.path());
    let runs = std::env::var("POLYMUX_TRY_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(sources.len());
    let obstacle = obstacle_of_user(Path::new(env!("CARGO_BIN_EXE_polymux")));
    if let Some(why) = obstacle {
        skip(why);
    }
    let is_long = runs > sources.len();
    let is_whole = is_long && first == 0;
    for run in (0..runs).filter(|run| is_whole || !is_long && run % 2 == first) {
        let round = run / sources.len();
        let source = &sources[run % sources.len()];
        // Each source in turn as root and as a user, alone and beside a load.
        let runner = if obstacle.is_none() && (run + round) % 2 == 1 { Runner::User } else { Runner::Caller };
        let load = (is_long && round % 4 >= 2).then(Load::begin);
        try_out(base.path(), source, runner);
        if is_long {
            let beside = if load.is_some() { "beside a load" } else { "alone" };
            eprintln!("run {} of {runs}: {} as {runner:?}, {beside}", run + 1, source.display());
        }
    }
}

#[test]
fn a_source_that_changes_while_it_is_copied_fails_no_trial() {
    let Some(base) = base() else { return };
    let source = base.path().join("changing");
    fs::create_dir(&source).unwrap();
    (0..50).for_each(|number| fs::write(source.join(format!("file{number}")), b"contents").unwrap());
    let end = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let (end, source) = (Arc::clone(&end), source.clone());
        move || {
            for round in (0_u64..).take_while(|_| !end.load(Ordering::Relaxed)) {
                let path = source.join(format!("file{}", round % 50));
                match round % 3 {
                    0 => fs::write(&path, vec![1; 10_000]).unwrap(),
                    1 => File::options().append(true).create(true).open(&path).unwrap().write_all(b"more").unwrap(),
                    _ => fs::remove_file(&path).unwrap_or_default(),
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    try_out(base.path(), &source, Runner::Caller);
    end.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

/// Threads that use all processors, and the disk, until it is dropped.
struct Load {
    end: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn begin() -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let mut threads: Vec<_> = (0..2 * processors)
            .map(|_| {
                let end = Arc::clone(&end);
                thread::spawn(move || {
                    while !end.load(Ordering::Relaxed) {
                        std::hint::black_box((0..100_000_u64).fold(0, u64::wrapping_add));
                    }
                })
            })
            .collect();
        threads.push(thread::spawn({
            let end = Arc::clone(&end);
            move || {
                let file = tempfile::tempfile().unwrap();
                for round in (0_u64..).take_while(|_| !end.load(Ordering::Relaxed)) {
                    file.write_all_at(&vec![1; 1 << 20], (round % 64) << 20).unwrap();
                    file.sync_data().unwrap();
                }
            }
        }));
        Self { end, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("a thread of the load ends well"));
    }
}
