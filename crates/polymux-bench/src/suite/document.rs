//! The results in the document, made from the JSON of a run.
//!
//! Invariant: the text between the two marks of the document is replaced as a whole, and nothing else is touched.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::arguments::DocumentArguments;
use super::outcome::{Judgement, Outcome, SCHEMA, SCHEMA_VERSION};
use super::{chart, table};
use crate::report::Section;

/// Before the section.
const BEGIN: &str = "<!-- results of `make bench`: begin -->";

/// After it.
const END: &str = "<!-- results of `make bench`: end -->";

/// Replaces the section of a document.
///
/// # Errors
/// Where the JSON is of another schema, or the document has no marks.
pub fn run(arguments: &DocumentArguments) -> Result<()> {
    let outcome = read(&arguments.json)?;
    let path = &arguments.document;
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let charts = match &arguments.svg {
        Some(directory) => chart::draw_all(&outcome, directory)?,
        None => Vec::new(),
    };
    let beside = path.parent().unwrap_or(Path::new(""));
    let link = |file: &Path| file.strip_prefix(beside).unwrap_or(file).display().to_string();
    let charts: Vec<(String, String)> = charts.iter().map(|(workload, file)| (workload.clone(), link(file))).collect();
    let replaced = replace(&text, &section(&outcome, &charts)).with_context(|| path.display().to_string())?;
    Ok(fs::write(path, replaced)?)
}

/// Reads the results of a run.
///
/// # Errors
/// Where it is no such file, or of another version.
pub fn read(path: &Path) -> Result<Outcome> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let value: serde_json::Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let (schema, version) = (value["schema"].as_str(), value["schema_version"].as_u64());
    ensure!(
        schema == Some(SCHEMA) && version == Some(u64::from(SCHEMA_VERSION)),
        "{} is not of schema {SCHEMA}, version {SCHEMA_VERSION}",
        path.display()
    );
    serde_json::from_value(value).with_context(|| path.display().to_string())
}

/// The text with another section between its marks.
fn replace(text: &str, section: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("there is no mark {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("there is no mark {END}"))?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", section.trim_matches('\n')))
}

/// A table one level below the heading of the section.
fn below(table: &Section) -> String {
    table.text().replacen("\n### ", "\n#### ", 1)
}

/// The section: targets first, then the machine, then each workload.
fn section(outcome: &Outcome, charts: &[(String, String)]) -> String {
    let count = |judgement| outcome.verdicts.iter().filter(|verdict| verdict.judgement == judgement).count();
    let mut text = format!(
        "\n### Results of the suite\n\nMade from the JSON of a run by `make bench-document`; not edited by hand. Of {} targets \
         (each on every device that it is about) {} are met, {} are not met, {} are not measured.\n",
        outcome.verdicts.len(),
        count(Judgement::Met),
        count(Judgement::NotMet),
        count(Judgement::NotMeasured)
    );
    text.push_str(&below(&table::targets(outcome)));
    text.push_str(&below(&table::machine(outcome)));
    if let Some(skipped) = table::skipped(outcome) {
        text.push_str(&below(&skipped));
    }
    for (workload, section) in table::workloads(outcome) {
        text.push_str(&below(&section));
        if let Some((_, link)) = charts.iter().find(|(of, _)| *of == workload) {
            text.push_str(&format!("\n![{workload}]({link})\n"));
        }
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::figure::Unit;
    use super::super::outcome::{DeviceFacts, Machine, Measurement, Run, SideValues, Skipped, Tree};
    use super::super::sides::{Mode, Route, Transport};
    use super::super::targets;
    use super::*;

    const GOLDEN: &str = include_str!("document_golden.md");

    fn measurement() -> Measurement {
        let route = Route::new(Mode::Cached, Transport::Classic);
        let native = [119.5, 120.0, 118.0];
        let side = |name: &str, route, values: &[f64]| {
            let to = (name != "native").then_some(&native[..]);
            SideValues::new(name.to_owned(), route, values.to_vec(), to)
        };
        Measurement {
            workload: "write-4m".to_owned(),
            about: "a new file, written 4 MiB at a time".to_owned(),
            ends_with: "fsync of the file".to_owned(),
            figure: "write".to_owned(),
            unit: Unit::MegabytesPerSecond,
            file_system: "xfs".to_owned(),
            device: "120/120".to_owned(),
            sides: vec![
                side("native", None, &native),
                side("mergerfs fast", None, &[100.0, 99.0, 101.5]),
                side("polymux cached classic", Some(route), &[118.0, 117.5, 90.25]),
            ],
        }
    }

    pub(in crate::suite) fn outcome() -> Outcome {
        let measurements = vec![measurement()];
        Outcome {
            schema: SCHEMA.to_owned(),
            schema_version: SCHEMA_VERSION,
            run: Run {
                ended_unix_s: 1_700_000_000,
                length_s: 83.4,
                scale: "quick".to_owned(),
                repetitions: 3,
                tree: Some(Tree { files: 2000, bytes: 20_480_000 }),
            },
            machine: Machine {
                processor: "A Processor".to_owned(),
                processors: 2,
                memory_mib: 24_000,
                kernel: "Linux 6.18".to_owned(),
                load: [0.25, 1.5],
                controller: 1,
                build: "release".to_owned(),
                versions: BTreeMap::from([("polymux".to_owned(), "polymux 0.1.0".to_owned())]),
            },
            devices: vec![DeviceFacts {
                name: "120/120".to_owned(),
                read_bytes_per_s_max: Some(120_000_000),
                written_bytes_per_s_max: Some(120_000_000),
                reads_per_s_max: None,
                writes_per_s_max: None,
                found_share_of_limit: vec![0.99],
            }],
            verdicts: targets::judge(&measurements),
            measurements,
            skipped: vec![Skipped { what: "mergerfs".to_owned(), reason: "mergerfs is not installed".to_owned() }],
        }
    }

    #[test]
    fn the_section_of_an_outcome_is_the_golden_one() {
        let made = section(&outcome(), &[("write-4m".to_owned(), "charts/write-4m.svg".to_owned())]);
        if std::env::var_os("POLYMUX_GOLDEN").is_some() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suite/document_golden.md");
            fs::write(path, &made).unwrap();
        }
        assert_eq!(made, GOLDEN, "POLYMUX_GOLDEN=1 writes the golden file anew");
    }

    #[test]
    fn nothing_outside_the_marks_is_touched() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nrest\n");
        assert_eq!(replace(&text, "\nnew\n").unwrap(), format!("# Title\n{BEGIN}\nnew\n{END}\nrest\n"));
        assert_eq!(replace(&replace(&text, "new").unwrap(), "new").unwrap(), replace(&text, "new").unwrap());
        assert!(replace("no marks", "new").is_err());
    }

    #[test]
    fn an_outcome_survives_json_and_another_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outcome.json");
        fs::write(&path, serde_json::to_string(&outcome()).unwrap()).unwrap();
        // Not the values themselves: JSON may round their last digit.
        assert_eq!(section(&read(&path).unwrap(), &[]), section(&outcome(), &[]));
        let later = Outcome { schema_version: SCHEMA_VERSION + 1, ..outcome() };
        fs::write(&path, serde_json::to_string(&later).unwrap()).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("is not of schema"));
    }
}
