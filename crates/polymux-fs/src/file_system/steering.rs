//! Policies, rules and pins, which control placement and migration, and the explanation of their effects.

use polymux_data::placement::{PIN_ATTRIBUTE, Steering};
use polymux_policy::{PassthroughUse, PolicyKind, Rule, RuleError, RuleMatch, RuleSet};
use polymux_records::attributes::XattrMode;
use polymux_records::caller::Caller;
use polymux_records::error::Result;
use polymux_records::report::{
    Advice, Explanation, MoveRefusal, MoveWindow, PinReport, PlanReport, PolicyReport, RuleCounts,
};
use polymux_types::Ino;

use super::FileSystem;

/// A rule whose tiers are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedRule {
    /// Its name, for `explain`; may be empty.
    pub name: String,
    /// The files that it is about.
    pub matches: RuleMatch,
    /// The policy for them; `None`: the volume's.
    pub policy: Option<PolicyKind>,
    /// Tiers that they may be on, best first; all where empty.
    pub tiers: Vec<String>,
    /// Whether the kernel may use them directly; `None`: as the options of the mount say.
    pub passthrough: Option<PassthroughUse>,
}

/// Why rules were not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteeringError {
    /// A rule names a tier that there is not.
    #[error("rule {}: the volume has no tier `{tier}`", rule + 1)]
    UnknownTier {
        /// Its place among the rules, from 0.
        rule: usize,
        /// The name.
        tier: String,
    },
    /// A rule is impossible, has no effect, or contradicts another one.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// Whether a volume with tiers of these names would take these rules.
///
/// # Errors
/// The first rule that is refused, by the order of the rules.
pub fn check_rules(rules: &[NamedRule], tier_names: &[String]) -> std::result::Result<(), SteeringError> {
    let tiers: Vec<(u16, String)> = (0..).zip(tier_names.iter().cloned()).collect();
    numbered(rules, &tiers).map(|_| ())
}

/// The rules with numbers in the place of names of tiers, checked.
fn numbered(rules: &[NamedRule], tiers: &[(u16, String)]) -> std::result::Result<RuleSet, SteeringError> {
    let mut numbered = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let number = |name: &String| {
            let found = tiers.iter().find(|(_, tier)| tier == name).map(|(number, _)| *number);
            found.ok_or_else(|| SteeringError::UnknownTier { rule: index, tier: name.clone() })
        };
        numbered.push(Rule {
            name: rule.name.clone(),
            matches: rule.matches.clone(),
            policy: rule.policy,
            passthrough: rule.passthrough,
            tiers: rule.tiers.iter().map(number).collect::<std::result::Result<_, _>>()?,
        });
    }
    let known: Vec<u16> = tiers.iter().map(|(number, _)| *number).collect();
    Ok(RuleSet::new(numbered, &known)?)
}

impl FileSystem {
    /// Replaces the policy of the volume and all rules; files that are not where they may be now are moved by and by.
    ///
    /// # Errors
    /// A rule is refused; then policy and rules stay as they were.
    pub fn set_steering(&self, policy: PolicyKind, rules: &[NamedRule]) -> std::result::Result<(), SteeringError> {
        let tiers: Vec<(u16, String)> =
            self.mounted.volume.tiers.all().iter().map(|tier| (tier.id.0, tier.name.clone())).collect();
        let rules = numbered(rules, &tiers)?;
        let has_tiers = rules.rules().any(|rule| !rule.tiers.is_empty());
        self.mounted.placement.steer(Steering { policy, rules });
        if has_tiers {
            self.mounted.mover.want_walk();
        }
        Ok(())
    }

    /// All policies, and which is the volume's.
    #[must_use]
    pub fn policies(&self) -> Vec<PolicyReport> {
        self.mounted.mover.policy_reports()
    }

    /// Pins a file, or everything below a directory, to a tier, or with `None` takes its pin away. Files that are elsewhere
    /// are moved by and by. The pin is an extended attribute; the nearest one above a file counts.
    ///
    /// # Errors
    /// There is no such tier, it is missing or being emptied, or the inode is neither a regular file nor a directory.
    pub fn pin_to_tier(&self, ino: Ino, tier: Option<&str>) -> std::result::Result<(), MoveRefusal> {
        let root = Caller::root();
        let inode = self.mounted.volume.inode(ino)?;
        if inode.file().is_none() && !inode.is_directory() {
            return Err(MoveRefusal::NotRegular(format!("{:?}", inode.kind).to_lowercase()));
        }
        match tier {
            Some(tier) => {
                self.mounted.mover.tier_to_move_to(tier)?;
                self.mounted.set_xattr(&root, ino, PIN_ATTRIBUTE, tier.as_bytes(), XattrMode::CreateOrReplace)?
            }
            None => match self.mounted.remove_xattr(&root, ino, PIN_ATTRIBUTE) {
                Err(error) if error.errno() == polymux_types::Errno::ENODATA => {}
                removed => removed?,
            },
        }
        Ok(self.mounted.mover.follow_pin(ino)?)
    }

    /// The tier that the pin of an inode names; pins above it do not count. `None` where it has no pin of its own.
    pub fn own_pin(&self, ino: Ino) -> Result<Option<String>> {
        self.mounted.own_pin(ino)
    }

    /// All pins. Walks the extended attributes of the volume.
    pub fn pins(&self) -> Result<Vec<PinReport>> {
        self.logged("pins", self.mounted.pin_reports())
    }

    /// How many files each rule is the first to match now, pinned ones included; at most `files_max` files are looked at.
    pub fn count_rule_matches(&self, files_max: u64) -> Result<RuleCounts> {
        self.logged("rules", self.mounted.count_rule_matches(files_max))
    }

    /// Explains why a file is where it is, and its next migration.
    pub fn explain(&self, ino: Ino) -> Result<Explanation> {
        self.logged("explain", self.mounted.mover.explain(ino))
    }

    /// The migrations that would follow if nothing changed; with a policy: if the volume had that policy.
    pub fn plan(&self, policy: Option<PolicyKind>) -> Result<PlanReport> {
        self.logged("plan", self.mounted.mover.plan(policy))
    }

    /// The share of device reads that the fastest tier serves, and the share that it would serve with another size.
    pub fn advise(&self) -> Result<Advice> {
        self.logged("advise", self.mounted.mover.advise())
    }

    /// When movers may do work that was not requested; always where there is no window. `utc_offset_seconds` is local time
    /// less universal time.
    pub fn set_move_windows(&self, windows: &[MoveWindow], utc_offset_seconds: i32) {
        self.mounted.mover.set_move_windows(windows, utc_offset_seconds);
    }
}
