//! Waiting for the end of a daemon that is not a child of this process.
//!
//! Invariants:
//! * The locks of tiers and of the metadata log end with the process, after the lock of the volume: a command that needs the tiers
//!   waits for the process.
//! * A process is held by a descriptor, so that a later one with its number is not taken for it.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Text before the process number in a daemon's lock.
pub const HOLDER_MARK: &str = "by process ";

/// Text in the lock of a volume that a program has open.
pub const PROGRAM_MARK: &str = "in a program";

/// A process whose end can be waited for.
pub struct ProcessEnd {
    descriptor: OwnedFd,
    id: u32,
}

impl ProcessEnd {
    /// The process that the text of a volume's lock names. `None` where it names none, or one that is gone, or where it names a daemon and the
    /// process is none of this program.
    pub fn of_holder(text: &str) -> Option<Self> {
        let id = text.trim().rsplit_once(HOLDER_MARK)?.1.parse().ok()?;
        let found = Self::of(id)?;
        let name = |process: &str| fs::read_to_string(format!("/proc/{process}/comm")).ok();
        // Read behind the descriptor: if it was another process before, it is gone, and the descriptor says so.
        let (its, own) = (name(&id.to_string())?, name("self")?);
        // The program that had the volume open may be any.
        let may_be = text.starts_with(PROGRAM_MARK) || its == own || its.starts_with("polymux");
        (may_be && id != std::process::id()).then_some(found)
    }

    fn of(id: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(id).ok()?)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { descriptor, id })
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits for its end; returns whether it came within that time.
    pub fn is_over_within(&self, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                // Its state is unknown; a caller that goes on finds out.
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_a_process_is_waited_for_and_no_longer_than_asked() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let end = ProcessEnd::of(child.id()).unwrap();
        assert!(!end.is_over_within(Duration::from_millis(20)));
        child.kill().unwrap();
        assert!(end.is_over_within(Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(end.is_over_within(Duration::ZERO), "it stays over");
    }

    #[test]
    fn only_a_daemon_of_this_program_is_a_holder() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let in_program = format!("{PROGRAM_MARK} by process {}\n", child.id());
        assert!(ProcessEnd::of_holder(&in_program).is_some(), "a program may have any name");
        let texts = ["", "ended uncleanly: no", "on /x by process x", "on /x by process 0"];
        assert!(texts.into_iter().all(|text| ProcessEnd::of_holder(text).is_none()));
        assert!(ProcessEnd::of_holder(&format!("on /x by process {}\n", child.id())).is_none(), "it is called sleep");
        assert!(ProcessEnd::of_holder(&format!("on /x by process {}", std::process::id())).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
