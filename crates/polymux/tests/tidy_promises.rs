//! Every sentence of docs/PROMISES.md names tests, and each of them exists.

mod tidy_sources;

use std::collections::BTreeSet;
use std::fs;

use tidy_sources::{sources, workspace};

/// Names of the functions that follow `#[test]` in all sources.
fn names_of_tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in sources().into_values() {
        for after in text.split("#[test]").skip(1) {
            let name = after.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
            names.extend(name.map(str::to_owned));
        }
    }
    names
}

/// Words in backticks that look like the name of a test.
fn names_in(text: &str) -> Vec<String> {
    let is_name = |word: &&str| {
        word.matches('_').count() >= 2 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.split('`').skip(1).step_by(2).filter(is_name).map(str::to_owned).collect()
}

fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(begun) = line.strip_prefix("* ") {
            items.push(begun.to_owned());
            inside = true;
        } else if inside && line.starts_with("  ") {
            items.last_mut().expect("an item was begun").push_str(line);
        } else {
            inside = false;
        }
    }
    items
}

fn mistakes(document: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for item in items(document) {
        let names = names_in(&item);
        if names.is_empty() {
            found.push(format!("no test is named: {item}"));
        }
        found.extend(
            names.iter().filter(|name| !tests.contains(*name)).map(|name| format!("there is no test `{name}`")),
        );
    }
    found
}

#[test]
fn every_promise_names_tests_that_exist() {
    let document = fs::read_to_string(workspace().join("docs/PROMISES.md")).expect("the document can be read");
    assert!(items(&document).len() > 40, "the promises are found");
    let found = mistakes(&document, &names_of_tests());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_test_itself_sees_a_missing_name_and_a_promise_without_one() {
    let tests = BTreeSet::from(["a_test_that_exists".to_owned()]);
    let document = "* It holds. `a_test_that_exists`\n* So does this.\n* And\n  that. `a_test_that_does_not`\n";
    assert_eq!(mistakes(document, &tests).len(), 2);
}
