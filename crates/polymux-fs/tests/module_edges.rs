//! The direction of calls inside the crate: a module may use the ones below it and no other (DESIGN section 3).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules that it may use. The modules at the root (errors, attributes, callers, volume parts,
/// reports, counters) are a vocabulary that all modules share. Services are types of their own, so that a call of a method is a use of the
/// module that has the type.
const EDGES: [(&str, &[&str]); 25] = [
    ("file_system", &["mounted", "recover", "rebuild", "check", "placement", "space", "inode"]),
    ("ops", &["mounted", "namespace", "access", "io", "placement", "space", "inode", "blockmap", "store"]),
    ("recover", &["mounted", "check", "namespace", "placement", "volume", "transaction", "space", "inode", "store"]),
    ("mounted", &["migrate", "namespace", "data_path", "placement", "stamps", "volume"]),
    ("rebuild", &["namespace", "blockmap", "store"]),
    ("check", &["access", "placement", "blockmap", "store"]),
    (
        "migrate",
        &[
            "data_path",
            "io",
            "placement",
            "stamps",
            "volume",
            "transaction",
            "tier_reads",
            "space",
            "heat",
            "sched",
            "inode",
            "blockmap",
            "store",
        ],
    ),
    ("namespace", &["data_path", "io", "access", "placement", "stamps", "volume", "transaction", "inode", "store"]),
    (
        "io",
        &["data_path", "placement", "volume", "transaction", "space", "heat", "sched", "inode", "blockmap", "store"],
    ),
    ("data_path", &["placement", "stamps", "volume", "space", "heat", "sched", "inode"]),
    ("placement", &["volume", "tier_reads", "space", "heat", "sched", "inode", "store"]),
    ("stamps", &["volume", "inode", "store"]),
    ("access", &["volume", "inode"]),
    ("volume", &["transaction", "space", "inode", "store"]),
    ("transaction", &["inode", "blockmap", "store"]),
    ("tier_reads", &["heat", "sched"]),
    ("space", &["sched", "store"]),
    ("heat", &["store"]),
    ("sched", &[]),
    ("inode", &["blockmap", "store"]),
    ("blockmap", &[]),
    ("store", &["blockmap"]),
    ("counters", &[]),
    ("passthrough", &["inode"]),
    ("report", &[]),
];

const WORDS: [&str; 8] =
    ["attributes", "caller", "error", "report", "parts", "counters", "passthrough", "planted_faults"];

fn source_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the source folder can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            source_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The modules at the root of the crate that a source text names with `crate::`.
fn modules_used(text: &str) -> Vec<String> {
    let mut used: Vec<String> = text
        .match_indices("crate::")
        .filter(|(at, _)| !text[..*at].ends_with("polymux_"))
        .map(|(at, pattern)| {
            let rest = &text[at + pattern.len()..];
            rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect()
        })
        .filter(|name: &String| !name.is_empty())
        .collect();
    used.sort();
    used.dedup();
    used
}

fn violations(sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let mut found = Vec::new();
    for (path, text) in sources {
        let first = path.components().next().expect("a path has a component").as_os_str().to_string_lossy();
        let module = first.trim_end_matches(".rs").to_owned();
        let Some(may_use) = allowed.get(module.as_str()) else { continue };
        for used in modules_used(text) {
            let is_fine = used == module || WORDS.contains(&used.as_str()) || may_use.contains(&used.as_str());
            if !is_fine {
                found.push(format!("{} uses `{used}`, which is not below it", path.display()));
            }
        }
    }
    found
}

fn sources() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            (path.strip_prefix(&root).expect("it lies below the root").to_owned(), text)
        })
        .collect()
}

#[test]
fn modules_call_downwards_only() {
    let found = violations(&sources());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_block_map_does_no_io_and_takes_no_clock() {
    for (path, text) in sources().iter().filter(|(path, _)| path.starts_with("blockmap")) {
        for forbidden in ["polymux_tier", "polymux_meta", "Clock", "std::fs"] {
            assert!(!text.contains(forbidden), "{} names {forbidden}", path.display());
        }
    }
}

#[test]
fn the_test_itself_sees_a_call_upwards() {
    let planted = BTreeMap::from([(PathBuf::from("blockmap/map.rs"), "use crate::ops::files;".to_owned())]);
    assert_eq!(violations(&planted).len(), 1);
}
