//! The daemon's answers about policies, rules, pins, and why blocks move (DESIGN sections 9 and 13).
//!
//! Invariants: a change of the policy holds the lock of the configuration from the first check until file and
//! volume say the same; a refused change alters neither. Numbers of rules and lines count from 1.

use anyhow::{Result, anyhow, bail};
use polymux_fs::{MoveRefusal, PolicyKind, RuleCounts};
use polymux_types::{ByteSize, Ino};

use crate::output;
use crate::policy_edit;
use crate::protocol::{
    AdviceReport, AdviceStepReport, ExplainReport, ExplainedGrowth, ExplainedRange, PinReport, PinnedReport,
    PinsReport, PlanReport, PlannedFile, PlannedMoves, PoliciesReport, PolicyChange, PolicyReport, RefusedFile,
    RuleReport, SteeredBy,
};
use crate::report::DaemonView;
use crate::tier_events;
use polymux_config::config::VolumeConfig;
use polymux_config::config_format::rules::Account;
use polymux_config::config_format::{PolicyName, RuleEntry};

/// Files that are looked at to count those of each rule, so that the answer comes soon.
const FILES_COUNTED_MAX: u64 = 200_000;

/// Policies and rules of a configuration. `counts` are those of the mounted volume.
pub fn policies_report(config: &VolumeConfig, counts: Option<&RuleCounts>) -> PoliciesReport {
    let current = config.steering.policy();
    let policy = |kind: PolicyKind| PolicyReport {
        name: kind.name().to_owned(),
        description: kind.description().to_owned(),
        is_current: kind == current,
    };
    let rules = config.steering.entries.iter().enumerate().map(|(index, entry)| RuleReport {
        number: index + 1,
        name: entry.name.clone().unwrap_or_default(),
        conditions: conditions_of(entry),
        policy: config.steering.rules[index].policy.map(|policy| policy.name().to_owned()),
        tiers: config.steering.rules[index].tiers.clone(),
        line: config.steering.lines[index],
        files: counts.and_then(|counts| counts.files.get(index).copied()),
    });
    let rules: Vec<RuleReport> = rules.collect();
    let is_cut = counts.is_some_and(|counts| counts.is_cut);
    let of_rules = rules.iter().filter(|_| !is_cut).filter_map(warning_of).collect::<Vec<_>>();
    PoliciesReport {
        volume: config.name.clone(),
        current: current.name().to_owned(),
        policies: PolicyKind::all().map(policy).collect(),
        warnings: config.steering.warnings().into_iter().chain(of_rules).collect(),
        rules,
        files_seen: counts.map(|counts| counts.files_seen),
        is_cut,
    }
}

fn warning_of(rule: &RuleReport) -> Option<String> {
    let title = if rule.name.is_empty() { format!("rule {}", rule.number) } else { format!("rule `{}`", rule.name) };
    let line = rule.line;
    (rule.files == Some(0)).then(|| format!("{title} (line {line}) matches no file now: {}", rule.conditions))
}

/// The conditions of a rule in words.
fn conditions_of(entry: &RuleEntry) -> String {
    let account = |account: &Account| match account {
        Account::Number(number) => number.to_string(),
        Account::Name(name) => name.clone(),
    };
    let conditions = [
        entry.path.as_ref().map(|path| format!("path {path}")),
        entry.size_min.map(|size| format!("at least {}", size.0)),
        entry.size_max.map(|size| format!("at most {}", size.0)),
        entry.older_than.as_ref().map(|span| format!("older than {span}")),
        entry.newer_than.as_ref().map(|span| format!("newer than {span}")),
        entry.owner.as_ref().map(|owner| format!("owner {}", account(owner))),
        entry.group.as_ref().map(|group| format!("group {}", account(group))),
        entry.xattr.as_ref().map(|xattr| format!("attribute {xattr}")),
    ];
    let conditions: Vec<String> = conditions.into_iter().flatten().collect();
    if conditions.is_empty() { "every file".to_owned() } else { conditions.join(", ") }
}

impl DaemonView {
    /// Policies and rules, with the number of files of each rule.
    pub fn policies(&self) -> Result<PoliciesReport> {
        let config = self.config.read().clone();
        let counts = self.file_system.count_rule_matches(FILES_COUNTED_MAX)?;
        Ok(policies_report(&config, Some(&counts)))
    }

    /// Changes the policy in the configuration and in the volume.
    pub fn set_policy(&self, change: &PolicyChange) -> Result<PoliciesReport> {
        {
            let _one_at_a_time = tier_events::EVENT.lock();
            let names = |config: &VolumeConfig| config.tiers.iter().map(|tier| tier.name.clone()).collect::<Vec<_>>();
            // The file may have been changed since the volume was mounted.
            if names(&VolumeConfig::read(&self.config_path)?) != names(&self.config.read()) {
                bail!("{} lists other tiers than the volume has: correct it first", self.config_path.display());
            }
            let config = policy_edit::change(&self.config_path, change)?;
            self.file_system.set_steering(config.steering.policy(), &config.steering.rules)?;
            *self.config.write() = config;
        }
        self.background.wake();
        self.policies()
    }

