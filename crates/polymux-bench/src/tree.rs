//! Walks over trees of files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Adds all files below a directory to `files`; returns how many bytes they have.
///
/// # Errors
/// Where a directory cannot be read.
pub fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            bytes += walk(&entry.path(), files)?;
        } else {
            bytes += metadata.len();
            files.push(entry.path());
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_finds_every_file_and_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        fs::write(directory.path().join("a/b/one"), b"12345").unwrap();
        fs::write(directory.path().join("two"), b"123").unwrap();
        let mut files = Vec::new();
        assert_eq!(walk(directory.path(), &mut files).unwrap(), 8);
        assert_eq!(files.len(), 2);
    }
}
