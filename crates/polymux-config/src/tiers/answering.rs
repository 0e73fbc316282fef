//! Whether a tier answers at all, asked before anything waits for it (docs/design/0014).
//!
//! Invariants:
//! * A process of its own asks, where this program is one that can be started for it. It may hang in the file system below, where no
//!   signal can kill it; the caller waits for a bounded time and can still end, which a process with a thread that hangs cannot. In any
//!   other program, which has the file system as a library, a thread asks: the caller gets its answer in time, and the program ends
//!   once the tier answers.
//! * One question at a time: while one hangs, no other is asked.
//! * Only whether it answers counts. An error of the tier is reported to the caller that opens it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
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

/// Which kind of task asks a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// A process of this program, which is `polymux` and knows the verb.
    Process,
    /// A thread of this program, whichever that is.
    Thread,
}

/// A question that is under way.
enum Question {
    Process(Child),
    Thread(JoinHandle<()>),
}

impl Question {
    fn begin(asked_by: AskedBy, path: &Path, access: Access) -> std::io::Result<Self> {
        match asked_by {
            AskedBy::Process => begin(path, access).map(Self::Process),
            AskedBy::Thread => {
                let path = path.to_owned();
                let asking = thread::Builder::new().name("ask-tier".to_owned()).spawn(move || touch(&path, access));
                asking.map(Self::Thread)
            }
        }
    }

    fn is_under_way(&mut self) -> bool {
        match self {
            Self::Process(process) => matches!(process.try_wait(), Ok(None)),
            Self::Thread(thread) => !thread.is_finished(),
        }
    }
}

/// Whether one tier answers.
pub struct Answering {
    asked_by: AskedBy,
    /// How long it may take; `None`: it is not asked, because the caller waits for as long as it takes.
    patience: Option<Duration>,
    /// The question that was not answered in time.
    hanging: Mutex<Option<Question>>,
}

impl Answering {
    /// A tier that was not asked yet.
    pub fn new(asked_by: AskedBy, patience: Option<Duration>) -> Self {
        Self { asked_by, patience, hanging: Mutex::new(None) }
    }

    /// Checks that the tier in a directory answers, for the access that the caller wants.
    ///
    /// # Errors
    /// The reason, in words, where there is no answer in time.
    pub fn ask(&self, path: &Path, access: Access) -> Result<(), String> {
        let Some(patience) = self.patience else { return Ok(()) };
        let mut hanging = self.hanging.lock();
        if hanging.as_mut().is_some_and(Question::is_under_way) {
            return Err(no_answer(patience));
        }
        *hanging = None;
        let mut question = Question::begin(self.asked_by, path, access)
            .map_err(|error| format!("it cannot be asked whether it answers: {error}"))?;
        let began = Instant::now();
        let mut interval = LOOK_INTERVAL;
        while question.is_under_way() {
            if began.elapsed() >= patience {
                *hanging = Some(question);
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

/// The work of the process or thread that asks: reads, and where the tier is to be changed, makes a file and removes it, because a file
/// system that is frozen still reads.
pub fn touch(path: &Path, access: Access) {
    if read_label_at(path).is_ok() && access == Access::ReadWrite {
        let _ = probe_directory(&path.join(OWN_DIRECTORY));
    }
}
