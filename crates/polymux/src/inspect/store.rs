//! `polymux inspect store`: the log, the records and the tables of a metadata store, and whether its records agree.
//!
//! Invariants:
//! * Nothing is changed: the store is read through [`StoreView`] and [`LogView`].
//! * A store that is in use is refused, but for its log, which is read with a warning.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use polymux_fs::{
    Description, INVARIANTS, RECORD_KINDS, check_records, describe_key, describe_record, for_each_record,
};
use polymux_meta::{Batch, InUse, LogEnd, LogPlacement, LogSummary, LogView, StoreView};
use polymux_types::ByteSize;
use serde_json::{Value, json};

use super::render;
use crate::cli::{OutputFormat, StorePart, StoreTarget, output_format};
use crate::output::{self, Table};
use polymux_config::config::{VolumeConfig, private_directory};
use polymux_config::registry::{Registry, VolumeReference};

/// Shows a part of a store, or checks it.
pub fn run(registry: &Registry, part: &StorePart) -> Result<()> {
    match part {
        StorePart::Log { target } => log(&locate(registry, target)?, output_format(target.json)),
        StorePart::Records { target, kinds, inode } => {
            records(&open(&locate(registry, target)?)?, kinds, *inode, output_format(target.json))
        }
        StorePart::Tables { target } => tables(&open(&locate(registry, target)?)?, output_format(target.json)),
        StorePart::Check { target } => check(&open(&locate(registry, target)?)?, output_format(target.json)),
    }
}

/// The directory of the store that is meant: by name or configuration of its volume, by its tier, or by itself.
fn locate(registry: &Registry, target: &StoreTarget) -> Result<PathBuf> {
    let path = Path::new(&target.store);
    if path.is_dir() && (target.store.contains('/') || !registry.configured().contains(&target.store)) {
        let below = private_directory(path).join("meta");
        return Ok(if below.is_dir() { below } else { path.to_owned() });
    }
    let config = registry.config_path(&VolumeReference::parse(&target.store))?;
    let config = VolumeConfig::read(&config).with_context(|| format!("no store and no volume: `{}`", target.store))?;
    Ok(config.metadata_directory())
}

