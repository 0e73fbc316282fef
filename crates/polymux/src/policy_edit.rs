//! `policy set` in a configuration file: the volume's policy, or the rule for one pattern.
//!
//! Invariants: the result is checked as a whole before anything is written, so that a rule that conflicts with
//! another one never gets into the file; comments and form of everything else stay.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::protocol::PolicyChange;
use polymux_config::config::VolumeConfig;
use polymux_config::config_edit;
use polymux_config::config_format::{PolicyName, RuleEntry, VolumeFile};

/// Changes the file, and returns its new content.
pub fn change(path: &Path, change: &PolicyChange) -> Result<VolumeConfig> {
    // The policy that is used, also where an older command names another one.
    let policy = PolicyName::of(PolicyName::try_from(change.policy.clone())?.kind);
    // An error that the file had before is reported with the line on which it stands now.
    let rules_before = VolumeConfig::read(path)?.steering.rules.len();
    config_edit::edit(path, |file, text| {
        let mut document: DocumentMut = text.parse().with_context(|| format!("cannot read {}", path.display()))?;
        match &change.path {
            None => {
                file.policy = Some(policy);
                set(document.as_table_mut(), "policy", policy.kind.name().into());
            }
            Some(pattern) => change_rule(file, &mut document, pattern, policy, change.tiers.as_deref()),
        }
        let changed = document.to_string();
        let is_new = file.rule.len() > rules_before;
        VolumeConfig::parse(path, &changed).map_err(|error| {
            let told = format!("{error:#}");
            match (&change.path, is_new) {
                // It stands on no line of the file.
                (Some(pattern), true) => anyhow!("a rule for {pattern} is refused: {}", without_place(&told, path)),
                _ => anyhow!("refused, nothing was changed: {told}"),
            }
        })?;
        Ok(changed)
    })?;
    VolumeConfig::read(path)
}

/// Changes the rule whose only condition is this pattern; makes it, after all others, where there is none.
fn change_rule(
    file: &mut VolumeFile,
    document: &mut DocumentMut,
    pattern: &str,
    policy: PolicyName,
    tiers: Option<&[String]>,
) {
    let tables = document.entry("rule").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let found = file.rule.iter().position(|rule| is_about_pattern(rule, pattern));
    let index = found.unwrap_or_else(|| {
        file.rule.push(RuleEntry { path: Some(pattern.to_owned()), ..RuleEntry::default() });
        if let Some(tables) = tables.as_array_of_tables_mut() {
            let mut table = Table::new();
            set(&mut table, "path", pattern.into());
            tables.push(table);
        }
        file.rule.len() - 1
    });
    let rule = &mut file.rule[index];
    rule.policy = Some(policy);
    if let Some(tiers) = tiers {
        rule.tiers = Some(tiers.to_vec());
    }
    // A list in another form is written anew by the caller.
    let Some(table) = tables.as_array_of_tables_mut().and_then(|tables| tables.get_mut(index)) else { return };
    set(table, "policy", policy.kind.name().into());
    if let Some(tiers) = tiers {
        set(table, "tiers", Value::from_iter(tiers.iter().map(String::as_str)));
    }
}

/// The message after `FILE:LINE: `.
fn without_place<'a>(told: &'a str, path: &Path) -> &'a str {
    let rest = told.strip_prefix(&format!("{}:", path.display()));
    rest.and_then(|rest| rest.split_once(": ")).map_or(told, |(_, said)| said)
}

fn is_about_pattern(rule: &RuleEntry, pattern: &str) -> bool {
    let conditions = RuleEntry { name: None, policy: None, tiers: None, ..rule.clone() };
    conditions == RuleEntry { path: Some(pattern.to_owned()), ..RuleEntry::default() }
}

