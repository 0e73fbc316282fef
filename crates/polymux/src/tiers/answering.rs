//! Whether a tier answers at all, asked before anything waits for it (docs/design/0014).
//!
//! Invariants:
//! * A process of its own asks. It may hang in the file system below, where no signal can kill it; the caller waits for a
//!   bounded time and can still end, which a process with a thread that hangs cannot.
//! * One question at a time: while one hangs, no other process is sent after it.
//! * Only whether it answers counts. An error of the tier is reported to the caller that opens it.

use std::path::Path;
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

/// Whether one tier answers.
pub struct Answering {
    /// How long it may take; `None`: it is not asked, because the caller waits for as long as it takes.
    patience: Option<Duration>,
    /// The process that was not answered in time.
    hanging: Mutex<Option<Child>>,
}

impl Answering {
    /// A tier that was not asked yet.
    pub fn new(patience: Option<Duration>) -> Self {
        Self { patience, hanging: Mutex::new(None) }
    }

    /// Checks that the tier in a directory answers, for the access that the caller wants.
    ///
    /// # Errors
    /// The reason, in words, where there is no answer in time.
    pub fn ask(&self, path: &Path, access: Access) -> Result<(), String> {
        let Some(patience) = self.patience else { return Ok(()) };
        let mut hanging = self.hanging.lock();
        if hanging.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None))) {
            return Err(no_answer(patience));
        }
        *hanging = None;
        let mut process = begin(path, access).map_err(|error| format!("nobody can ask whether it answers: {error}"))?;
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
}

fn begin(path: &Path, access: Access) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).args((access == Access::ReadWrite).then_some(CHANGES)).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn no_answer(patience: Duration) -> String {
    format!("its file system does not answer (asked for {} s)", patience.as_secs())
}

/// The work of the probe process: reads, and where the tier is to be changed, makes a file and removes it, because a file
/// system that is frozen still reads.
pub fn touch(path: &Path, access: Access) {
    if read_label_at(path).is_ok() && access == Access::ReadWrite {
        let _ = probe_directory(&path.join(OWN_DIRECTORY));
    }
}
