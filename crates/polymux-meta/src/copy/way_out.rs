//! Remedies for a store that cannot be opened, or that lost transactions which a copy of it has.
//!
//! Invariants:
//! * Nothing is changed, and no other process uses the store or a copy meanwhile.
//! * A copy is offered only after all of it was read.

use std::path::{Path, PathBuf};

use super::restore::{CopyDescription, CopyWorth, describe_copy, verify_copy};
use crate::error::StoreError;
use crate::log_store::{LogStore, LogStoreOptions};

/// Where there may be a second copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    /// A name for people: tier `slow`, for instance.
    pub name: String,
    /// The directory of the copy.
    pub path: PathBuf,
}

/// How a store is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// It can be opened, and no copy is known to have more.
    Healthy,
    /// It can be opened, but has continued after losing transactions that a copy has: which copy, and how much.
    Behind(String),
    /// There is none.
    Gone,
    /// There is one, and it cannot be opened, or ends before a copy of it: why.
    Damaged(String),
}

impl StoreState {
    /// Looks at the store in a directory, and at its copies. `options` are those with which it is opened.
    ///
    /// # Errors
    ///
    /// It cannot be found out: another process has the store open, for instance.
    pub fn of(store: &Path, copies: &[CopyPlace], options: &LogStoreOptions) -> Result<Self, StoreError> {
        let has_log = ["log", "log-backing"].iter().any(|name| store.join(name).exists());
        if !has_log {
            return Ok(Self::Gone);
        }
        let end = match LogStore::check(store, options) {
            Ok(end) => end,
            Err(error @ (StoreError::Corrupted(_) | StoreError::Io(_))) => return Ok(Self::Damaged(error.to_string())),
            Err(error) => return Err(error),
        };
        for place in copies {
            let Ok(Some(copy)) = describe_copy(&place.path) else { continue };
            if copy.worth == CopyWorth::Incomplete || copy.store != end.store {
                continue;
            }
            let (has, ends) = (copy.arrived.get(), end.committed.get());
            if has > ends {
                return Ok(Self::Damaged(format!(
                    "it ends at transaction {ends}, and its second copy on {} goes on to {has}",
                    place.name
                )));
            }
            if let Some(bytes) = end.lost_to(&copy) {
                return Ok(Self::Behind(format!(
                    "it lost {bytes} bytes of log that its second copy on {} has, and went on",
                    place.name
                )));
            }
        }
        Ok(Self::Healthy)
    }
}

/// The copy that holds most. It was read as a whole, so a store can be made of it. `boundaries` are those of its store.
///
/// # Errors
///
/// Why there is none that can be used, for people.
pub fn newest_copy(copies: &[CopyPlace], boundaries: &[Vec<u8>]) -> Result<(usize, CopyDescription), String> {
    let mut newest: Option<(usize, CopyDescription)> = None;
    let mut found = Vec::new();
    for (index, place) in copies.iter().enumerate() {
        let described = match describe_copy(&place.path) {
            Ok(None) => continue,
            Ok(Some(copy)) if copy.worth == CopyWorth::Incomplete => {
                found.push(format!("the one on {} was still being made", place.name));
                continue;
            }
            Ok(Some(_)) => verify_copy(&place.path, boundaries),
            Err(error) => Err(error),
        };
        match described {
            Ok(copy) if newest.is_none_or(|(_, other)| copy.arrived > other.arrived) => newest = Some((index, copy)),
            Ok(_) => {}
            Err(error) => found.push(format!("the one on {} cannot be used: {error}", place.name)),
        }
    }
    newest.ok_or_else(|| match found.is_empty() {
        true => "there is no second copy of the metadata store on any tier".to_owned(),
        false => format!("there is no second copy to start from: {}", found.join("; ")),
    })
}

/// Remedies where a store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WayOut {
    /// Starting from the copy in this place.
    FromCopy {
        /// Its place among those that were given.
        index: usize,
        /// Its description.
        described: CopyDescription,
    },
    /// Making a store out of the objects, because there is no copy to start from, for this reason.
    Rebuild(String),
}

impl WayOut {
    /// Finds it; `None` where the store itself can be opened or is in use: then the error that refused it says what to do.
    #[must_use]
    pub fn of(store: &Path, copies: &[CopyPlace], options: &LogStoreOptions) -> Option<Self> {
        match StoreState::of(store, copies, options) {
            Ok(StoreState::Gone | StoreState::Damaged(_)) => {}
            _ => return None,
        }
        Some(match newest_copy(copies, &options.boundaries) {
            Ok((index, described)) => Self::FromCopy { index, described },
            Err(reason) => Self::Rebuild(reason),
        })
    }

    /// The advice, for people; `copies` are the given ones. `volume` is the name of the volume on a command line.
    #[must_use]
    pub fn advice(&self, copies: &[CopyPlace], volume: &str) -> String {
        match self {
            Self::FromCopy { index, .. } => {
                format!("`polymux mount --from-copy` starts from its second copy on {}", copies[*index].name)
            }
            Self::Rebuild(reason) => {
                format!("{reason}; `polymux rebuild {volume}` makes a new one out of the objects")
            }
        }
    }
}
