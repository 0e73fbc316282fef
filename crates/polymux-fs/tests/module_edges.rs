//! The direction of calls between the modules of each crate of the file system: a module may use the ones below it and no other (DESIGN
//! section 3).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of one crate with those of the same crate that each may use.
type Edges = &'static [(&'static str, &'static [&'static str])];

/// The crates that make up the file system. The compiler keeps one from calling the crates above it. A service is a type of its own, so that a call
/// of a method is a use of the module that has the type; where modules share a type, [`methods_of_a_shared_type`] finds the module.
const CRATES: [(&str, Edges); 5] = [
    (
        "polymux-records",
        &[
            ("store", &["blockmap", "counters", "parts", "report", "attributes", "error"]),
            ("blockmap", &["planted_faults"]),
            ("report", &["passthrough", "error"]),
            ("parts", &["error"]),
            ("lease", &["attributes"]),
            ("attributes", &[]),
            ("caller", &["error"]),
            ("counters", &[]),
            ("error", &[]),
            ("passthrough", &[]),
            ("planted_faults", &[]),
        ],
    ),
    (
        "polymux-volume",
        &[
            ("stamps", &["volume", "inode"]),
            ("access", &["volume", "inode"]),
            ("volume", &["transaction", "space", "inode"]),
            ("transaction", &["inode"]),
            ("tier_reads", &["heat", "sched"]),
            ("space", &["sched"]),
            ("heat", &[]),
            ("sched", &[]),
            ("inode", &[]),
        ],
    ),
    (
        "polymux-data",
        &[
            ("namespace", &["io", "data_path", "placement"]),
            ("io", &["data_path", "placement"]),
            ("data_path", &["placement"]),
            ("placement", &[]),
        ],
    ),
    (
        "polymux-mover",
        &[
            ("requests", &["planning", "mover", "queue"]),
            ("driver", &["planning", "execution", "mover", "queue"]),
            ("reports", &["planning", "mover", "queue"]),
            ("planning", &["mover", "queue"]),
            ("execution", &["mover", "queue"]),
            ("mover", &["queue"]),
            ("queue", &[]),
        ],
    ),
    (
        "polymux-fs",
        &[
            ("file_system", &["ops", "mounted", "recover", "rebuild", "check"]),
            ("recover", &["ops", "mounted", "check"]),
            ("ops", &["mounted"]),
            ("mounted", &[]),
            ("rebuild", &[]),
            ("check", &[]),
        ],
    ),
];

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

/// The modules whose items a crate re-exports at its root, by the names of these items.
fn re_exports(sources: &BTreeMap<PathBuf, String>) -> BTreeMap<String, String> {
    let root = sources.get(Path::new("lib.rs")).map_or("", String::as_str);
    let mut found = BTreeMap::new();
    for statement in root.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let Some((path, _)) = statement.split_once("::") else { continue };
        if path.starts_with("polymux_") {
            continue;
        }
        for name in statement.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty()) {
            found.insert(name.to_owned(), path.to_owned());
        }
    }
    found
}

/// The code of a source text, without its comments, in which the items that a crate re-exports are named by their modules.
fn with_modules_named(text: &str, exported: &BTreeMap<String, String>) -> String {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut named = code.join("\n") + "\n";
    for (name, module) in exported.iter().filter(|(name, _)| name.starts_with(char::is_uppercase)) {
        named = named.replace(&format!("crate::{name}"), &format!("crate::{module}::{name}"));
    }
    named
}

fn violations(edges: Edges, sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = edges.iter().copied().collect();
    let exported = re_exports(sources);
    let mut found = Vec::new();
    for (path, text) in sources {
        let module = module_of(path);
        let text = &with_modules_named(text, &exported);
        if NOT_MODULES.contains(&module.as_str()) {
            continue;
        }
        let Some(may_use) = allowed.get(module.as_str()) else {
            found.push(format!("`{module}` is not in the list of modules"));
            continue;
        };
        for used in modules_used(text) {
            if used != module && !may_use.contains(&used.as_str()) {
                found.push(format!("{} uses `{used}`, which is not below it", path.display()));
            }
        }
    }
    found
}

