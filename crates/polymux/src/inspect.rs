//! `polymux inspect`: looks at the parts of a volume without mounting it, and changes nothing.

mod render;
pub mod store;

use std::path::Path;

use anyhow::Result;
use polymux_tier::{CleanStamp, Label};
use serde_json::json;

use crate::cli::OutputFormat;
use crate::output;
use crate::tier_candidates;

/// Shows the label of a tier.
pub fn label(tier: &Path, format: OutputFormat) -> Result<()> {
    let label = tier_candidates::read_label(tier)?;
    match format {
        OutputFormat::Json => output::json(&json!({
            "path": tier,
            "volume": label.volume.to_string(),
            "volume_name": label.volume_name,
            "tier": label.tier.get(),
            "tier_name": label.tier_name,
            "instance": format!("{:016x}", label.instance),
            "epoch": label.epoch.get(),
            "clean": clean_bytes(&label).is_some(),
            "bytes_used": clean_bytes(&label),
        })),
        OutputFormat::Text => output::line(&render(tier, &label)),
    }
}

fn clean_bytes(label: &Label) -> Option<u64> {
    match label.clean {
        CleanStamp::InUse => None,
        CleanStamp::Clean { bytes_used } => Some(bytes_used),
    }
}

fn render(tier: &Path, label: &Label) -> String {
    let state = match clean_bytes(label) {
        Some(bytes) => format!("ended cleanly with {bytes} bytes in use"),
        None => "in use, or not ended cleanly".to_owned(),
    };
    format!(
        "{}: tier {} (`{}`, instance {:016x}) of volume `{}` ({})\n  epoch {}, {state}",
        tier.display(),
        label.tier,
        label.tier_name,
        label.instance,
        label.volume_name,
        label.volume,
        label.epoch
    )
}
