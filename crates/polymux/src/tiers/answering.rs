//! Whether a tier answers at all, asked before anything waits for it (docs/design/0014).
//!
//! What is true here:
//! * A process of its own asks. It may hang in the file system below, where nobody can kill it; whoever asked waits for a
//!   bounded time and can still end, which a process with a thread that hangs cannot.
//! * One question at a time: while one hangs, no other process is sent after it.
//! * Answers are all that counts. What is wrong with the tier, whoever opens it is told.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polymux_fs::Access;
use polymux_tier::posix::{OWN_DIRECTORY, probe_directory, read_label_at};
use polymux_types::sync::Mutex;

/// The verb of the process that asks.
const VERB: &str = "ask-tier";
/// Its option for a tier that is to be changed.
const CHANGES: &str = "--changes";

/// First and longest time between two looks at the process that asks.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(50);

/// One tier that is asked.
pub struct Answering {
    path: PathBuf,
    access: Access,
    /// The process that was not answered in time.
    hanging: Mutex<Option<Child>>,
}

impl Answering {
    /// The tier in a directory, asked for what somebody will do with it.
    pub fn new(path: &Path, access: Access) -> Self {
        Self { path: path.to_owned(), access, hanging: Mutex::new(None) }
    }

    /// Asks; `None`: not at all, because somebody will wait for as long as it takes.
    ///
    /// # Errors
    /// The reason, in words, where there is no answer in time.
    pub fn ask(&self, patience: Option<Duration>) -> Result<(), String> {
        let Some(patience) = patience else { return Ok(()) };
        let mut hanging = self.hanging.lock();
        if hanging.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None))) {
            return Err(no_answer(patience));
        }
        *hanging = None;
        let mut process = self.begin().map_err(|error| format!("nobody can ask whether it answers: {error}"))?;
        let began = Instant::now();
        let mut interval = LOOK_INTERVAL;
        while matches!(process.try_wait(), Ok(None)) {
            if began.elapsed() >= patience {
                *hanging = Some(process);
                return Err(no_answer(patience));
            }
            thread::sleep(interval);
            interval = LOOK_INTERVAL_MAX.min(interval * 2);
        }
        Ok(())
    }

    fn begin(&self) -> std::io::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(VERB).args((self.access == Access::ReadWrite).then_some(CHANGES)).arg("--").arg(&self.path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

fn no_answer(patience: Duration) -> String {
    format!("its file system does not answer (asked for {} s)", patience.as_secs())
}

/// What the process that asks does: reads, and where the tier is to be changed, makes a file and removes it, because a file
/// system that is frozen still reads.
pub fn touch(path: &Path, access: Access) {
    if read_label_at(path).is_ok() && access == Access::ReadWrite {
        let _ = probe_directory(&path.join(OWN_DIRECTORY));
    }
}
