//! The format of `[[rule]]`: conditions, and the settings of the files that meet all of them.

use serde::{Deserialize, Serialize};

use super::{PassthroughEntry, PolicyName, Size, TimeSpan};

/// One `[[rule]]`; the first one that matches a file decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    /// Its name, for `explain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Pattern for the path from the root of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Least size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_min: Option<Size>,
    /// Largest size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_max: Option<Size>,
    /// Least time since the last modification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than: Option<TimeSpan>,
    /// Most time since the last modification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_than: Option<TimeSpan>,
    /// Owner: a name or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Account>,
    /// Group: a name or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Account>,
    /// Extended attribute: `user.kind`, or with its value `user.kind=video`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattr: Option<String>,
    /// The policy for these files; default: the volume's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyName>,
    /// Tiers that they may be on, best first; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiers: Option<Vec<String>>,
    /// Whether the kernel may use these files directly; default: as the options say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passthrough: Option<PassthroughEntry>,
}

/// An owner or a group as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Account {
    /// Its number.
    Number(u32),
    /// Its name, or its number in quotes.
    Name(String),
}
