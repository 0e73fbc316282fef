//! House rules that a machine can check, over the whole workspace.

mod tidy_sources;

use std::fs;

use tidy_sources::{sources, workspace};

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;
const BANNED_NAMES: [&str; 4] = ["utils", "util", "helpers", "misc"];
const CRATES_WITH_UNSAFE: [&str; 5] =
    ["polymux-tier", "polymux-transport", "polymux-c", "polymux-lease", "polymux-direct"];
/// A test that maps files, as programs do.
const TEST_WITH_UNSAFE: &str = "polymux-fuse/tests/open_modes/mapping.rs";

const BELOW_THE_FILE_SYSTEM: [&str; 4] = ["polymux-types", "polymux-tier", "polymux-meta", "polymux-policy"];

/// Each crate with the crates of this workspace that it may depend on (DESIGN section 3).
const CRATE_EDGES: [(&str, &[&str]); 22] = [
    ("polymux-types", &[]),
    ("polymux-tier", &["polymux-types"]),
    ("polymux-meta", &["polymux-types", "polymux-tier"]),
    ("polymux-policy", &["polymux-types"]),
    ("polymux-records", &BELOW_THE_FILE_SYSTEM),
    ("polymux-volume", &["polymux-types", "polymux-tier", "polymux-meta", "polymux-policy", "polymux-records"]),
    (
        "polymux-data",
        &["polymux-types", "polymux-tier", "polymux-meta", "polymux-policy", "polymux-records", "polymux-volume"],
    ),
    (
        "polymux-mover",
        &[
            "polymux-types",
            "polymux-tier",
            "polymux-meta",
            "polymux-policy",
            "polymux-records",
            "polymux-volume",
            "polymux-data",
        ],
    ),
    (
        "polymux-fs",
        &[
            "polymux-types",
            "polymux-tier",
            "polymux-meta",
            "polymux-policy",
            "polymux-records",
            "polymux-volume",
            "polymux-data",
            "polymux-mover",
        ],
    ),
    ("polymux-transport", &["polymux-types"]),
    ("polymux-lease", &["polymux-types"]),
    ("polymux-client", &["polymux-types", "polymux-lease"]),
    ("polymux-direct", &["polymux-client"]),
    ("polymux-door", &["polymux-types", "polymux-lease", "polymux-fs"]),
    ("polymux-fuse", &["polymux-types", "polymux-lease", "polymux-fs", "polymux-transport"]),
    ("polymux-config", &["polymux-types", "polymux-tier", "polymux-meta", "polymux-fs"]),
    ("polymux-embed", &["polymux-types", "polymux-tier", "polymux-fs", "polymux-config"]),
    ("polymux-c", &["polymux-types", "polymux-embed"]),
    (
        "polymux",
        &[
            "polymux-types",
            "polymux-tier",
            "polymux-meta",
            "polymux-fs",
            "polymux-config",
            "polymux-door",
            "polymux-fuse",
        ],
    ),
    ("polymux-sim", &["polymux-types", "polymux-tier", "polymux-meta", "polymux-transport"]),
    ("polymux-lab", &["polymux-types", "polymux-policy", "polymux"]),
    (
        "polymux-bench",
        &[
            "polymux-types",
            "polymux-tier",
            "polymux-meta",
            "polymux-fs",
            "polymux-embed",
            "polymux-client",
            "polymux-lab",
            "polymux-sim",
            "polymux-transport",
        ],
    ),
];

/// Name and length of each function of a formatted source text.
fn functions(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        if let Some((name, start, of)) = &open {
            if indent == *of && line.trim_start().starts_with('}') {
                found.push((name.clone(), number - start + 1));
                open = None;
            }
            continue;
        }
        let is_function = line.split_whitespace().take_while(|word| *word != "(").any(|word| word == "fn");
        let is_code = !line.trim_start().starts_with("//");
        if is_function && is_code && !line.trim_end().ends_with([';', '}']) {
            let name = line.split("fn ").nth(1).unwrap_or("").split(['(', '<']).next().unwrap_or("").to_owned();
            open = Some((name, number, indent));
        }
    }
    found
}

#[test]
fn no_file_is_longer_than_a_thousand_lines() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn no_function_is_longer_than_seventy_lines() {
    let mut long = Vec::new();
    for (path, text) in sources() {
        for (name, lines) in functions(&text).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX) {
            long.push(format!("{}: {name} has {lines} lines", path.display()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn the_count_of_lines_sees_a_long_function() {
    let body = "    let x = 1;\n".repeat(FUNCTION_LINES_MAX);
    assert_eq!(functions(&format!("fn long() {{\n{body}}}\n")), [("long".to_owned(), FUNCTION_LINES_MAX + 2)]);
}

#[test]
fn no_module_is_a_drawer_of_odds_and_ends() {
    for path in sources().keys() {
        let name = path.file_stem().expect("a source file has a name").to_string_lossy();
        assert!(!BANNED_NAMES.contains(&name.as_ref()), "{}", path.display());
    }
}

#[test]
fn unsafe_code_stands_only_where_the_design_allows_it() {
    for (path, text) in sources() {
        let allowed = CRATES_WITH_UNSAFE.iter().any(|name| path.components().any(|part| part.as_os_str() == *name));
        let word = concat!("un", "safe {");
        let allowed = allowed || path.ends_with(TEST_WITH_UNSAFE);
        assert!(allowed || !text.contains(word), "{}", path.display());
    }
}

#[test]
fn crates_depend_downwards_only() {
    for (name, allowed) in CRATE_EDGES {
        let manifest = fs::read_to_string(workspace().join("crates").join(name).join("Cargo.toml"));
        let manifest = manifest.expect("each crate has a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap_or("");
        for line in dependencies.lines().filter(|line| line.starts_with("polymux")) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or("");
            assert!(allowed.contains(&dependency), "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn every_test_that_the_semantics_name_exists() {
    let text = fs::read_to_string(workspace().join("SEMANTICS.md")).expect("the semantics are there");
    let all: String = sources().into_values().collect();
    let mut named = 0;
    for list in text.split('[').skip(1).filter_map(|rest| rest.split(']').next()) {
        for test in list.split(',').map(str::trim).filter(|name| name.contains('_')) {
            assert!(all.contains(&format!("fn {test}(")), "SEMANTICS.md names {test}, which does not exist");
            named += 1;
        }
    }
    assert!(named > 30, "only {named} tests were found in SEMANTICS.md");
}
