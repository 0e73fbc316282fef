//! Why rules are refused, and the checks of one rule by itself.

use std::fmt;

use super::Rule;

/// Part of a rule, so that a reader of configs can point at its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleField {
    /// The rule as a whole.
    Rule,
    /// Its name.
    Name,
    /// The pattern.
    Path,
    /// Least or largest size.
    Size,
    /// Least or largest age.
    Age,
    /// The extended attribute.
    Xattr,
    /// The tiers.
    Tiers,
}

/// Why a rule is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleProblem {
    /// The least is above the most.
    MinAboveMax {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The volume has no such tier.
    UnknownTier {
        /// Its number.
        tier: u16,
    },
    /// A tier is named twice.
    TierTwice {
        /// Its number.
        tier: u16,
    },
    /// The pattern cannot be read.
    BadPattern {
        /// The reason.
        reason: String,
    },
    /// The extended attribute has no name.
    EmptyXattrName,
    /// The rule names neither a policy nor tiers.
    NoEffect,
    /// An earlier rule has the same name.
    SameName {
        /// Index of that rule.
        earlier: usize,
    },
    /// An earlier rule has the same conditions.
    SameConditions {
        /// Index of that rule.
        earlier: usize,
    },
    /// An earlier rule matches everything that this one matches.
    NeverMatches {
        /// Index of that rule.
        earlier: usize,
    },
}

impl fmt::Display for RuleProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinAboveMax { min, max } => write!(formatter, "the least ({min}) is above the most ({max})"),
            Self::UnknownTier { tier } => write!(formatter, "the volume has no tier {tier}"),
            Self::TierTwice { tier } => write!(formatter, "tier {tier} is named twice"),
            Self::BadPattern { reason } => write!(formatter, "the pattern cannot be used: {reason}"),
            Self::EmptyXattrName => write!(formatter, "the extended attribute has no name"),
            Self::NoEffect => write!(formatter, "the rule names neither a policy nor tiers nor passthrough"),
            Self::SameName { earlier } => write!(formatter, "rule {} has the same name", earlier + 1),
            Self::SameConditions { earlier } => write!(formatter, "rule {} has the same conditions", earlier + 1),
            Self::NeverMatches { earlier } => {
                write!(formatter, "it never matches, because rule {} takes all of its files", earlier + 1)
            }
        }
    }
}

/// A rule that is refused. Indexes count from 0, the text from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {}: {problem}", .rule + 1)]
pub struct RuleError {
    /// Index of the rule.
    pub rule: usize,
    /// The part of it.
    pub field: RuleField,
    /// The problem.
    pub problem: RuleProblem,
}

/// Makes the checks that need only one rule; the pattern is checked by compiling it.
pub(super) fn check(index: usize, rule: &Rule, tiers_of_volume: &[u16]) -> Result<(), RuleError> {
    let refuse = |field, problem| Err(RuleError { rule: index, field, problem });
    let conditions = &rule.matches;
    for (field, min, max) in [
        (RuleField::Size, conditions.size_min, conditions.size_max),
        (RuleField::Age, conditions.age_min_seconds, conditions.age_max_seconds),
    ] {
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            return refuse(field, RuleProblem::MinAboveMax { min, max });
        }
    }
    if conditions.xattr.as_ref().is_some_and(|(name, _)| name.is_empty()) {
        return refuse(RuleField::Xattr, RuleProblem::EmptyXattrName);
    }
    for (at, tier) in rule.tiers.iter().enumerate() {
        if !tiers_of_volume.contains(tier) {
            return refuse(RuleField::Tiers, RuleProblem::UnknownTier { tier: *tier });
        }
        if rule.tiers[..at].contains(tier) {
            return refuse(RuleField::Tiers, RuleProblem::TierTwice { tier: *tier });
        }
    }
    if rule.policy.is_none() && rule.tiers.is_empty() && rule.passthrough.is_none() {
        return refuse(RuleField::Rule, RuleProblem::NoEffect);
    }
    Ok(())
}