/// The module that a source file belongs to.
fn module_of(path: &Path) -> String {
    let first = path.components().next().expect("a path has a component").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// A source file as a path of the language leads to it, for instance `planning/worth`.
fn file_of(path: &Path) -> String {
    path.with_extension("").to_string_lossy().into_owned()
}

/// The `impl` blocks of a formatted source text: the type, and the text of the block.
fn impl_blocks(text: &str) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("\nimpl ") {
        let rest = &text[at + 1..];
        let Some((head, body)) = rest.split_once(" {\n") else { continue };
        let Some((body, _)) = body.split_once("\n}\n") else { continue };
        found.push((head.trim_start_matches("impl ").to_owned(), body));
    }
    found
}

fn words_after<'a>(text: &'a str, pattern: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(pattern).skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        rest[end..].starts_with(['(', '<']).then_some(&rest[..end])
    })
}

/// For each type that several places implement: its methods, with the place that has each, which `place_of` names for a source file.
fn methods_of_a_shared_type(
    sources: &BTreeMap<PathBuf, String>,
    place_of: fn(&Path) -> String,
) -> BTreeMap<(String, String), String> {
    let mut methods = BTreeMap::new();
    for (path, text) in sources {
        for (of, block) in impl_blocks(text) {
            for method in words_after(block, "fn ") {
                methods.insert((of.clone(), method.to_owned()), place_of(path));
            }
        }
    }
    methods
}

/// Calls of methods upwards: `self.method()` in an `impl` block of a type that another module implements as well.
fn method_violations(edges: Edges, sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = edges.iter().copied().collect();
    let methods = methods_of_a_shared_type(sources, module_of);
    let mut found = Vec::new();
    for (path, text) in sources {
        let module = module_of(path);
        for (of, block) in impl_blocks(text) {
            for method in words_after(block, "self.") {
                let Some(used) = methods.get(&(of.clone(), method.to_owned())).filter(|used| **used != module) else {
                    continue;
                };
                if !allowed.get(module.as_str()).is_some_and(|may_use| may_use.contains(&used.as_str())) {
                    found.push(format!("{} calls `{of}::{method}` of `{used}`, which is not below it", path.display()));
                }
            }
        }
    }
    found
}

/// The root of a crate, and a test that uses all of it.
const NOT_MODULES: [&str; 2] = ["lib", "migration_schedules"];

fn sources(name: &str) -> BTreeMap<PathBuf, String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies beside others");
    let root = crates.join(name).join("src");
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
    let found = CRATES.iter().flat_map(|(name, edges)| {
        let sources = sources(name);
        let mut found = violations(edges, &sources);
        found.extend(method_violations(edges, &sources));
        found
    });
    let found: Vec<_> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The file that a path of the language leads to: the longest one that exists.
fn file_named(files: &BTreeMap<String, String>, mut parts: Vec<&str>) -> Option<String> {
    while !parts.is_empty() {
        let name = parts.join("/");
        if files.contains_key(&name) {
            return Some(name);
        }
        parts.pop();
    }
    None
}

/// The files that a file of a crate uses: those that its paths lead to, and those that have the methods of shared types it calls on `self`.
fn files_used(
    name: &str,
    text: &str,
    files: &BTreeMap<String, String>,
    methods: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut used = Vec::new();
    let folder: Vec<&str> = name.split('/').collect();
    for (prefix, base) in [("crate::", &folder[..0]), ("super::", &folder[..folder.len() - 1]), ("self::", &folder[..])]
    {
        for rest in text.split(prefix).skip(1) {
            let path: String = rest.chars().take_while(|c| c.is_alphanumeric() || ['_', ':'].contains(c)).collect();
            let parts = base.iter().copied().chain(path.split("::").filter(|part| !part.is_empty())).collect();
            used.extend(file_named(files, parts));
        }
    }
    let joined: String = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ").replace(" .", ".");
    for of in ["self.", "mover."] {
        used.extend(words_after(&joined, of).filter_map(|method| methods.get(method).cloned()));
    }
    used.retain(|used| used != name);
    used
}

