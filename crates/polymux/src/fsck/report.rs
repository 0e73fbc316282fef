//! Output of fsck: for people file by file, for programs as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use polymux_fs::{FINDING_KINDS, Finding, Outcome, Severity, VolumeCheck};
use serde::{Deserialize, Serialize};

use super::bits;
use crate::cli::OutputFormat;
use crate::output;

/// Everything that a check found. Keys are a public interface: they are added to, never renamed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FsckReport {
    /// Name of the volume.
    pub volume: String,
    /// `report`, `repair` or `online`.
    pub mode: String,
    /// Code that the program ends with.
    pub exit_code: u8,
    /// The volume was not unmounted in order: the next mount recovers it, or this check did.
    pub unclean: bool,
    /// Errors that were corrected.
    pub corrected: u64,
    /// Errors that a repair would correct.
    pub correctable: u64,
    /// Errors that are left.
    pub left: u64,
    /// Records of the metadata store.
    pub records: u64,
    /// Inodes.
    pub inodes: u64,
    /// Objects on the tiers.
    pub objects: u64,
    /// Time that it took, in milliseconds.
    pub duration_ms: u64,
    /// The passes in order.
    pub passes: Vec<FsckPass>,
    /// Findings of each kind, all of them.
    pub counts: BTreeMap<String, u64>,
    /// The first thousand findings.
    pub findings: Vec<FsckFinding>,
    /// Recovery actions.
    pub recovery: Vec<String>,
}

/// One pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FsckPass {
    /// Persistent id.
    pub id: u32,
    /// Name of the check.
    pub name: String,
    /// Number of findings.
    pub found: u64,
}

/// One finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FsckFinding {
    /// Persistent name of its kind.
    pub kind: String,
    /// `corrected`, `correctable`, `left` or `note`.
    pub outcome: String,
    /// Path of the file within the volume.
    pub path: Option<String>,
    /// Number of the inode.
    pub inode: Option<u64>,
    /// This case.
    pub detail: String,
    /// Meaning of the kind.
    pub meaning: String,
    /// Effect of a repair on it.
    pub repair: String,
}

/// The report of a check, without its exit code; see [`FsckReport::finish`].
pub fn report_of(volume: &str, mode: &str, check: &VolumeCheck, duration: Duration) -> FsckReport {
    let pass = |pass: &polymux_fs::PassReport| FsckPass { id: pass.id, name: pass.name.to_owned(), found: pass.found };
    FsckReport {
        volume: volume.to_owned(),
        mode: mode.to_owned(),
        exit_code: 0,
        unclean: check.unclean,
        corrected: check.corrected,
        correctable: check.correctable,
        left: check.left,
        records: check.records,
        inodes: check.inodes,
        objects: check.objects,
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        passes: check.passes.iter().map(pass).collect(),
        counts: check.counts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect(),
        findings: check.findings.iter().map(shown).collect(),
        recovery: check.recovery.clone(),
    }
}

fn shown(finding: &Finding) -> FsckFinding {
    let outcome = match finding.outcome {
        Outcome::Corrected => "corrected",
        Outcome::Correctable => "correctable",
        Outcome::Left => "left",
        Outcome::Noted => "note",
    };
    FsckFinding {
        kind: finding.kind.name.to_owned(),
        outcome: outcome.to_owned(),
        path: finding.path.clone(),
        inode: finding.ino.map(|ino| ino.get()),
        detail: finding.detail.clone(),
        meaning: finding.kind.meaning.to_owned(),
        repair: finding.kind.repair.to_owned(),
    }
}

/// A finding that is not about a file and that no repair concerns.
pub fn finding_of(kind: &str, detail: String) -> FsckFinding {
    let kind = FINDING_KINDS.iter().find(|known| known.name == kind).expect("a kind of finding is in the table");
    FsckFinding {
        kind: kind.name.to_owned(),
        outcome: if kind.severity == Severity::Note { "note" } else { "left" }.to_owned(),
        path: None,
        inode: None,
        detail,
        meaning: kind.meaning.to_owned(),
        repair: kind.repair.to_owned(),
    }
}

