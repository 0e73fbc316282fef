//! A volume and images of it that are laid out again for each flip.
//!
//! Invariants: a tier has thousands of directories, which stay, and few files. Those are the same again after
//! [`Stand::lay_out`], whatever an earlier flip did to them; nothing that is tried here makes new ones.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::image::{Stop, TIERS, copy_tree, place, targets, volume};

pub struct Stand {
    original: TempDir,
    image: TempDir,
    scratch: TempDir,
    /// Files of the tiers, below an image.
    tier_files: Vec<PathBuf>,
}

impl Stand {
    pub fn new(stop: Stop) -> Self {
        let original = volume(stop);
        let (image, scratch) = (place(), place());
        for tier in TIERS {
            copy_tree(&original.path().join(tier), &image.path().join(tier));
            copy_tree(&original.path().join(tier), &scratch.path().join(tier));
        }
        let tier_files = TIERS.iter().flat_map(|tier| files_below(original.path(), &original.path().join(tier)));
        let tier_files = tier_files.collect();
        Self { original, image, scratch, tier_files }
    }

    /// The volume as it stopped.
    pub fn original(&self) -> &Path {
        self.original.path()
    }

    /// The image that is tried.
    pub fn image(&self) -> &Path {
        self.image.path()
    }

    /// Files whose bits can be turned.
    pub fn targets(&self) -> Vec<PathBuf> {
        targets(self.original())
    }

    /// Makes the image one of the volume as it stopped.
    pub fn lay_out(&self) -> &Path {
        clear(self.image());
        for part in ["store", "copy"] {
            copy_tree(&self.original().join(part), &self.image().join(part));
        }
        self.copy_tiers(self.original(), self.image());
        self.image()
    }

    /// An image with the copy of the one that is tried, no store, and the tiers of `tiers`.
    pub fn with_copy_alone(&self, tiers: &Path) -> &Path {
        clear(self.scratch.path());
        copy_tree(&self.image().join("copy"), &self.scratch.path().join("copy"));
        self.copy_tiers(tiers, self.scratch.path());
        self.scratch.path()
    }

    fn copy_tiers(&self, from: &Path, to: &Path) {
        for file in &self.tier_files {
            fs::copy(from.join(file), to.join(file)).expect("a file is copied");
        }
    }
}

/// Removes everything but the tiers.
fn clear(image: &Path) {
    for entry in fs::read_dir(image).expect("a directory is read") {
        let path = entry.expect("a directory is read").path();
        if TIERS.iter().any(|tier| path.ends_with(tier)) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.expect("it is removed");
    }
}

/// Every file below a directory, as it is called below `image`.
pub fn files_below(image: &Path, directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).expect("a directory is read") {
            let path = entry.expect("a directory is read").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push(path.strip_prefix(image).expect("below the image").to_owned());
            }
        }
    }
    found.sort();
    found
}