/// A file that uses itself by way of others.
fn file_in_a_circle(sources: &BTreeMap<PathBuf, String>) -> Option<String> {
    let exported = re_exports(sources);
    let code: BTreeMap<PathBuf, String> = sources
        .iter()
        .filter(|(path, _)| *path != Path::new("lib.rs"))
        .map(|(path, text)| {
            let text = text.split("#[cfg(test)]\nmod tests").next().expect("a split has a first part");
            (path.clone(), with_modules_named(text, &exported))
        })
        .collect();
    let methods: BTreeMap<String, String> = methods_of_a_shared_type(&code, file_of)
        .into_iter()
        .filter_map(|((of, method), file)| (of == "Mover").then_some((method, file)))
        .collect();
    let files: BTreeMap<String, String> = code.into_iter().map(|(path, text)| (file_of(&path), text)).collect();
    let uses: BTreeMap<&str, Vec<String>> =
        files.iter().map(|(name, text)| (name.as_str(), files_used(name, text, &files, &methods))).collect();
    let reaches_itself = |name: &&&str| {
        let (mut seen, mut open) = (BTreeSet::new(), uses[**name].clone());
        while let Some(next) = open.pop() {
            if next == ***name {
                return true;
            }
            if seen.insert(next.clone()) {
                open.extend(uses[next.as_str()].iter().cloned());
            }
        }
        false
    };
    uses.keys().find(reaches_itself).map(|name| (*name).to_owned())
}

#[test]
fn no_files_of_the_mover_call_one_another_in_circles() {
    assert_eq!(file_in_a_circle(&sources("polymux-mover")), None);
}

#[test]
fn no_module_is_listed_above_one_that_uses_it() {
    for (name, edges) in CRATES {
        for (place, (module, may_use)) in edges.iter().enumerate() {
            for used in *may_use {
                let below =
                    edges.iter().position(|(listed, _)| listed == used).expect("a module that is used is listed");
                assert!(below > place, "{name}: `{module}` uses `{used}`, which stands above it");
            }
        }
    }
}

#[test]
fn the_block_map_does_no_io_and_takes_no_clock() {
    for (path, text) in sources("polymux-records").iter().filter(|(path, _)| path.starts_with("blockmap")) {
        for forbidden in ["polymux_tier", "polymux_meta", "Clock", "std::fs"] {
            assert!(!text.contains(forbidden), "{} names {forbidden}", path.display());
        }
    }
}

#[test]
fn the_test_itself_sees_a_call_upwards() {
    let planted = BTreeMap::from([(PathBuf::from("blockmap/map.rs"), "use crate::store::keys;".to_owned())]);
    assert_eq!(violations(CRATES[0].1, &planted).len(), 1);
    let upper = "\nimpl Service {\n    fn above(&self) {\n    }\n}\n".to_owned();
    let lower = "\nimpl Service {\n    fn below(&self) {\n        self.above();\n    }\n}\n".to_owned();
    let planted = BTreeMap::from([(PathBuf::from("store/a.rs"), upper), (PathBuf::from("blockmap/map.rs"), lower)]);
    assert_eq!(method_violations(CRATES[0].1, &planted).len(), 1);
    let root = ("lib.rs", "mod parts;\npub use store::{Key, Store};\n");
    let planted = [root, ("blockmap/map.rs", "use crate::Store;")].map(|(path, text)| (path.into(), text.into()));
    assert_eq!(violations(CRATES[0].1, &BTreeMap::from(planted)).len(), 1, "an item that is re-exported");
}

#[test]
fn the_test_itself_sees_files_in_a_circle() {
    let calls =
        |name: &str, call: &str| format!("\nimpl Mover {{\n    fn {name}(&self) {{\n        {call}\n    }}\n}}\n");
    let files = |third: &str| {
        let all = [
            ("a/one.rs", calls("one", "self.two();")),
            ("a/two.rs", "use super::three::T;".to_owned() + &calls("two", "")),
            ("a/three.rs", third.to_owned()),
        ];
        all.map(|(path, text)| (PathBuf::from(path), text))
    };
    assert_eq!(file_in_a_circle(&files("use crate::b;").into()), None);
    assert!(file_in_a_circle(&files("use crate::a::one::Thing;").into()).is_some());
    assert!(file_in_a_circle(&files(&calls("three", "self\n            .one();")).into()).is_some());
}