impl FsckReport {
    /// Adds a finding.
    pub fn add(&mut self, finding: FsckFinding) {
        self.left += u64::from(finding.outcome == "left");
        *self.counts.entry(finding.kind.clone()).or_default() += 1;
        self.findings.push(finding);
    }

    /// Works out the exit code.
    pub fn finish(&mut self) {
        let corrected = if self.corrected > 0 { bits::CORRECTED } else { 0 };
        let left = if self.left + self.correctable > 0 { bits::LEFT } else { 0 };
        self.exit_code = corrected | left;
    }
}

/// Prints a report.
pub fn print(report: &FsckReport, format: OutputFormat) -> Result<()> {
    match format {
        OutputFormat::Json => output::json(report),
        OutputFormat::Text => output::line(&text(report)),
    }
}

fn text(report: &FsckReport) -> String {
    let mut lines: Vec<String> = report.findings.iter().map(line).collect();
    let told = report.findings.len() as u64;
    let all: u64 = report.counts.values().sum();
    if all > told {
        lines.push(format!("... and {} more", all - told));
    }
    if report.counts.contains_key("data-damaged") {
        lines.push(
            "lost bytes are an error until they are overwritten or their file is deleted; `polymux fsck --accept FILE...` on \
             the mounted volume makes them zeros"
                .to_owned(),
        );
    }
    lines.extend(report.recovery.iter().map(|note| output::one_line(note)));
    if report.unclean && report.mode == "report" {
        lines.push("the volume was not unmounted in order: the next mount recovers it".to_owned());
    }
    let verdict = match (report.corrected, report.correctable, report.left) {
        (0, 0, 0) => "clean".to_owned(),
        (corrected, correctable, left) => {
            let parts = [(corrected, "corrected"), (correctable, "can be corrected"), (left, "left")];
            let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
            format!("errors: {}", parts.collect::<Vec<_>>().join(", "))
        }
    };
    lines.push(format!(
        "volume `{}`: {verdict} ({} files and directories, {} records, {} objects, {}.{:03} s)",
        report.volume,
        report.inodes,
        report.records,
        report.objects,
        report.duration_ms / 1000,
        report.duration_ms % 1000
    ));
    lines.join("\n")
}

fn line(finding: &FsckFinding) -> String {
    let subject = match (&finding.path, finding.inode) {
        (Some(path), Some(inode)) => format!("{} (inode {inode}): ", output::name(path)),
        (Some(path), None) => format!("{}: ", output::name(path)),
        (None, _) => String::new(),
    };
    let end = match finding.outcome.as_str() {
        "corrected" => format!("corrected: {}", finding.repair),
        "correctable" => format!("not corrected; -y: {}", finding.repair),
        "left" => format!("left: {}", finding.repair),
        _ => "no error".to_owned(),
    };
    let text = format!("{subject}{} [{}]: {}; {end}", finding.meaning, finding.kind, finding.detail);
    output::one_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(corrected: u64, correctable: u64, left: u64) -> FsckReport {
        let check = VolumeCheck { corrected, correctable, left, ..VolumeCheck::default() };
        let mut report = report_of("media", "report", &check, Duration::from_millis(1250));
        report.finish();
        report
    }

    #[test]
    fn the_exit_code_is_the_sum_of_the_conventional_bits() {
        assert_eq!(report(0, 0, 0).exit_code, 0);
        assert_eq!(report(3, 0, 0).exit_code, 1);
        assert_eq!(report(0, 2, 0).exit_code, 4);
        assert_eq!(report(3, 0, 1).exit_code, 5);
    }

    #[test]
    fn a_finding_is_a_line_that_names_the_file_and_what_is_done() {
        let mut finding = finding_of("object-missing", "object 7 of tier 1".to_owned());
        (finding.path, finding.inode) = (Some("/a/b".to_owned()), Some(20));
        let text = line(&finding);
        assert!(text.starts_with("/a/b (inode 20): an object with bytes of a file is missing"), "{text}");
        assert!(text.contains("[object-missing]") && text.contains("read as an error"), "{text}");
        assert!(super::text(&report(0, 0, 0)).contains("clean"));
    }
}