    /// Pins files and directories, or takes their own pins away. Nothing is changed where the tier takes no
    /// files.
    pub fn pin(&self, files: &[u64], tier: Option<&str>) -> Result<PinnedReport> {
        let mut report = PinnedReport::default();
        for &ino in files {
            if tier.is_none() && matches!(self.file_system.own_pin(Ino(ino)), Ok(None)) {
                report.without_pin.push(ino);
                continue;
            }
            match self.file_system.pin_to_tier(Ino(ino), tier) {
                Ok(()) => report.done.push(ino),
                Err(MoveRefusal::NoSuchTier(name)) => {
                    let known = self.file_system.tier_names();
                    let known: Vec<String> = known.iter().map(|(_, name)| format!("`{name}`")).collect();
                    bail!("the volume has no tier `{name}`; its tiers are {}", known.join(", "));
                }
                Err(refusal @ (MoveRefusal::Missing(_) | MoveRefusal::Draining(_))) => bail!("{refusal}"),
                Err(refusal) => report.refused.push(RefusedFile { ino, why: refusal.to_string() }),
            }
        }
        self.background.wake();
        Ok(report)
    }

    /// All pins.
    pub fn pins(&self) -> Result<PinsReport> {
        let tiers = self.file_system.tier_names();
        let pin = |pin: polymux_fs::PinReport| PinReport {
            ino: pin.ino.get(),
            path: pin.path.map(text_of),
            has_tier: tiers.iter().any(|(_, name)| *name == pin.tier),
            tier: pin.tier,
            is_directory: pin.is_directory,
        };
        Ok(PinsReport { pins: self.file_system.pins()?.into_iter().map(pin).collect() })
    }

    /// Why a file is where it is.
    pub fn explain(&self, ino: Ino) -> Result<ExplainReport> {
        let explained = self.file_system.explain(ino)?;
        let policy: PolicyKind = explained.policy.parse()?;
        let steered_by = match explained.steered_by {
            polymux_fs::SteeredBy::Volume => SteeredBy::Volume,
            polymux_fs::SteeredBy::Rule { index, name } => SteeredBy::Rule {
                number: index + 1,
                name,
                config: self.config_path.display().to_string(),
                line: self.config.read().steering.lines.get(index).copied(),
            },
            polymux_fs::SteeredBy::Pin { ino: pinned, path } => {
                let path = if pinned == Ino::ROOT { Some(Vec::new()) } else { path };
                SteeredBy::Pin { path: path.map(text_of), is_own: pinned == ino }
            }
        };
        Ok(ExplainReport {
            ino: explained.ino.get(),
            path: explained.path.map(text_of),
            size: explained.size,
            bytes_inline: explained.bytes_inline,
            policy: explained.policy,
            policy_description: policy.description().to_owned(),
            steered_by,
            allowed_tiers: explained.allowed_tiers,
            ranges: explained.ranges.into_iter().map(explained_range).collect(),
            growth: explained.growth.into_iter().map(explained_growth).collect(),
            growth_why: explained.growth_why,
            readers: explained.readers,
            jobs: explained.jobs.into_iter().map(|job| self.job_report(job)).collect(),
            why_not_now: explained.why_not_now,
            tiers_out: explained.tiers_out,
        })
    }

    /// The effect of the size of the fastest tier.
    pub fn advise(&self) -> Result<AdviceReport> {
        let advice = self.file_system.advise()?;
        let step = |step: &polymux_fs::AdviceStep| AdviceStepReport {
            room_bytes: step.room_bytes,
            // Rounded: a step that serves all reads must not show 99 % because the numbers of ranges are rounded.
            served_percent: step.reads.saturating_mul(200).saturating_add(advice.reads).checked_div(2 * advice.reads),
        };
        Ok(AdviceReport {
            volume: self.config.read().name.clone(),
            steps: advice.steps.iter().map(step).collect(),
            tier: advice.tier,
            room_bytes: advice.room_bytes,
            reads: advice.reads,
            served_percent: advice.served_percent,
            ranges: advice.ranges,
            range_bytes: advice.range_bytes,
        })
    }

