//! The sources of the workspace, for the checks of the house rules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect(directory: &Path, files: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(directory).expect("a folder of the workspace can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            files.insert(path, text);
        }
    }
}

/// All Rust sources of the crates, by path.
pub fn sources() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    collect(&workspace().join("crates"), &mut files);
    assert!(files.len() > 100, "the sources are not where they are looked for");
    files
}
