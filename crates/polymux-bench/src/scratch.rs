//! The directory that a command works in.
//!
//! Invariant: whatever a command makes lies in its scratch directory, which has a name of its own and is removed when
//! the value is dropped; nothing that was there before is touched.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory that goes with its value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a new directory below one that exists.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new(parent: &Path) -> Result<Self> {
        let parent = parent.canonicalize().with_context(|| format!("directory {}", parent.display()))?;
        let path = parent.join(format!("polymux-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it.
    ///
    /// # Errors
    /// Where it cannot be made, or is there already.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("warning: {} stays behind: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_behind() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        fs::write(scratch.directory("below").unwrap().join("file"), b"x").unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
