//! Plain names of volumes and tiers.
//!
//! Invariant: a name that passed [`check`] can stand in a file name, a mount table, a command line and a unit name
//! without any quoting.

use anyhow::{Result, bail};

/// Longest name in bytes: leaves space for suffixes in the names of files and sockets.
pub const LENGTH_MAX: usize = 63;

/// Refuses a name that is not plain. `what` is the kind of object it names.
pub fn check(what: &str, name: &str) -> Result<()> {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    let starts_well = name.starts_with(|character: char| character.is_ascii_alphanumeric());
    if starts_well && name.len() <= LENGTH_MAX && name.chars().all(plain) {
        return Ok(());
    }
    bail!(
        "{what} name `{}` is not plain: use 1 to {LENGTH_MAX} letters, digits, `-` and `_`, beginning with a letter or digit",
        name.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_pass() {
        for name in ["a", "media", "Media-2_x", "7", &"x".repeat(63)] {
            check("volume", name).unwrap();
        }
        for name in ["", "-a", "_a", "a b", "a/b", "..", "a.b", "ä", "a\n", &"x".repeat(64)] {
            let error = check("volume", name).unwrap_err().to_string();
            assert!(error.contains("not plain") && !error.contains('\n'), "{error}");
        }
    }
}
