//! The language of comments: each doc comment is understood alone, and words that no other code base uses become fewer.
//!
//! [`DIALECT`] is a ratchet. Its numbers are lowered with every pass over the comments, and never raised.

mod tidy_sources;

use tidy_sources::sources;

/// Openings of a doc comment that say nothing where an editor shows it alone.
const BANNED_OPENINGS: [&str; 4] = ["The same", "Likewise", "Ditto", "See above"];

/// Words of comments, and how often at most each of them stands in 100,000 words of comment. `docs/GLOSSARY.md` has the terms to use.
const DIALECT: [(&str, usize); 15] = [
    ("nobody", 0),
    ("whoever", 0),
    ("somebody", 0),
    ("everybody", 0),
    ("anybody", 0),
    ("whom", 0),
    ("what", 20),
    ("told", 0),
    ("makes way", 0),
    ("room", 1),
    ("disowned", 0),
    ("extender", 0),
    ("lent", 0),
    ("anew", 46),
    ("as long as", 26),
];

/// What a line that is a comment says.
fn comment_of(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Lines of doc comments that begin with one of the banned openings.
fn banned_openings(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut was_doc = false;
    for line in text.lines() {
        let is_doc = line.trim_start().starts_with("///");
        if is_doc
            && !was_doc
            && let Some(comment) = comment_of(line)
            && BANNED_OPENINGS.iter().any(|opening| comment.starts_with(opening))
        {
            found.push(line.trim());
        }
        was_doc = is_doc;
    }
    found
}

/// All comments of a text in lower case, one word after the other, without punctuation.
fn words_of_comments(text: &str) -> Vec<String> {
    let words = text.lines().filter_map(comment_of).flat_map(str::split_whitespace);
    words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()).collect()
}

fn count(words: &[String], phrase: &str) -> usize {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    words.windows(phrase.len()).filter(|window| window.iter().eq(phrase.iter())).count()
}

#[test]
fn no_doc_comment_needs_the_one_before_it() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        found.extend(banned_openings(&text).into_iter().map(|line| format!("{}: {line}", path.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_of_the_dialect_become_fewer() {
    let mut words = Vec::new();
    for text in sources().into_values() {
        words.extend(words_of_comments(&text));
    }
    let rates = DIALECT.map(|(phrase, most)| (phrase, count(&words, phrase) * 100_000 / words.len(), most));
    let more: Vec<_> = rates.iter().filter(|(_, rate, most)| rate > most).collect();
    assert!(more.is_empty(), "of {} words of comment, in 100,000, with what is allowed: {more:?}", words.len());
}

#[test]
fn the_checks_see_what_they_look_for() {
    let text = "/// First.\n/// The same is fine here.\nfn a() {}\n/// The same for b. Nobody, but\n/// nobody is told.\nfn b() {}\n";
    assert_eq!(banned_openings(text), ["/// The same for b. Nobody, but"]);
    let words = words_of_comments(text);
    assert_eq!((count(&words, "nobody"), count(&words, "is told"), count(&words, "fn")), (2, 1, 0));
}