/// Sets a key, and leaves the comment beside it where it is.
fn set(table: &mut Table, key: &str, mut value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(present) => {
            *value.decor_mut() = present.decor().clone();
            *present = value;
        }
        None => {
            table.insert(key, Item::Value(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const HAND_WRITTEN: &str = r#"# My volume.
name = "media"   # the name
volume = "6b1f5c9e-0000-4000-8000-000000000001"
metadata = "fast"

[[tier]]
name = "fast"
path = "/mnt/nvme"

[[tier]]
name = "slow"    # spins
path = "/mnt/hdd"

# Films are read once.
[[rule]]
name = "films"
path = "films/**"
tiers = ["slow"] # only there

# Choices.
[options]
noatime = true
"#;

    fn changed(text: &str, policy: &str, path: Option<&str>, tiers: Option<&[&str]>) -> Result<(String, VolumeConfig)> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("media.toml");
        fs::write(&file, text).unwrap();
        let tiers = tiers.map(|tiers| tiers.iter().map(|tier| (*tier).to_owned()).collect());
        let change = PolicyChange { policy: policy.to_owned(), path: path.map(str::to_owned), tiers };
        let done = super::change(&file, &change);
        let after = fs::read_to_string(&file).unwrap();
        if done.is_err() {
            assert_eq!(after, text, "what is refused changes nothing");
        }
        Ok((after, done?))
    }

    #[track_caller]
    fn assert_all_kept(text: &str, except: &[&str]) {
        for line in HAND_WRITTEN.lines().filter(|line| !except.contains(line)) {
            assert!(text.lines().any(|kept| kept == line), "`{line}` is gone:\n{text}");
        }
    }

    #[test]
    fn the_policy_of_the_volume_changes_and_all_else_stays() {
        let (text, config) = changed(HAND_WRITTEN, "lru", None, None).unwrap();
        assert_eq!(config.steering.policy().name(), "lru");
        assert_all_kept(&text, &[]);
        let noted = text.replace("policy = \"lru\"", "policy = \"lru\" # for now");
        let (text, config) = changed(&noted, "poly", None, None).unwrap();
        assert_eq!(config.steering.policy().name(), "poly");
        assert!(text.contains("policy = \"poly\" # for now"), "{text}");
        assert_eq!(text, noted.replace("\"lru\"", "\"poly\""));
        let (text, config) = changed(HAND_WRITTEN, "poly-climb", None, None).unwrap();
        assert_eq!(config.steering.policy().name(), "spread", "what only the lab has is replaced in the file, too");
        assert!(text.contains("policy = \"spread\""), "{text}");
    }

    #[test]
    fn a_rule_is_added_after_the_others_and_then_changed() {
        let (text, config) = changed(HAND_WRITTEN, "static", Some("*.iso"), Some(&["slow", "fast"])).unwrap();
        assert_all_kept(&text, &[]);
        assert_eq!(config.steering.rules.len(), 2);
        assert_eq!(config.steering.rules[1].tiers, ["slow", "fast"]);
        assert!(text.find("*.iso").unwrap() < text.find("# Choices.").unwrap(), "rules stay together:\n{text}");
        let (again, config) = changed(&text, "lru", Some("*.iso"), None).unwrap();
        assert_eq!(config.steering.rules[1].tiers, ["slow", "fast"], "tiers that are not named stay");
        assert_eq!(again, text.replace("\"static\"", "\"lru\""));
        let (text, config) = changed(HAND_WRITTEN, "poly", Some("films/**"), Some(&["fast"])).unwrap();
        assert_eq!((config.steering.rules.len(), config.steering.rules[0].name.as_str()), (1, "films"));
        assert!(text.contains("tiers = [\"fast\"] # only there"), "{text}");
        assert_all_kept(&text, &["tiers = [\"slow\"] # only there"]);
    }

    #[test]
    fn what_conflicts_is_refused_and_changes_nothing() {
        for (policy, path, tiers, needle) in [
            ("lfu", None, None, "hot-cold"),
            ("lru", Some("films/old/**"), None, "rule `films` on line 15"),
            ("lru", Some("a["), None, "pattern"),
            ("lru", Some("*.iso"), Some(&["tape"][..]), "no tier `tape`"),
        ] {
            let error = format!("{:#}", changed(HAND_WRITTEN, policy, path, tiers).unwrap_err());
            assert!(error.contains(needle), "{policy} {path:?}: {error}");
        }
    }

    #[test]
    fn a_form_that_is_not_understood_is_written_anew() {
        let inline = "name = \"media\"\nvolume = \"6b1f5c9e-0000-4000-8000-000000000001\"\nmetadata = \"a\"\n\
                      tier = [{ name = \"a\", path = \"/a\" }]\nrule = [{ path = \"x\", policy = \"lru\" }]\n";
        let (_, config) = changed(inline, "poly", Some("y"), None).unwrap();
        assert_eq!(config.steering.rules.len(), 2);
    }
}
