//! `polymux policy`: lists policies and rules, and describes them.
//!
//! Invariant: a mounted volume is asked and changed through its daemon; of one that is not mounted only the configuration
//! is read and changed.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::cli::{OutputFormat, PolicySetArguments, output_format};
use crate::client;
use crate::output::{self, Table};
use crate::policy_edit;
use crate::protocol::{Answer, PoliciesReport, PolicyChange, Request, RuleReport};
use crate::steering_view;
use polymux_config::config::VolumeConfig;
use polymux_config::registry::{Registry, VolumeReference};

/// Shows policies and rules.
pub fn list(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let name = client::volume_name(registry, volume)?;
    let report = match ask(registry, &name, &Request::Policies)? {
        Some(report) => report,
        None => steering_view::policies_report(&VolumeConfig::read(&config_path(registry, volume, &name)?)?, None),
    };
    match format {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => {
            report.warnings.iter().for_each(|warning| output::warn(warning));
            output::line(&render(&report))
        }
    }
}

/// Changes the policy of a volume, or of the files that a pattern matches.
pub fn set(registry: &Registry, arguments: &PolicySetArguments) -> Result<()> {
    // Refused here before anything is asked.
    let policy = steering_view::policy_of_command(&arguments.policy)?;
    let name = client::volume_name(registry, &arguments.volume)?;
    let change = PolicyChange {
        policy,
        path: arguments.path.clone(),
        tiers: (!arguments.tiers.is_empty()).then(|| arguments.tiers.clone()),
    };
    let (report, whereabouts) = match ask(registry, &name, &Request::PolicySet { change: change.clone() })? {
        Some(report) => (report, ""),
        None => {
            let config = policy_edit::change(&config_path(registry, &arguments.volume, &name)?, &change)?;
            (steering_view::policies_report(&config, None), "; it holds from the next mount on")
        }
    };
    match output_format(arguments.json) {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => {
            report.warnings.iter().for_each(|warning| output::warn(warning));
            let about = change.path.map_or(String::new(), |path| format!(" for {path}"));
            output::line(&format!("the policy of volume `{name}`{about} is {}{whereabouts}", change.policy))
        }
    }
}

fn ask(registry: &Registry, name: &str, request: &Request) -> Result<Option<PoliciesReport>> {
    match client::ask(registry, name, request)? {
        Some(Answer::Policies(report)) => Ok(Some(report)),
        Some(_) => bail!("the daemon of volume `{name}` answered something else"),
        None => Ok(None),
    }
}

/// The configuration of a volume that is not mounted.
fn config_path(registry: &Registry, text: &str, name: &str) -> Result<PathBuf> {
    let reference = match VolumeReference::parse(text) {
        file @ VolumeReference::File(_) => file,
        VolumeReference::Name(_) => VolumeReference::Name(name.to_owned()),
    };
    registry.config_path(&reference)
}

fn render(report: &PoliciesReport) -> String {
    let mut policies = Table::new(&["", "policy", "what it does"]);
    for policy in &report.policies {
        let mark = if policy.is_current { "*" } else { "" };
        policies.row(vec![mark.to_owned(), policy.name.clone(), policy.description.clone()]);
    }
    let mut lines = vec![policies.render("")];
    if report.rules.is_empty() {
        lines.push(format!("no rules: {} holds for every file that is not pinned", report.current));
        return lines.join("\n");
    }
    let mut rules = Table::new(&["rule", "line", "files", "conditions", "policy", "tiers"]);
    for rule in &report.rules {
        let title =
            if rule.name.is_empty() { rule.number.to_string() } else { format!("{} {}", rule.number, rule.name) };
        rules.row(vec![
            title,
            rule.line.to_string(),
            files_of(rule, report.is_cut),
            rule.conditions.clone(),
            rule.policy.clone().unwrap_or_else(|| report.current.clone()),
            if rule.tiers.is_empty() { "all".to_owned() } else { rule.tiers.join(", ") },
        ]);
    }
    lines.push(rules.render(""));
    if report.files_seen.is_none() {
        lines.push("the volume is not mounted, so files were not counted".to_owned());
    }
    lines.join("\n")
}

fn files_of(rule: &RuleReport, is_cut: bool) -> String {
    match rule.files {
        Some(files) if is_cut => format!("at least {files}"),
        Some(files) => files.to_string(),
        None => "-".to_owned(),
    }
}
