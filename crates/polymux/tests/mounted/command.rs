//! Running programs with a deadline. Output goes through files, because a daemon that keeps a pipe open would hold the
//! test for ever; in memory, because a test that runs as another user may make none in the directory for temporary files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Exit status and output of a program.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Asserts that it ended well.
    #[track_caller]
    pub fn assert_success(&self) {
        assert!(self.is_success(), "{}", self.text());
    }

    /// All that was said.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

const DEADLINE: Duration = Duration::from_secs(300);

/// Runs a program to its end; panics when it takes longer than five minutes.
pub fn run(command: &mut Command) -> Finished {
    run_within(command, DEADLINE)
}

/// Runs a program to its end; panics, and kills it, when it takes longer than `deadline`.
pub fn run_within(command: &mut Command, deadline: Duration) -> Finished {
    let (mut stdout, mut stderr) = (file_in_memory(), file_in_memory());
    command.stdin(Stdio::null());
    command.stdout(stdout.try_clone().expect("a descriptor can be copied"));
    command.stderr(stderr.try_clone().expect("a descriptor can be copied"));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let status = wait_within(&mut child, deadline);
    let finished = (read_back(&mut stdout), read_back(&mut stderr));
    let Some(status) = status else {
        let _ = child.kill();
        panic!("{command:?} took longer than {deadline:?}; it said: {}{}", finished.0, finished.1);
    };
    Finished { status, stdout: finished.0, stderr: finished.1 }
}

/// Waits until a process ends; `None` when it does not in time.
pub fn wait_within(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("an own child can be waited for") {
            return Some(status);
        }
        if start.elapsed() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn file_in_memory() -> File {
    let file = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC);
    File::from(file.expect("a file in memory can be made"))
}

fn read_back(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a program that must succeed, and returns its output.
pub fn succeed<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let finished = run(&mut command);
    assert!(finished.is_success(), "{command:?} failed: {}", finished.text());
    finished.stdout
}

/// Copies a program that a test will run, in a process of its own: a child that another test of this process starts meanwhile would have the copy open
/// for writing until it runs its own program, and to run the copy would fail with `ETXTBSY`.
pub fn copy_program(program: &str, to: &std::path::Path) {
    succeed("cp", [OsStr::new(program), to.as_os_str()]);
}

/// Runs a shell script in a directory; it must succeed.
pub fn shell(directory: &std::path::Path, script: &str) -> String {
    let mut command = Command::new("sh");
    command.arg("-euc").arg(script).current_dir(directory);
    let finished = run(&mut command);
    assert!(finished.is_success(), "in {}: {script}\nfailed: {}", directory.display(), finished.text());
    finished.stdout
}
