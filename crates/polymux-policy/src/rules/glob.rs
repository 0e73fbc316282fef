//! Patterns for paths.

use globset::{Candidate, GlobBuilder, GlobMatcher};

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct PathGlob {
    matcher: GlobMatcher,
}

impl PathGlob {
    /// Compiles; the error is a reason for people.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        if pattern.trim_matches('/').is_empty() {
            return Err("it names no file".to_owned());
        }
        let glob = GlobBuilder::new(&from_root(pattern))
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|error| error.kind().to_string())?;
        Ok(Self { matcher: glob.compile_matcher() })
    }

    /// Whether a path from the root of the volume matches.
    pub(super) fn is_match(&self, path: &[u8]) -> bool {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        self.matcher.is_match_candidate(&Candidate::from_bytes(path))
    }
}

/// The pattern as it is matched from the root, without a leading slash: patterns that mean the same become equal.
pub(super) fn from_root(pattern: &str) -> String {
    let rooted = match pattern.strip_prefix('/') {
        Some(rest) => rest.to_owned(),
        None if pattern.contains('/') => pattern.to_owned(),
        None if pattern == "**" => pattern.to_owned(),
        None => format!("**/{pattern}"),
    };
    if rooted.ends_with('/') { rooted + "**" } else { rooted }
}

/// Whether everything that `narrow` matches is certainly matched by `wide`; `false` where that cannot be determined.
pub(super) fn covers(wide: &str, narrow: &str) -> bool {
    let (wide, narrow) = (from_root(wide), from_root(narrow));
    if wide == narrow || wide == "**" || wide == "**/*" {
        return true;
    }
    // `dir/**` takes everything whose pattern begins with `dir/`: the same text matches the same directories.
    wide.strip_suffix("**").is_some_and(|directory| {
        directory.ends_with('/') && narrow.len() > directory.len() && narrow.starts_with(directory)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        PathGlob::new(pattern).expect("a good pattern").is_match(path.as_bytes())
    }

    #[test]
    fn a_star_stays_in_its_directory_and_two_stars_do_not() {
        assert!(matches("a/*.iso", "a/x.iso"));
        assert!(!matches("a/*.iso", "a/b/x.iso"));
        assert!(matches("a/**/*.iso", "a/b/c/x.iso"));
        assert!(matches("a/**/*.iso", "a/x.iso"));
        assert!(matches("a/**", "/a/b/c"));
        assert!(!matches("a/**", "ab"));
        assert!(!matches("a/?", "a//"));
    }

    #[test]
    fn a_pattern_without_a_slash_matches_the_name_anywhere() {
        for path in ["x.iso", "/x.iso", "a/b/x.iso"] {
            assert!(matches("*.iso", path), "{path}");
        }
        assert!(!matches("*.iso", "a.iso/b"));
        assert!(matches("/*.iso", "x.iso"));
        assert!(!matches("/*.iso", "a/x.iso"));
        assert!(matches("b/", "b/c/d"));
        assert!(!matches("b/", "a/b/c"));
    }

    #[test]
    fn names_need_not_be_utf8_and_a_backslash_makes_a_star_plain() {
        assert!(PathGlob::new("*.iso").expect("a good pattern").is_match(b"a/\xff\xfe.iso"));
        assert!(matches(r"a/\*", "a/*"));
        assert!(!matches(r"a/\*", "a/b"));
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_a_reason() {
        for pattern in ["", "/", "//", "a[", "{a", "[z-a]"] {
            assert!(PathGlob::new(pattern).is_err_and(|reason| !reason.is_empty()), "{pattern}");
        }
    }

    #[test]
    fn a_directory_covers_what_lies_below_it() {
        assert!(covers("a/**", "a/b/*.iso"));
        assert!(covers("/a/", "a/**"));
        assert!(covers("**", "x"));
        assert!(covers("*", "x"));
        assert!(covers("*.iso", "**/*.iso"));
        assert!(!covers("a/**", "ab/c"));
        assert!(!covers("a/b/**", "a/**"));
        assert!(!covers("a/*", "a/**"));
    }
}
