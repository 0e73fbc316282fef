//! Rules: which policy and which tiers hold for a file (DESIGN section 9).
//!
//! Invariants: the first rule that matches decides, and a [`RuleSet`] that exists has no rule that is impossible, without
//! effect, or hidden behind an earlier one as far as that can be decided. Pins override rules and are not known here.
//!
//! Patterns: `*` and `?` do not cross `/`, `**` as a whole component does. A pattern without a slash is matched against the
//! name of the file in any directory, as `.gitignore` does it; a pattern with a slash is matched from the root of the volume,
//! with or without a leading slash. A pattern that ends in a slash means everything below that directory.

mod conflict;
mod glob;
mod refusal;

use crate::PolicyKind;
use glob::PathGlob;

pub use refusal::{RuleError, RuleField, RuleProblem};

/// One rule of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its name, for `explain`. May be empty.
    pub name: String,
    /// Which files it is about.
    pub matches: RuleMatch,
    /// The policy for them; `None`: the volume's.
    pub policy: Option<PolicyKind>,
    /// The tiers that are allowed, in order of preference; empty: all, in speed order.
    pub tiers: Vec<u16>,
    /// Whether the kernel may use such files directly; `None`: as the volume's options say.
    pub passthrough: Option<PassthroughUse>,
}

/// Which files the kernel may use directly, where it can (DESIGN section 10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PassthroughUse {
    /// Wherever it is safe and the object is well placed.
    #[default]
    Auto,
    /// Only for those who read.
    Read,
    /// None.
    Off,
}

impl Rule {
    /// The tiers that it allows as a bit set, for [`crate::RangeFacts::allowed`]. Numbers that no tier can have are left out.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        if self.tiers.is_empty() {
            return u64::MAX;
        }
        self.tiers.iter().filter_map(|tier| 1_u64.checked_shl(u32::from(*tier))).fold(0, |mask, bit| mask | bit)
    }
}

/// Conditions, all of which must hold; an empty set matches every file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleMatch {
    /// Pattern for the path (see the module's text).
    pub path: Option<String>,
    /// Least size in bytes.
    pub size_min: Option<u64>,
    /// Largest size in bytes.
    pub size_max: Option<u64>,
    /// Least seconds since the last modification.
    pub age_min_seconds: Option<u64>,
    /// Most seconds since the last modification.
    pub age_max_seconds: Option<u64>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Extended attribute that the file has, and its value where that matters.
    pub xattr: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Facts about a file. A caller may omit the facts for which [`RuleSet::needs_path`] and [`RuleSet::needs_xattrs`] return `false`.
#[derive(Clone, Copy)]
pub struct FileFacts<'a> {
    /// Path from the root of the volume, with or without a leading slash.
    pub path: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// Seconds since the last modification.
    pub age_seconds: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The value of an extended attribute, `None` where the file has none of that name. Asked last.
    pub xattr: &'a dyn Fn(&[u8]) -> Option<Vec<u8>>,
}

/// The rules of a volume, in order, checked.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<(Rule, Option<PathGlob>)>,
}

impl RuleSet {
    /// Checks the rules against one another and against the tiers of the volume.
    ///
    /// # Errors
    ///
    /// The first [`RuleError`], by the order of the rules.
    pub fn new(rules: Vec<Rule>, tiers_of_volume: &[u16]) -> Result<Self, RuleError> {
        let mut set = Self::default();
        for (index, rule) in rules.into_iter().enumerate() {
            refusal::check(index, &rule, tiers_of_volume)?;
            let glob = match &rule.matches.path {
                Some(pattern) => Some(PathGlob::new(pattern).map_err(|reason| RuleError {
                    rule: index,
                    field: RuleField::Path,
                    problem: RuleProblem::BadPattern { reason },
                })?),
                None => None,
            };
            for (earlier, (other, _)) in set.rules.iter().enumerate() {
                conflict::check(index, &rule, earlier, other)?;
            }
            set.rules.push((rule, glob));
        }
        Ok(set)
    }

    /// The first rule that matches, and its index.
    #[must_use]
    pub fn first_match(&self, file: &FileFacts<'_>) -> Option<(usize, &Rule)> {
        let matching = |(rule, glob): &&(Rule, Option<PathGlob>)| matches(&rule.matches, glob.as_ref(), file);
        let index = self.rules.iter().position(|entry| matching(&entry))?;
        Some((index, &self.rules[index].0))
    }

    /// The rules in order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// Whether any rule looks at paths.
    #[must_use]
    pub fn needs_path(&self) -> bool {
        self.rules().any(|rule| rule.matches.path.is_some())
    }

    /// Whether any rule looks at extended attributes.
    #[must_use]
    pub fn needs_xattrs(&self) -> bool {
        self.rules().any(|rule| rule.matches.xattr.is_some())
    }
}

fn matches(conditions: &RuleMatch, glob: Option<&PathGlob>, file: &FileFacts<'_>) -> bool {
    let at_least = |least: Option<u64>, value: u64| least.is_none_or(|least| value >= least);
    let at_most = |most: Option<u64>, value: u64| most.is_none_or(|most| value <= most);
    at_least(conditions.size_min, file.size)
        && at_most(conditions.size_max, file.size)
        && at_least(conditions.age_min_seconds, file.age_seconds)
        && at_most(conditions.age_max_seconds, file.age_seconds)
        && conditions.uid.is_none_or(|uid| uid == file.uid)
        && conditions.gid.is_none_or(|gid| gid == file.gid)
        && glob.is_none_or(|glob| glob.is_match(file.path))
        && conditions.xattr.as_ref().is_none_or(|(name, value)| match ((file.xattr)(name), value) {
            (Some(found), Some(wanted)) => found == *wanted,
            (Some(_), None) => true,
            (None, _) => false,
        })
}