    /// The planned migrations, with another policy where one is named.
    pub fn plan(&self, policy: Option<&str>) -> Result<PlanReport> {
        let current = self.config.read().steering.policy();
        let policy = policy.map(known_policy).transpose()?.map(|name| name.kind);
        let plan = self.file_system.plan(policy)?;
        let seconds: Option<Vec<u64>> = plan.moves.iter().map(|moves| moves.seconds).collect();
        let moves = plan.moves.into_iter().map(|moves| PlannedMoves {
            reason: moves.reason.word().to_owned(),
            from: moves.from,
            to: moves.to,
            files: moves.files,
            bytes: moves.bytes,
            seconds: moves.seconds,
        });
        let moves: Vec<PlannedMoves> = moves.collect();
        // Drains go on while no time window is open.
        let is_drain = |moves: &PlannedMoves| moves.reason == polymux_fs::MoveReason::Drain.word();
        let has_only_drains = !moves.is_empty() && moves.iter().all(is_drain);
        let files = plan.files.into_iter().map(|file| PlannedFile {
            path: file.path.map(text_of),
            ino: file.ino.get(),
            reason: file.reason.word().to_owned(),
            to: file.to,
            bytes: file.bytes,
            pays_back_seconds: file.benefit.pays_back_seconds,
            is_overdue: file.benefit.is_overdue,
        });
        Ok(PlanReport {
            volume: self.config.read().name.clone(),
            is_current: plan.policy == current.name(),
            policy: plan.policy,
            files_total: moves.iter().map(|moves| moves.files).sum(),
            bytes_total: moves.iter().map(|moves| moves.bytes).sum(),
            seconds_total: seconds.map(|seconds| seconds.iter().sum()),
            moves,
            files: files.collect(),
            jobs_open: plan.jobs_open,
            why_not_now: self.why_not_now().filter(|_| !has_only_drains || self.file_system.moves().is_paused),
            warnings: self.policies()?.warnings.into_iter().chain(held_back_warning(plan.held_back)).collect(),
        })
    }

    fn why_not_now(&self) -> Option<String> {
        let moves = self.file_system.moves();
        if moves.is_paused {
            return Some("Moving is paused.".to_owned());
        }
        moves.window_opens_in_minutes.map(|minutes| format!("The next time window opens in {minutes} minutes."))
    }
}

fn held_back_warning(held_back: polymux_fs::HeldBack) -> Option<String> {
    let (files, lie) = if held_back.files == 1 {
        ("1 file".to_owned(), "lies")
    } else {
        (format!("{} files", held_back.files), "lie")
    };
    let bytes = ByteSize(held_back.bytes);
    let warning = format!(
        "{files} ({bytes}) {lie} on tiers that rules or pins do not allow, and no tier that they allow has room: make room there, \
         or allow another tier"
    );
    (held_back.files > 0).then_some(warning)
}

fn explained_growth(growth: polymux_fs::GrowthExplanation) -> ExplainedGrowth {
    ExplainedGrowth {
        tier: growth.tier,
        outstanding_bytes: growth.outstanding_bytes,
        bytes_per_second: growth.bytes_per_second,
        threads: growth.threads,
    }
}

fn explained_range(range: polymux_fs::RangeExplanation) -> ExplainedRange {
    let (would_leave_to, would_leave_why) = range.would_leave_to.unzip();
    let (better_on, benefit) = range.benefit.unzip();
    let benefit = benefit.unwrap_or_default();
    // Rates are far below 2^52.
    let device_reads_per_second = (range.device_reads_per_kilosecond as f64 / 100.0).round() / 10.0;
    ExplainedRange {
        offset: range.offset,
        length: range.length,
        tier: range.tier,
        heat: accesses(range.heat),
        reads: accesses(range.reads),
        writes: accesses(range.writes),
        idle_seconds: (range.idle_seconds != u32::MAX).then_some(range.idle_seconds),
        sequential_percent: range.sequential_percent,
        sync_percent: range.sync_percent,
        device_reads_per_second,
        pays_back_on: better_on,
        pays_back_seconds: benefit.pays_back_seconds,
        is_overdue: benefit.is_overdue,
        moved_seconds_ago: range.moved_seconds_ago,
        wanted_on: range.wanted_on,
        why: range.why,
        would_leave_to,
        would_leave_why,
    }
}

/// Accesses, to a tenth, of a number of 1/256.
fn accesses(fixed: u32) -> f64 {
    (f64::from(fixed) / 25.6).round() / 10.0
}

fn text_of(path: Vec<u8>) -> String {
    String::from_utf8_lossy(&path).into_owned()
}

/// The policy that a name means.
fn known_policy(name: &str) -> Result<PolicyName> {
    PolicyName::try_from(name.to_owned()).map_err(|error| anyhow!("{error}"))
}

/// The name of the policy that is used where a command names this one; where that is another one, a warning says so.
pub fn policy_of_command(name: &str) -> Result<String> {
    let policy = known_policy(name)?;
    if let Some(warning) = policy.warning() {
        output::warn(&warning);
    }
    Ok(policy.kind.name().to_owned())
}
