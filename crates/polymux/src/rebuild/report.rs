//! Output of a rebuild: for people file by file, for programs as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use polymux_fs::{RebuildFinding, RebuildReport};
use polymux_types::ByteSize;
use serde::{Deserialize, Serialize};

use super::Mode;
use crate::cli::OutputFormat;
use crate::output;

/// State that no object holds, so that nothing recovers it.
pub const BY_DESIGN: [&str; 4] = [
    "Gone for good is what only the metadata store held: small files (`inline_size_max`), messages of the last minutes, \
     empty files that were never written, symbolic links, devices, fifos and sockets, directories without a file that was on a tier.",
    "Extended attributes and access control lists are gone; permission bits, owner and modification time are back.",
    "Of several names of a file one is back.",
    "Names and attributes are as of the last description; a file that was deleted just before the loss may be back.",
];

/// Most findings that the text output lists.
const SHOWN_MAX: usize = 1000;

/// Everything that a rebuild came to. Keys are a public interface: they are added to, never renamed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RebuildOutput {
    /// Name of the volume.
    pub volume: String,
    /// Whether a new store was made.
    pub made: bool,
    /// Regular files, those in lost+found included.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Objects on the tiers.
    pub objects: u64,
    /// Sizes of all files together.
    pub bytes: u64,
    /// Files in lost+found.
    pub files_lost_and_found: u64,
    /// Time that it took, in milliseconds.
    pub duration_ms: u64,
    /// Location of the remains of the old store.
    pub moved_aside: Option<String>,
    /// Findings of each kind.
    pub counts: BTreeMap<String, u64>,
    /// Everything that is missing or uncertain.
    pub findings: Vec<RebuildOutputFinding>,
    /// State that cannot be recovered, in sentences.
    pub by_design: Vec<String>,
}

/// One finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RebuildOutputFinding {
    /// Persistent name of its kind.
    pub kind: String,
    /// Path in the rebuilt volume.
    pub path: Option<String>,
    /// Number of the inode.
    pub inode: Option<u64>,
    /// Name of the tier.
    pub tier: Option<String>,
    /// Number of the object, in hexadecimal digits.
    pub object: Option<String>,
    /// Bytes that are concerned.
    pub size: Option<u64>,
    /// Meaning of the kind.
    pub meaning: String,
    /// This case.
    pub detail: String,
}

impl RebuildOutput {
    /// The report of a rebuild.
    pub fn new(volume: &str, mode: Mode, report: &RebuildReport, aside: Option<String>, duration: Duration) -> Self {
        Self {
            volume: volume.to_owned(),
            made: mode == Mode::Make,
            files: report.files,
            directories: report.directories,
            objects: report.objects,
            bytes: report.bytes,
            files_lost_and_found: report.files_lost_and_found,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            moved_aside: aside,
            counts: report.counts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect(),
            findings: report.findings.iter().map(told).collect(),
            by_design: BY_DESIGN.iter().map(|sentence| (*sentence).to_owned()).collect(),
        }
    }
}

fn told(finding: &RebuildFinding) -> RebuildOutputFinding {
    RebuildOutputFinding {
        kind: finding.kind.name.to_owned(),
        path: finding.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
        inode: finding.ino.map(|ino| ino.get()),
        tier: finding.tier.clone(),
        object: finding.object.map(|object| format!("{object:016x}")),
        size: finding.size,
        meaning: finding.kind.meaning.to_owned(),
        detail: finding.detail.clone(),
    }
}

/// Prints a report.
pub fn print(report: &RebuildOutput, format: OutputFormat) -> Result<()> {
    match format {
        OutputFormat::Json => output::json(report),
        OutputFormat::Text => output::line(&text(report)),
    }
}

fn text(report: &RebuildOutput) -> String {
    let mut lines: Vec<String> = report.findings.iter().take(SHOWN_MAX).map(line).collect();
    if report.findings.len() > SHOWN_MAX {
        lines.push(format!("... and {} more (--json lists all)", report.findings.len() - SHOWN_MAX));
    }
    lines.extend(report.by_design.iter().cloned());
    let what = if report.made { "rebuilt" } else { "would be rebuilt" };
    lines.push(format!(
        "volume `{}` {what}: {} ({}) and {} directories from {} objects, {} of the files in lost+found, {} findings, {}.{:03} s",
        report.volume,
        output::files(report.files),
        ByteSize(report.bytes),
        report.directories,
        report.objects,
        report.files_lost_and_found,
        report.findings.len(),
        report.duration_ms / 1000,
        report.duration_ms % 1000
    ));
    if report.made {
        let aside = report.moved_aside.clone().unwrap_or_default();
        lines.push(format!("its metadata store is in place{aside}; mount it as ever"));
    }
    lines.join("\n")
}

fn line(finding: &RebuildOutputFinding) -> String {
    let subject = match (&finding.path, finding.inode) {
        (Some(path), Some(inode)) => format!("/{} (inode {inode}): ", output::name(path)),
        _ => String::new(),
    };
    let place = match (&finding.tier, &finding.object) {
        (Some(tier), Some(object)) if subject.is_empty() => format!("object {object} on tier `{tier}`: "),
        (Some(tier), _) => format!("tier `{tier}`: "),
        _ => String::new(),
    };
    let detail = if finding.detail.is_empty() { String::new() } else { format!("; {}", finding.detail) };
    output::one_line(&format!("{subject}{place}{} [{}]{detail}", finding.meaning, finding.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_that_names_the_file_the_tier_and_the_kind() {
        let finding = RebuildOutputFinding {
            kind: "without-stamp".to_owned(),
            path: Some("lost+found/object-1-slow-77".to_owned()),
            inode: Some(20),
            tier: Some("slow".to_owned()),
            object: Some("0000000000000001".to_owned()),
            size: Some(77),
            meaning: "it says nothing".to_owned(),
            detail: "a\nb".to_owned(),
        };
        let expected = "/lost+found/object-1-slow-77 (inode 20): tier `slow`: it says nothing [without-stamp]; a; b";
        assert_eq!(line(&finding), expected);
    }
}
