//! Policies, rules and movers of a configuration, checked.
//!
//! Invariants of a [`SteeringConfig`]: the file system takes its rules, in this order; names of owners and groups are
//! known on this machine; `rules`, `entries` and `lines` have the same length.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use polymux_fs::{
    FileSystem, MoveWindow, MoverPoliteness, NamedRule, PassthroughUse, PolicyKind, RuleField, RuleMatch, RuleProblem,
    SteeringError,
};

use crate::config::{TierConfig, VolumeConfig};
use crate::config_format::rules::Account;
use crate::config_format::{self, OptionsEntry, PolicyName, RuleEntry, Section, Size};

/// Heat that halves faster than this only reflects the last moments.
const HALF_LIFE_MIN_SECONDS: u64 = 60;

/// Less memory for heat than this remembers nothing.
const HEAT_MEMORY_MIN: u64 = 1 << 20;

/// How often it is looked whether local time has changed against universal time.
const OFFSET_CHECK: Duration = Duration::from_secs(60);

/// An invalid setting: section, key and error.
type Wrong = (Section, &'static str, anyhow::Error);

/// Policy and rules of a volume.
#[derive(Clone, Debug, Default)]
pub struct SteeringConfig {
    /// The policy as it is written.
    pub policy: Option<PolicyName>,
    /// The rules as they are written.
    pub entries: Vec<RuleEntry>,
    /// Rules in the form that the file system takes.
    pub rules: Vec<NamedRule>,
    /// Lines of the file on which the rules begin.
    pub lines: Vec<usize>,
}

impl SteeringConfig {
    /// Checks policy and rules against one another and against the tiers. `text` tells lines.
    pub fn check(
        policy: Option<PolicyName>,
        entries: Vec<RuleEntry>,
        tiers: &[TierConfig],
        text: &str,
    ) -> std::result::Result<Self, Wrong> {
        let mut rules = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let rule = rule_of(entry, tiers).map_err(|(key, error)| (Section::Rule(index), key, error))?;
            rules.push(rule);
        }
        let names: Vec<String> = tiers.iter().map(|tier| tier.name.clone()).collect();
        polymux_fs::check_rules(&rules, &names).map_err(|error| wrong_rule(error, &entries, text))?;
        let mut steering = Self { policy, entries, rules, lines: Vec::new() };
        steering.note_lines(text);
        Ok(steering)
    }

    fn note_lines(&mut self, text: &str) {
        self.lines = (0..self.entries.len()).map(|rule| line_of_rule(text, rule)).collect();
    }

    /// The policy for files that no rule gives another one.
    pub fn policy(&self) -> PolicyKind {
        self.policy.map_or_else(PolicyKind::default, |name| name.kind)
    }

    /// A sentence for each policy that is named and has another one in its place.
    pub fn warnings(&self) -> Vec<String> {
        let names = self.policy.into_iter().chain(self.entries.iter().filter_map(|entry| entry.policy));
        let warnings: BTreeSet<String> = names.filter_map(PolicyName::warning).collect();
        warnings.into_iter().collect()
    }
}

fn line_of_rule(text: &str, rule: usize) -> usize {
    // No key is empty, so this is the heading.
    config_format::line_of_key(text, Section::Rule(rule), "[")
}

