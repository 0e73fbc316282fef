//! A control group that gives this process and a daemon little memory, the page cache of their files included.
//!
//! Version 1 of the memory controller only. The group is removed when its value is dropped, after this process and its
//! children have left it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::throttled::OnTop;

const ROOT: &str = "/sys/fs/cgroup/memory";

/// A group that this process is in.
pub struct LittleMemory {
    path: PathBuf,
    /// Where this process was before.
    from: PathBuf,
    is_gone: bool,
}

/// Why no memory can be limited here; `None`: it can.
#[must_use]
pub fn obstacle() -> Option<String> {
    let is_there = Path::new(ROOT).join("memory.limit_in_bytes").exists();
    (!is_there).then(|| format!("version 1 of the memory controller is not at {ROOT}"))
}

/// The group of this process in `/proc/self/cgroup`.
fn group_in(table: &str) -> Option<&str> {
    table.lines().find_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let has_memory = words.next()?.split(',').any(|name| name == "memory");
        words.next().filter(|_| has_memory)
    })
}

impl LittleMemory {
    /// Makes a group with so many bytes, and moves this process and others into it.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn enter(bytes: u64, others: &[u64]) -> Result<Self> {
        let table = fs::read_to_string("/proc/self/cgroup")?;
        let from = group_in(&table).context("this process is in no group of the memory controller")?;
        let from = Path::new(ROOT).join(from.trim_start_matches('/'));
        let path = Path::new(ROOT).join(format!("polymux-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        // Where it cannot be filled it goes at once.
        let group = Self { path, from, is_gone: false };
        fs::write(group.path.join("memory.limit_in_bytes"), bytes.to_string()).context("cannot limit memory")?;
        for process in others.iter().copied().chain([u64::from(std::process::id())]) {
            fs::write(group.path.join("cgroup.procs"), process.to_string())
                .with_context(|| format!("cannot move process {process} into {}", group.path.display()))?;
        }
        Ok(group)
    }

    /// Most bytes that were in use at once, the page cache included.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn use_so_far(&self) -> Result<u64> {
        Ok(fs::read_to_string(self.path.join("memory.max_usage_in_bytes"))?.trim().parse()?)
    }
}

impl OnTop for LittleMemory {
    fn remove(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_gone, true) {
            return Ok(());
        }
        for process in fs::read_to_string(self.path.join("cgroup.procs"))?.lines() {
            // One that has ended meanwhile is gone from there too.
            let _ = fs::write(self.from.join("cgroup.procs"), process);
        }
        fs::remove_dir(&self.path).with_context(|| format!("{} stays behind", self.path.display()))
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("warning: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_memory_controller_is_found_among_others() {
        assert_eq!(group_in("8:pids:/\n4:cpu,memory:/a/b\n0::/\n"), Some("/a/b"));
        assert_eq!(group_in("0::/user.slice\n"), None);
    }
}
