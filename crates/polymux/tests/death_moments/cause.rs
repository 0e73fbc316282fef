//! Causes of the death of the daemon.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::mounted::TestVolume;

/// How long the kernel is given to find that there is no memory.
const OUT_OF_MEMORY_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Killed,
    SegmentationFault,
    OutOfMemory,
}

impl Cause {
    /// Those that can be had here; says which cannot.
    pub fn possible() -> Vec<Self> {
        let mut causes = vec![Self::Killed, Self::SegmentationFault];
        match MemoryGroup::make() {
            Ok(_) => causes.push(Self::OutOfMemory),
            // Not `eprintln`, which the test harness would swallow.
            Err(why) => {
                drop(writeln!(std::io::stderr(), "skipped: deaths for want of memory in a control group: {why}"))
            }
        }
        causes
    }

    /// Ends the daemon.
    pub fn strike(self, volume: &TestVolume, group: Option<&MemoryGroup>) {
        let daemon = volume.daemon_id().expect("it is mounted");
        match (self, group) {
            (Self::SegmentationFault, _) => {
                // The first one finds the handler that looks for stacks that overflowed, which goes away and lets the fault happen
                // again; one that was sent does not.
                while !has_ended(daemon.as_raw_nonzero().get()) {
                    kill_process(daemon, Signal::SEGV).expect("an own child");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            (Self::OutOfMemory, Some(group)) if group.starve() => {}
            _ => kill_process(daemon, Signal::KILL).expect("an own child"),
        }
    }
}

/// Whether a child waits to be asked how it ended.
fn has_ended(process: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat"));
    state.is_ok_and(|state| state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// A control group with a limit of memory. Removed when dropped.
pub struct MemoryGroup {
    path: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl MemoryGroup {
    fn make() -> Result<Self, String> {
        let name = format!("polymux-test-{}", std::process::id());
        // The second version, and the first where only that is available.
        for (root, limit, usage) in [
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ] {
            let path = Path::new(root).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self { path, limit, usage };
            if group.path.join(limit).exists() {
                return Ok(group);
            }
        }
        Err("none with a limit of memory can be made".to_owned())
    }

    /// Puts the daemon of a volume into a group of its own.
    pub fn around(volume: &TestVolume) -> Option<Self> {
        let group = Self::make().ok()?;
        let daemon = volume.daemon_id().expect("it is mounted").as_raw_nonzero();
        fs::write(group.path.join("cgroup.procs"), daemon.to_string()).ok()?;
        Some(group)
    }

    fn is_empty(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty())
    }

    /// Takes the memory away. `false`: the daemon lives all the same.
    fn starve(&self) -> bool {
        let start = Instant::now();
        while !self.is_empty() {
            if start.elapsed() > OUT_OF_MEMORY_WITHIN {
                println!("nothing was short of memory; the daemon is killed instead");
                return false;
            }
            // The first version takes no limit below the present usage.
            let used = fs::read_to_string(self.path.join(self.usage)).unwrap_or_default();
            for limit in ["0", used.trim()] {
                let _refused = fs::write(self.path.join(self.limit), limit);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let start = Instant::now();
        while fs::remove_dir(&self.path).is_err() && start.elapsed() < OUT_OF_MEMORY_WITHIN {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