fn rule_of(entry: &RuleEntry, tiers: &[TierConfig]) -> std::result::Result<NamedRule, (&'static str, anyhow::Error)> {
    let sizes = (entry.size_min.map(|Size(size)| size), entry.size_max.map(|Size(size)| size));
    if let (Some(min), Some(max)) = sizes
        && min > max
    {
        return Err(("size_min", anyhow!("size_min {min} is above size_max {max}: no file matches; exchange them")));
    }
    if let (Some(older), Some(newer)) = (&entry.older_than, &entry.newer_than)
        && older.seconds > newer.seconds
    {
        let error = anyhow!("no file is older than {older} and newer than {newer}: take one of them away");
        return Err(("older_than", error));
    }
    let named = entry.tiers.clone().unwrap_or_default();
    if entry.tiers.as_ref().is_some_and(Vec::is_empty) {
        return Err(("tiers", anyhow!("tiers is empty: name a tier, or leave it out for all of them")));
    }
    check_rule_tiers(&named, tiers).map_err(|error| ("tiers", error))?;
    Ok(NamedRule {
        name: entry.name.clone().unwrap_or_default(),
        matches: RuleMatch {
            path: entry.path.clone(),
            size_min: sizes.0.map(|size| size.0),
            size_max: sizes.1.map(|size| size.0),
            age_min_seconds: entry.older_than.as_ref().map(|span| span.seconds),
            age_max_seconds: entry.newer_than.as_ref().map(|span| span.seconds),
            uid: entry.owner.as_ref().map(uid_of).transpose().map_err(|error| ("owner", error))?,
            gid: entry.group.as_ref().map(gid_of).transpose().map_err(|error| ("group", error))?,
            xattr: entry.xattr.as_deref().map(xattr_of),
        },
        policy: entry.policy.map(|name| name.kind),
        tiers: named,
        passthrough: entry.passthrough.map(PassthroughUse::from),
    })
}

/// Refuses tiers that the volume has not, and one that is named twice.
pub fn check_rule_tiers(named: &[String], tiers: &[TierConfig]) -> Result<()> {
    for (index, name) in named.iter().enumerate() {
        if !tiers.iter().any(|tier| tier.name == *name) {
            let known: Vec<String> = tiers.iter().map(|tier| format!("`{}`", tier.name)).collect();
            bail!("the volume has no tier `{name}`; its tiers are {}", known.join(", "));
        }
        if named[..index].contains(name) {
            bail!("tier `{name}` is named twice");
        }
    }
    Ok(())
}

fn xattr_of(text: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    match text.split_once('=') {
        Some((name, value)) => (name.as_bytes().to_vec(), Some(value.as_bytes().to_vec())),
        None => (text.as_bytes().to_vec(), None),
    }
}

fn uid_of(account: &Account) -> Result<u32> {
    match account {
        Account::Number(number) => Ok(*number),
        Account::Name(name) => match name.parse() {
            Ok(number) => Ok(number),
            Err(_) => nix::unistd::User::from_name(name)
                .with_context(|| format!("cannot look up the user `{name}`"))?
                .map(|user| user.uid.as_raw())
                .ok_or_else(|| anyhow!("this machine has no user `{name}`; write a name that it has, or a number")),
        },
    }
}

fn gid_of(account: &Account) -> Result<u32> {
    match account {
        Account::Number(number) => Ok(*number),
        Account::Name(name) => match name.parse() {
            Ok(number) => Ok(number),
            Err(_) => nix::unistd::Group::from_name(name)
                .with_context(|| format!("cannot look up the group `{name}`"))?
                .map(|group| group.gid.as_raw())
                .ok_or_else(|| anyhow!("this machine has no group `{name}`; write a name that it has, or a number")),
        },
    }
}

