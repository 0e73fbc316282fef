//! Rules that get in each other's way.
//!
//! A later rule is hidden where each condition of an earlier one follows from the later one's. That is decided for all
//! conditions but patterns, for which only the plain cases are decided; an intersection of patterns is never computed.

use super::glob::{covers, from_root};
use super::{Rule, RuleError, RuleField, RuleMatch, RuleProblem};

/// Refuses rule `index` where rule `earlier` takes everything it would match.
pub(super) fn check(index: usize, rule: &Rule, earlier: usize, other: &Rule) -> Result<(), RuleError> {
    let refuse = |field, problem| Err(RuleError { rule: index, field, problem });
    if !rule.name.is_empty() && rule.name == other.name {
        return refuse(RuleField::Name, RuleProblem::SameName { earlier });
    }
    if is_same(&rule.matches, &other.matches) {
        return refuse(RuleField::Rule, RuleProblem::SameConditions { earlier });
    }
    if follows(&rule.matches, &other.matches) {
        return refuse(RuleField::Rule, RuleProblem::NeverMatches { earlier });
    }
    Ok(())
}

fn is_same(one: &RuleMatch, two: &RuleMatch) -> bool {
    let plain = |conditions: &RuleMatch| RuleMatch {
        path: conditions.path.as_deref().map(from_root),
        size_min: Some(conditions.size_min.unwrap_or(0)),
        size_max: Some(conditions.size_max.unwrap_or(u64::MAX)),
        age_min_seconds: Some(conditions.age_min_seconds.unwrap_or(0)),
        age_max_seconds: Some(conditions.age_max_seconds.unwrap_or(u64::MAX)),
        ..conditions.clone()
    };
    plain(one) == plain(two)
}

/// Whether every file that meets `narrow` certainly meets `wide`.
fn follows(narrow: &RuleMatch, wide: &RuleMatch) -> bool {
    let path = match (&wide.path, &narrow.path) {
        (None, _) => true,
        (Some(wide), Some(narrow)) => covers(wide, narrow),
        (Some(wide), None) => covers(wide, "**"),
    };
    let xattr = match (&wide.xattr, &narrow.xattr) {
        (None, _) => true,
        (Some((wide, None)), Some((narrow, _))) => wide == narrow,
        (wide, narrow) => wide == narrow,
    };
    path && xattr
        && wide.size_min.unwrap_or(0) <= narrow.size_min.unwrap_or(0)
        && wide.size_max.unwrap_or(u64::MAX) >= narrow.size_max.unwrap_or(u64::MAX)
        && wide.age_min_seconds.unwrap_or(0) <= narrow.age_min_seconds.unwrap_or(0)
        && wide.age_max_seconds.unwrap_or(u64::MAX) >= narrow.age_max_seconds.unwrap_or(u64::MAX)
        && (wide.uid.is_none() || wide.uid == narrow.uid)
        && (wide.gid.is_none() || wide.gid == narrow.gid)
}
