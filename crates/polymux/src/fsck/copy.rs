//! The second copy of the metadata store against the store: it never holds more than the store does.

use anyhow::Result;
use polymux_meta::{CopyWorth, LogView, Sequence, StoreError, describe_copy, sequence_at};

use super::report::{FsckReport, finding_of};
use polymux_config::config::VolumeConfig;

/// Adds the findings about the copies on all tiers.
pub fn compare(config: &VolumeConfig, log: &LogView, report: &mut FsckReport) -> Result<()> {
    let mut committed = sequence_at(log.summary().checkpoint);
    // Where the log cannot be read to its end, as far as it can.
    let _walked: Result<_, StoreError> = log.visit(|entry| {
        committed = sequence_at(entry.position + entry.length);
        Ok(())
    });
    for (index, tier) in config.tiers.iter().enumerate() {
        match describe_copy(&config.copy_directory(index)) {
            Ok(None) => {}
            Ok(Some(copy)) if copy.worth == CopyWorth::Incomplete => {
                report.add(finding_of("copy-incomplete", format!("on tier `{}`", tier.name)));
            }
            // A former store of this tier, from before a rebuild.
            Ok(Some(copy)) if copy.store != log.summary().store => {}
            Ok(Some(copy)) => {
                let (Sequence(arrived), Sequence(end)) = (copy.arrived, committed);
                if arrived > end {
                    let detail = format!(
                        "on tier `{}`: it has transaction {arrived}, the store ends at {end}: what was durable between them is \
                         lost in the store. Start from the copy with `polymux mount --from-copy`",
                        tier.name
                    );
                    report.add(finding_of("copy-ahead", detail));
                }
            }
            Err(error) => report.add(finding_of("copy-unreadable", format!("on tier `{}`: {error}", tier.name))),
        }
    }
    Ok(())
}