/// The error in a rule, with its remedy.
fn wrong_rule(error: SteeringError, entries: &[RuleEntry], text: &str) -> Wrong {
    let (index, field, problem) = match error {
        SteeringError::UnknownTier { rule, tier } => {
            return (Section::Rule(rule), "tiers", anyhow!("the volume has no tier `{tier}`"));
        }
        SteeringError::Rule(error) => (error.rule, error.field, error.problem),
    };
    let earlier = |rule: usize| match entries.get(rule).and_then(|entry| entry.name.as_ref()) {
        Some(name) => format!("rule `{name}` on line {}", line_of_rule(text, rule)),
        None => format!("the rule on line {}", line_of_rule(text, rule)),
    };
    let message = match problem {
        RuleProblem::NoEffect => "the rule has no effect: give it a `policy`, `tiers` or `passthrough`".to_owned(),
        RuleProblem::SameName { earlier: rule } => {
            format!("the name is taken by {}: give it another one", earlier(rule))
        }
        RuleProblem::SameConditions { earlier: rule } => {
            format!("the same files are matched by {}: put both into one rule", earlier(rule))
        }
        RuleProblem::NeverMatches { earlier: rule } => {
            format!("it never decides, because {} takes all of its files: put this one before it", earlier(rule))
        }
        RuleProblem::BadPattern { reason } => format!("the pattern cannot be used: {reason}"),
        RuleProblem::EmptyXattrName => "the extended attribute has no name; write for instance user.kind".to_owned(),
        other => other.to_string(),
    };
    let key = match field {
        RuleField::Rule => "[",
        RuleField::Name => "name",
        RuleField::Path => "path",
        RuleField::Size => "size_min",
        RuleField::Age => "older_than",
        RuleField::Xattr => "xattr",
        RuleField::Tiers => "tiers",
    };
    (Section::Rule(index), key, anyhow!(message))
}

/// Checks the mover settings of a tier.
pub fn check_limits(tier: &TierConfig) -> std::result::Result<(), (&'static str, anyhow::Error)> {
    for (key, size) in [("mover_rate", tier.mover_rate), ("write_budget", tier.write_budget)] {
        if size.is_some_and(|Size(size)| size.0 == 0) {
            return Err((key, anyhow!("tier `{}`: {key} is 0; leave it out for no limit", tier.name)));
        }
    }
    Ok(())
}

/// Checks the options about heat and windows.
pub fn check_options(options: &OptionsEntry) -> std::result::Result<(), (&'static str, anyhow::Error)> {
    if let Some(half_life) = &options.heat_half_life
        && (half_life.seconds < HALF_LIFE_MIN_SECONDS || half_life.seconds > u64::from(u32::MAX))
    {
        return Err(("heat_half_life", anyhow!("heat_half_life is {half_life}; write 1 min to 7000 w")));
    }
    if let Some(Size(memory)) = options.heat_memory
        && memory.0 < HEAT_MEMORY_MIN
    {
        return Err(("heat_memory", anyhow!("heat_memory is {memory}; write at least 1 MiB")));
    }
    if options.move_windows.as_ref().is_some_and(Vec::is_empty) {
        let error =
            anyhow!("move_windows is empty, so nothing would ever move: name a window, or leave it out for always");
        return Err(("move_windows", error));
    }
    Ok(())
}

/// Makes the policy and the rules of a configuration those of the volume.
pub fn apply_rules(config: &VolumeConfig, file_system: &FileSystem) -> Result<()> {
    Ok(file_system.set_steering(config.steering.policy(), &config.steering.rules)?)
}

/// Hands everything that steers movement to a volume that was just mounted.
pub fn apply(config: &VolumeConfig, file_system: &Arc<FileSystem>) -> Result<()> {
    file_system.set_steering(config.steering.policy(), &config.steering.rules)?;
    apply_to_movers(&config.tiers, &config.options, file_system)?;
    let windows: Vec<MoveWindow> = config.options.move_windows.iter().flatten().map(|entry| entry.window).collect();
    if !windows.is_empty() {
        let offset = utc_offset_seconds();
        file_system.set_move_windows(&windows, offset);
        let weak = Arc::downgrade(file_system);
        thread::Builder::new()
            .name("local-time".to_owned())
            .spawn(move || follow_local_time(&weak, &windows, offset))?;
    }
    Ok(())
}

/// Applies the limits of movers on these tiers, and their behaviour there.
pub fn apply_to_movers(tiers: &[TierConfig], options: &OptionsEntry, file_system: &FileSystem) -> Result<()> {
    for tier in tiers {
        file_system.set_mover_limits(&tier.name, tier.mover_limits())?;
    }
    if options.movers_polite == Some(false) {
        file_system.set_politeness(MoverPoliteness::FullSpeed);
    }
    Ok(())
}

