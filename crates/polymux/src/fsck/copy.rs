//! The second copy of the metadata store against the store: it never holds more than the store does.

use anyhow::Result;
use polymux_meta::{CopyWorth, LogView, Sequence, StoreError, describe_copy};

use super::report::{FsckReport, finding_of};
use crate::config::VolumeConfig;

/// Adds what the copies on all tiers show.
pub fn compare(config: &VolumeConfig, log: &LogView, report: &mut FsckReport) -> Result<()> {
    let mut end = log.summary().checkpoint;
    let walked: Result<(u64, _), StoreError> = log.visit(|entry| {
        end = entry.position + entry.length;
        Ok(())
    });
    let end = walked.map(|(position, _)| position).unwrap_or(end);
    for (index, tier) in config.tiers.iter().enumerate() {
        match describe_copy(&config.copy_directory(index)) {
            Ok(None) => {}
            Ok(Some(copy)) if copy.worth == CopyWorth::Incomplete => {
                report.add(finding_of("copy-incomplete", format!("on tier `{}`", tier.name)));
            }
            Ok(Some(copy)) => {
                let Sequence(arrived) = copy.arrived;
                if arrived > end {
                    let detail =
                        format!("on tier `{}`: it has transaction {arrived}, the store ends at {end}", tier.name);
                    report.add(finding_of("copy-ahead", detail));
                }
            }
            Err(error) => report.add(finding_of("copy-unreadable", format!("on tier `{}`: {error}", tier.name))),
        }
    }
    Ok(())
}
