//! The path of an inode within the volume, for people: resolved only for reports.

use polymux_records::error::Result;
use polymux_records::store::{InodeBody, keys};
use polymux_types::Ino;

use super::{Examination, Found};

/// A path with more names is cut: the tree may have a loop.
const NAMES_MAX: usize = 256;

impl Examination<'_> {
    /// One path of an inode.
    pub(super) fn path_of(&self, ino: Ino) -> Result<String> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && names.len() < NAMES_MAX {
            let (from, to) = keys::parent_names(at);
            let first = self.store.range(&from, &to, 1)?;
            match first.first().and_then(|(key, _)| keys::parent_and_name_of_key(key)) {
                Some((parent, name)) => {
                    names.push(shown(&name));
                    at = parent;
                }
                None => {
                    names.push(self.nameless(at)?);
                    at = Ino::ROOT;
                }
            }
        }
        if names.len() == NAMES_MAX {
            names.push("...".to_owned());
        }
        names.reverse();
        Ok(format!("/{}", names.join("/")))
    }

    /// Placeholder for an inode without a name.
    fn nameless(&self, ino: Ino) -> Result<String> {
        let what = match self.inode(ino)? {
            Found::Missing => "missing inode",
            Found::Unreadable => "unreadable inode",
            Found::Record(record) if matches!(record.body, InodeBody::Directory { .. }) => "directory without a name",
            Found::Record(_) => "file without a name",
        };
        Ok(format!("[{what} {ino}]"))
    }

    /// The path of a name in a directory.
    pub(super) fn path_in(&self, parent: Ino, name: &[u8]) -> Result<String> {
        let directory = self.path_of(parent)?;
        Ok(format!("{}/{}", directory.trim_end_matches('/'), shown(name)))
    }
}

/// A name without anything that acts on a terminal.
pub(super) fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => name.escape_ascii().to_string(),
    }
}
