//! Where limits of devices are set: the block I/O controller of the kernel, in version 1 or 2.
//!
//! The two versions:
//! * Version 1 sets limits at its root: they hold for a device, whichever process uses it, also for write-back.
//! * Version 2 has no limits at its root. A control group of this process' own is made below it, and this process moves into
//!   it, with all that it starts: limits hold for those. [`Controller::leave`] goes back and removes the group; a controller
//!   that was switched on for it is switched off again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Limits;

const VERSION_1: &str = "/sys/fs/cgroup/blkio";
const VERSION_2: &str = "/sys/fs/cgroup";

/// The controller of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Limits at the root of the controller.
    Version1,
    /// Limits of a control group.
    Version2(Group),
}

/// A control group of version 2 that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    path: PathBuf,
    /// Where the process was before.
    from: PathBuf,
    /// Controllers that were switched on at the root for it.
    switched_on: Vec<&'static str>,
}

/// Version of the available block I/O controller; `None` where there is none.
#[must_use]
pub fn version() -> Option<u8> {
    let contains_io = |text: String| text.split_whitespace().any(|name| name == "io");
    if Path::new(VERSION_1).join("blkio.throttle.read_bps_device").exists() {
        Some(1)
    } else if fs::read_to_string(Path::new(VERSION_2).join("cgroup.controllers")).is_ok_and(contains_io) {
        Some(2)
    } else {
        None
    }
}

impl Controller {
    /// Gets ready to set limits.
    ///
    /// # Errors
    /// Where there is no controller, or no group can be made.
    pub fn enter() -> Result<Self> {
        match version() {
            Some(1) => Ok(Self::Version1),
            Some(_) => Group::enter().map(Self::Version2),
            None => anyhow::bail!("the kernel's block I/O controller is neither at {VERSION_1} nor at {VERSION_2}"),
        }
    }

    /// Limits a device, given as `major:minor`.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn set(&self, numbers: &str, limits: &Limits) -> Result<()> {
        match self {
            Self::Version1 => lines_of_version_1(numbers, limits).into_iter().try_for_each(|(name, line)| {
                let path = Path::new(VERSION_1).join(format!("blkio.throttle.{name}"));
                fs::write(&path, line).with_context(|| format!("cannot set {}", path.display()))
            }),
            Self::Version2(group) => {
                let path = group.path.join("io.max");
                fs::write(&path, line_of_version_2(numbers, limits))
                    .with_context(|| format!("cannot set {}", path.display()))
            }
        }
    }

    /// Leaves everything as it was. Programs that were started in the group have ended.
    ///
    /// # Errors
    /// Where the group cannot be left or removed.
    pub fn leave(&self) -> Result<()> {
        match self {
            Self::Version1 => Ok(()),
            Self::Version2(group) => group.leave(),
        }
    }
}

/// Control files and the values to write to them. 0 removes a limit.
fn lines_of_version_1(numbers: &str, limits: &Limits) -> [(&'static str, String); 4] {
    [
        ("read_bps_device", limits.read_bytes),
        ("write_bps_device", limits.written_bytes),
        ("read_iops_device", limits.reads),
        ("write_iops_device", limits.writes),
    ]
    .map(|(name, value)| (name, format!("{numbers} {}", value.unwrap_or(0))))
}

fn line_of_version_2(numbers: &str, limits: &Limits) -> String {
    let value = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
    format!(
        "{numbers} rbps={} wbps={} riops={} wiops={}",
        value(limits.read_bytes),
        value(limits.written_bytes),
        value(limits.reads),
        value(limits.writes)
    )
}

/// The group of a process in `/proc/self/cgroup`, relative to the root of version 2.
fn group_in(table: &str) -> Option<&str> {
    table.lines().find_map(|line| line.strip_prefix("0::/"))
}

impl Group {
    fn enter() -> Result<Self> {
        let root = Path::new(VERSION_2);
        let table = fs::read_to_string("/proc/self/cgroup")?;
        let from = root.join(group_in(&table).context("this process is in no control group of version 2")?);
        let control = root.join("cgroup.subtree_control");
        let are_on = fs::read_to_string(&control)?;
        let mut switched_on = Vec::new();
        // Written pages are charged to a group by the memory controller only.
        for name in ["io", "memory"] {
            if !are_on.split_whitespace().any(|on| on == name) {
                fs::write(&control, format!("+{name}"))
                    .with_context(|| format!("cannot switch the controller {name} on"))?;
                switched_on.push(name);
            }
        }
        let path = root.join(format!("{}{}", super::PREFIX, std::process::id()));
        let group = Self { path, from, switched_on };
        fs::create_dir(&group.path).with_context(|| format!("cannot make {}", group.path.display()))?;
        if let Err(error) = fs::write(group.path.join("cgroup.procs"), std::process::id().to_string()) {
            let _ = group.leave();
            return Err(error).with_context(|| format!("cannot enter {}", group.path.display()));
        }
        Ok(group)
    }

    fn leave(&self) -> Result<()> {
        fs::write(self.from.join("cgroup.procs"), std::process::id().to_string())
            .with_context(|| format!("cannot go back to {}", self.from.display()))?;
        fs::remove_dir(&self.path).with_context(|| format!("{} stays behind", self.path.display()))?;
        for name in &self.switched_on {
            // Another process may need the controller by now; then the kernel refuses, and rightly so.
            let _ = fs::write(Path::new(VERSION_2).join("cgroup.subtree_control"), format!("-{name}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { read_bytes: Some(5), written_bytes: None, reads: Some(7), writes: None };

    #[test]
    fn limits_are_written_as_each_version_reads_them() {
        assert_eq!(line_of_version_2("7:3", &LIMITS), "7:3 rbps=5 wbps=max riops=7 wiops=max");
        let lines = lines_of_version_1("7:3", &LIMITS).map(|(_, line)| line);
        assert_eq!(lines, ["7:3 5", "7:3 0", "7:3 7", "7:3 0"]);
    }

    #[test]
    fn the_group_of_version_2_is_found_beside_those_of_version_1() {
        assert_eq!(group_in("8:pids:/\n4:memory:/a\n0::/user.slice/x\n"), Some("user.slice/x"));
        assert_eq!(group_in("0::/\n"), Some(""));
        assert_eq!(group_in("8:pids:/\n"), None);
    }
}