/// Keeps windows at the local time of day when summer time begins or ends.
fn follow_local_time(file_system: &Weak<FileSystem>, windows: &[MoveWindow], mut offset: i32) {
    loop {
        thread::sleep(OFFSET_CHECK);
        let Some(file_system) = file_system.upgrade() else { return };
        let now = utc_offset_seconds();
        if now != offset {
            file_system.set_move_windows(windows, now);
            offset = now;
        }
    }
}

/// Local time less universal time.
fn utc_offset_seconds() -> i32 {
    jiff::tz::TimeZone::system().to_offset(jiff::Timestamp::now()).seconds()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const GOOD: &str = r#"name = "media"
volume = "6b1f5c9e-0000-4000-8000-000000000001"
metadata = "fast"
policy = "lru"

[[tier]]
name = "fast"
path = "/a"
mover_rate = "50 MiB"
mover_iops = 200
write_budget = "10 GiB"

[[tier]]
name = "slow"
path = "/b"

[options]
move_windows = [
  "Mon-Fri 01:00-06:00",
  "Sat,Sun 00:00-24:00",
]
movers_polite = false
heat_half_life = "2 h"
heat_memory = "8 MiB"

[[rule]]
name = "films"
path = "films/**"
size_min = "4 MiB"
size_max = "1 TiB"
older_than = "30 d"
newer_than = "52 w"
owner = "root"
group = 0
xattr = "user.kind=video"
tiers = ["slow", "fast"]

[[rule]]
xattr = "user.kind"
policy = "static"
"#;

    fn read(text: &str) -> Result<VolumeConfig> {
        VolumeConfig::parse(Path::new("media.toml"), text)
    }

    #[test]
    fn everything_that_steers_is_read() {
        let config = read(GOOD).unwrap();
        let steering = &config.steering;
        assert_eq!(steering.policy(), PolicyKind::Lru);
        assert_eq!(steering.lines, [26, 38]);
        let films = &steering.rules[0];
        assert_eq!((films.name.as_str(), &films.tiers[..]), ("films", &["slow".to_owned(), "fast".to_owned()][..]));
        let expected = RuleMatch {
            path: Some("films/**".to_owned()),
            size_min: Some(4 << 20),
            size_max: Some(1 << 40),
            age_min_seconds: Some(30 * 86_400),
            age_max_seconds: Some(364 * 86_400),
            uid: Some(0),
            gid: Some(0),
            xattr: Some((b"user.kind".to_vec(), Some(b"video".to_vec()))),
        };
        assert_eq!(films.matches, expected);
        assert_eq!(steering.rules[1].matches.xattr, Some((b"user.kind".to_vec(), None)));
        assert_eq!(steering.rules[1].policy, Some(PolicyKind::Static));
        let limits = config.tiers[0].mover_limits();
        assert_eq!(limits.bytes_per_second, Some(50 << 20));
        assert_eq!(limits.operations_per_second, Some(200));
        assert_eq!(limits.promoted_bytes_per_day, Some(10 << 30));
        assert_eq!(config.options.move_windows.as_ref().unwrap().len(), 2);
    }

    #[test]
    fn what_steers_survives_writing_and_reading() {
        for text in [GOOD.to_owned(), GOOD.replace("\"lru\"", "\"poly-climb\"")] {
            let file = config_format::parse(Path::new("x"), &text).unwrap();
            let again = config_format::parse(Path::new("x"), &config_format::format(&file).unwrap()).unwrap();
            assert_eq!(file, again);
        }
    }

    #[test]
    fn policies_that_are_only_for_comparison_are_replaced_with_one_warning_each() {
        assert_eq!(read(GOOD).unwrap().steering.warnings(), [] as [String; 0]);
        let text = GOOD.replace("\"lru\"", "\"promote-always\"").replace("\"static\"", "\"poly-climb\"");
        let again = "\n[[rule]]\npath = \"x\"\npolicy = \"poly-climb\"\n";
        let steering = read(&(text + again)).unwrap().steering;
        let of_rules: Vec<_> = steering.rules.iter().map(|rule| rule.policy).collect();
        assert_eq!(steering.policy(), PolicyKind::HotCold);
        assert_eq!(of_rules, [None, Some(PolicyKind::Spread), Some(PolicyKind::Spread)]);
        let warnings = steering.warnings();
        let has = |old: &str| warnings.iter().filter(|warning| warning.contains(old)).count();
        assert_eq!((warnings.len(), has("promote-always"), has("poly-climb")), (2, 1, 1), "{warnings:?}");
    }

    #[test]
    fn wrong_rules_are_refused_with_line_and_advice() {
        for (from, to, line, needle) in [
            ("policy = \"lru\"", "policy = \"LRU\"", 4, "hot-cold"),
            ("policy = \"lru\"", "polcy = \"lru\"", 4, "polcy"),
            ("path = \"films/**\"", "paht = \"films/**\"", 28, "paht"),
            ("path = \"films/**\"", "path = \"films/[a\"", 28, "pattern"),
            ("path = \"films/**\"", "path = \"\"", 28, "names no file"),
            ("size_min = \"4 MiB\"", "size_min = \"4 XiB\"", 29, "4 XiB"),
            ("size_min = \"4 MiB\"", "size_min = \"2 TiB\"", 29, "size_min 2 TiB is above size_max 1 TiB"),
            ("older_than = \"30 d\"", "older_than = \"30\"", 31, "length of time"),
            ("older_than = \"30 d\"", "older_than = \"53 w\"", 31, "no file is older"),
            ("owner = \"root\"", "owner = \"nobody-by-that-name\"", 33, "no user"),
            ("group = 0", "group = \"nobody-by-that-name\"", 34, "no group"),
            ("xattr = \"user.kind=video\"", "xattr = \"=video\"", 35, "no name"),
            ("[\"slow\", \"fast\"]", "[\"slow\", \"tape\"]", 36, "no tier `tape`; its tiers are `fast`, `slow`"),
            ("[\"slow\", \"fast\"]", "[\"slow\", \"slow\"]", 36, "twice"),
            ("[\"slow\", \"fast\"]", "[]", 36, "empty"),
            ("policy = \"static\"\n", "", 38, "no effect"),
            ("policy = \"static\"\n", "policy = \"static\"\nname = \"films\"\n", 41, "line 26"),
            ("[[rule]]\nname", "[[rule]]\npath = \"**\"\npolicy = \"poly\"\n[[rule]]\nname", 29, "never decides"),
            ("mover_rate = \"50 MiB\"", "mover_rate = \"0 B\"", 9, "no limit"),
            ("mover_iops = 200", "mover_iops = 0", 10, "0"),
            ("write_budget = \"10 GiB\"", "write_budget = \"0\"", 11, "no limit"),
            ("heat_half_life = \"2 h\"", "heat_half_life = \"2 s\"", 23, "1 min"),
            ("heat_memory = \"8 MiB\"", "heat_memory = \"8 KiB\"", 24, "1 MiB"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from} stands in it");
            let error = format!("{:#}", read(&text).unwrap_err());
            let place = format!("media.toml:{line}: ");
            assert!(error.starts_with(&place) && error.contains(needle), "{to}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_wrong_window_is_refused_with_the_line_of_its_list() {
        let error = read(&GOOD.replace("Sat,Sun 00:00-24:00", "Sat,Sun 0:00-24:00")).unwrap_err().to_string();
        let named = ["media.toml:18: ", "media.toml:19: ", "media.toml:20: "];
        assert!(named.iter().any(|place| error.starts_with(place)) && error.contains("0:00"), "{error}");
    }
}