fn open(path: &Path) -> Result<StoreView> {
    StoreView::open(path, &LogPlacement::Block, &polymux_fs::store_boundaries())
        .map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn log(path: &Path, format: OutputFormat) -> Result<()> {
    let view = LogView::open(path, &LogPlacement::Block, InUse::Read)?;
    if view.is_in_use() {
        output::warn("the store is in use: entries come and go while they are read");
    }
    let summary = view.summary();
    let mut entries = Vec::new();
    if format == OutputFormat::Text {
        output::line(&header_text(path, &summary))?;
    }
    // Printed as they come: a log may hold a million entries.
    let mut failed = None;
    let (end, reason) = view.visit(|entry| {
        let place = (entry.position, entry.length, entry.generation);
        match format {
            OutputFormat::Json => entries.push(entry_json(place, entry.batch.as_ref())),
            OutputFormat::Text => {
                if let Err(error) = entry_text(place, entry.batch.as_ref()).and_then(|text| output::line(&text)) {
                    failed.get_or_insert(error);
                }
            }
        }
        Ok(())
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    match format {
        OutputFormat::Json => output::json(&json!({
            "path": path,
            "in_use": view.is_in_use(),
            "store": format!("{:016x}", summary.store),
            "generation": summary.generation,
            "header_writes": summary.turn,
            "ring_bytes": summary.ring_bytes,
            "checkpoint": summary.checkpoint,
            "entries": entries,
            "end": end,
            "end_reason": end_text(reason),
        })),
        OutputFormat::Text => output::line(&format!("{end:>12}  the log ends: {}", end_text(reason))),
    }
}

fn header_text(path: &Path, summary: &LogSummary) -> String {
    format!(
        "{}: log of store {:016x}\n  ring of {}, opened for writing {} times, header written {} times\n  \
         everything before {} is in the tables\n    position  length  generation  changes",
        path.display(),
        summary.store,
        ByteSize(summary.ring_bytes),
        summary.generation,
        summary.turn,
        summary.checkpoint,
    )
}

fn entry_text((position, length, generation): (u64, u64, u32), batch: Option<&Batch>) -> Result<String> {
    let count = batch.map_or_else(|| "unreadable".to_owned(), |batch| batch.len().to_string());
    let mut text = format!("{position:>12}  {length:>6}  {generation:>10}  {count}");
    for change in batch.into_iter().flatten() {
        let key = render::key_text(&describe_key(change.key));
        match change.value {
            Some(value) => text.push_str(&format!("\n{:>14}put {key} ({} bytes)", "", value.len())),
            None => text.push_str(&format!("\n{:>14}delete {key}", "")),
        }
    }
    Ok(text)
}

fn entry_json((position, length, generation): (u64, u64, u32), batch: Option<&Batch>) -> Value {
    let change = |change: polymux_meta::ChangeRef<'_>| {
        json!({
            "change": if change.value.is_some() { "put" } else { "delete" },
            "key": render::key_json(&describe_key(change.key)),
            "value_bytes": change.value.map(<[u8]>::len),
        })
    };
    let changes: Option<Vec<Value>> = batch.map(|batch| batch.iter().map(change).collect());
    json!({ "position": position, "length": length, "generation": generation, "changes": changes })
}

fn end_text(end: LogEnd) -> String {
    match end {
        LogEnd::Unwritten => "nothing was written there yet".to_owned(),
        LogEnd::Full => "the ring is full".to_owned(),
        LogEnd::EarlierRound { position } => {
            format!("there is an entry of an earlier round of the ring, which had position {position}")
        }
        LogEnd::EarlierOpening { generation } => {
            format!(
                "there is an entry that generation {generation} left behind, beyond the end that recovery found then"
            )
        }
        LogEnd::LaterOpening { generation } => {
            format!("there is an entry of generation {generation}, which the header does not know of")
        }
        LogEnd::Torn { length } => format!("an entry of {length} bytes was not written to its end"),
        LogEnd::Foreign => "there are bytes that are no entry".to_owned(),
        LogEnd::OfCopy => "this is a second copy, which reaches as far".to_owned(),
        LogEnd::Damaged(damage) => damage.to_string(),
    }
}

fn records(view: &StoreView, kinds: &[char], inode: Option<u64>, format: OutputFormat) -> Result<()> {
    if let Some(unknown) = kinds.iter().find(|kind| !RECORD_KINDS.iter().any(|(letter, _)| letter == *kind)) {
        let known: Vec<String> = RECORD_KINDS.iter().map(|(letter, name)| format!("`{letter}` {name}")).collect();
        bail!("there is no kind of record `{unknown}`; there are {}", known.join(", "));
    }
    let wanted = |description: &Description| {
        let kind = kinds.is_empty() || description.letter.is_some_and(|letter| kinds.contains(&letter));
        kind && inode.is_none_or(|inode| description.ino.is_some_and(|ino| ino.get() == inode))
    };
    let mut failed = None;
    let mut first = true;
    for_each_record(view, |key, value| {
        let description = describe_record(key, value);
        if failed.is_none() && wanted(&description) {
            let text = match format {
                // One record a line, as an array, so that a store of any size is printed as it is read.
                OutputFormat::Json if first => format!("[\n{}", render::record_json(&description)),
                OutputFormat::Json => format!(",{}", render::record_json(&description)),
                OutputFormat::Text => render::record_text(&description),
            };
            first = false;
            failed = output::line(&text).err();
        }
        Ok(())
    })?;
    match (failed, format) {
        (Some(error), _) => Err(error),
        (None, OutputFormat::Json) => output::line(if first { "[]" } else { "]" }),
        (None, OutputFormat::Text) => Ok(()),
    }
}

fn tables(view: &StoreView, format: OutputFormat) -> Result<()> {
    let partitions = view.partitions();
    let kinds = |index: usize| {
        let letter = |key: &[u8]| key.get(4).copied().unwrap_or(0);
        let first = letter(&partitions[index].first_key);
        let next = partitions.get(index + 1).map_or(u8::MAX, |next| letter(&next.first_key));
        let within = |letter: char| u32::from(letter) >= u32::from(first) && u32::from(letter) < u32::from(next);
        RECORD_KINDS.iter().filter(|(letter, _)| within(*letter)).map(|(letter, _)| *letter).collect::<String>()
    };
    if format == OutputFormat::Json {
        let level = |level: &polymux_meta::TableLevel| {
            json!({ "runs": level.runs, "tables": level.tables, "bytes": level.bytes, "entries": level.entries,
                    "removals": level.removals })
        };
        let partition = |(index, partition): (usize, &polymux_meta::PartitionView)| {
            let levels: Vec<Value> = partition.levels.iter().map(level).collect();
            json!({ "name": partition.name, "kinds": kinds(index), "version": partition.version, "levels": levels })
        };
        return output::json(&partitions.iter().enumerate().map(partition).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["partition", "kinds", "level", "runs", "tables", "bytes", "entries", "removals"]);
    for (index, partition) in partitions.iter().enumerate() {
        let levels = partition.levels.iter().enumerate().filter(|(_, level)| level.tables > 0);
        let levels = levels.map(|(number, level)| (number.to_string(), level.clone()));
        for (number, level) in levels.chain([("all".to_owned(), partition.total())]) {
            let counts = [level.runs.to_string(), level.tables.to_string(), ByteSize(level.bytes).to_string()];
            let mut cells = vec![partition.name.clone(), kinds(index), number];
            cells.extend(counts);
            cells.extend([level.entries.to_string(), level.removals.to_string()]);
            table.row(cells);
        }
    }
    output::line(&table.render(""))
}

fn check(view: &StoreView, format: OutputFormat) -> Result<()> {
    let report = check_records(view)?;
    match format {
        OutputFormat::Json => {
            let violations: Vec<Value> = report
                .violations
                .iter()
                .map(|found| json!({ "invariant": found.invariant, "detail": found.detail }))
                .collect();
            let records: serde_json::Map<String, Value> =
                report.records.iter().map(|(letter, count)| (letter.to_string(), json!(count))).collect();
            output::json(&json!({
                "records": records,
                "violation_count": report.violation_count,
                "violations": violations,
            }))?;
        }
        OutputFormat::Text => {
            let mut table = Table::new(&["invariant", "violations", "what holds"]);
            for (name, meaning) in INVARIANTS {
                let count = report.violations.iter().filter(|found| found.invariant == name).count();
                table.row(vec![name.to_owned(), count.to_string(), meaning.to_owned()]);
            }
            output::line(&table.render(""))?;
            for found in &report.violations {
                output::line(&format!("{}: {}", found.invariant, output::one_line(&found.detail)))?;
            }
            let records: u64 = report.records.values().sum();
            output::line(&format!("{records} records, {} violations", report.violation_count))?;
        }
    }
    if report.violation_count > 0 {
        bail!("the records break {} rules", report.violation_count);
    }
    Ok(())
}
