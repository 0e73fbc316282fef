//! A policy by its name, as configurations and commands write it.
//!
//! Invariant: a configuration of an earlier version keeps mounting. The names of policies that exist for comparison, which only the program
//! `polymux-lab` has, stand for the product's nearest ones, with a warning; in a file they stay as they are written.

use polymux_fs::{PolicyKind, UnknownPolicy};
use serde::{Deserialize, Serialize};

/// Names that the product has no policy for, each with the one that is used instead.
const ONLY_FOR_COMPARISON: [(&str, PolicyKind); 4] = [
    ("poly-static", PolicyKind::Spread),
    ("poly-dynamic", PolicyKind::Spread),
    ("poly-climb", PolicyKind::Spread),
    ("promote-always", PolicyKind::HotCold),
];

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicyName {
    /// The policy.
    pub kind: PolicyKind,
    /// The name that is written, where the policy has another one.
    #[serde(skip)]
    instead_of: Option<&'static str>,
}

impl PolicyName {
    /// The own name of a policy.
    pub const fn of(kind: PolicyKind) -> Self {
        Self { kind, instead_of: None }
    }

    /// One sentence where another policy is used than the one that is named.
    pub fn warning(self) -> Option<String> {
        let (name, used) = (self.instead_of?, self.kind);
        Some(format!(
            "{used} is used instead of the policy {name}, which is only for comparison; the program polymux-lab has it"
        ))
    }
}

impl TryFrom<String> for PolicyName {
    type Error = UnknownPolicy;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse().map(Self::of).or_else(|unknown| {
            let found = ONLY_FOR_COMPARISON.into_iter().find(|(known, _)| *known == name);
            found.map(|(known, kind)| Self { kind, instead_of: Some(known) }).ok_or(unknown)
        })
    }
}

impl From<PolicyName> for String {
    fn from(name: PolicyName) -> Self {
        name.instead_of.unwrap_or(name.kind.name()).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<PolicyName, UnknownPolicy> {
        PolicyName::try_from(name.to_owned())
    }

    #[test]
    fn every_policy_can_be_chosen_and_a_wrong_name_is_told_all_of_them() {
        for policy in PolicyKind::ALL {
            assert_eq!(named(policy.name()), Ok(PolicyName::of(policy)));
            assert_eq!(PolicyName::of(policy).warning(), None);
        }
        let refused = named("sprad").unwrap_err().to_string();
        assert!(refused.contains("sprad") && refused.contains("spread"), "{refused}");
        assert!(!refused.contains("poly-climb"), "{refused}");
    }

    #[test]
    fn a_policy_that_is_only_for_comparison_is_replaced_and_keeps_its_name_in_files() {
        for (name, kind) in ONLY_FOR_COMPARISON {
            let found = named(name).unwrap();
            assert_eq!((found.kind, String::from(found).as_str()), (kind, name));
            let warning = found.warning().unwrap();
            let says = [name, kind.name(), "polymux-lab"].into_iter().all(|word| warning.contains(word));
            assert!(says, "{warning}");
        }
    }
}
