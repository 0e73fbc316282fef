//! Tables of an outcome, for the terminal and for the document.

use super::figure::Unit;
use super::ground::Kind;
use super::outcome::{Measurement, Outcome, SideValues};
use super::sides::OTHER_BUILD;
use crate::report::{Cell, Section};
use crate::statistics::{Interval, RATIO_EXCLUDED, Summary};

/// Digits after the point, so that three digits stand in all.
#[must_use]
pub fn decimals(value: f64) -> usize {
    match value.abs() {
        0.0 => 0,
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 0.1 => 2,
        _ => 3,
    }
}

/// A figure of three digits.
#[must_use]
pub fn number(value: f64) -> String {
    format!("{value:.0$}", decimals(value))
}

/// Two figures as a range.
#[must_use]
pub fn range(from: f64, to: f64) -> String {
    format!("{} to {}", number(from), number(to))
}

fn summary(summary: Option<&Summary>) -> (Cell, Cell) {
    summary.map_or((Cell::Empty, Cell::Empty), |summary| {
        (number(summary.median).into(), range(summary.min, summary.max).into())
    })
}

fn row(side: &SideValues, measurement: &Measurement) -> Vec<Cell> {
    let (ratio, ratios) = summary(side.to_native.as_ref());
    let of = &side.summary;
    vec![
        format!("{}, {} {}", measurement.figure, measurement.file_system, measurement.device).into(),
        side.side.clone().into(),
        format!("{} {}", number(of.median), measurement.unit.symbol()).into(),
        range(of.min, of.max).into(),
        range(of.quartile_1, of.quartile_3).into(),
        ratio,
        ratios,
    ]
}

/// One table for each workload.
#[must_use]
pub fn workloads(outcome: &Outcome) -> Vec<(String, Section)> {
    let mut tables: Vec<(String, Section)> = Vec::new();
    for measurement in &outcome.measurements {
        if tables.last().is_none_or(|(workload, _)| *workload != measurement.workload) {
            let columns = ["figure", "side", "median", "min to max", "quartiles", "to native", "min to max of ratios"];
            let mut section = Section::new(measurement.workload.clone(), &columns);
            section.note(format!(
                "{}; {}. Durable at the end: {}.",
                first_upper(&measurement.about),
                measurement.unit.better(),
                measurement.ends_with
            ));
            tables.push((measurement.workload.clone(), section));
        }
        let (_, section) = tables.last_mut().expect("one was just put in");
        for side in &measurement.sides {
            section.row(row(side, measurement));
        }
    }
    tables
}

fn first_upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The targets.
#[must_use]
pub fn targets(outcome: &Outcome) -> Section {
    let columns = ["what", "on", "side", "target", "found", "min to max", "verdict"];
    let mut section = Section::new("Against the targets", &columns);
    for verdict in &outcome.verdicts {
        let (found, spread) = summary(verdict.found.as_ref());
        let judgement = verdict.judgement.in_words();
        let reason = verdict.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        section.row(vec![
            verdict.claim.clone().into(),
            verdict.ground.clone().into(),
            verdict.side.clone().into(),
            verdict.bound.clone().into(),
            found,
            spread,
            format!("{judgement}{reason}").into(),
        ]);
    }
    section
}

/// Where two builds were measured: the costs of the one in those of the other, so that more is worse for every unit.
#[must_use]
pub fn builds(outcome: &Outcome) -> Option<Section> {
    let columns = ["figure", "side", "costs in those of the other build", "95 % interval", "verdict"];
    let mut section = Section::new("The two builds", &columns);
    section.note("Median ratio of the pairs of each repetition, with the interval of ranks.");
    let mut is_empty = true;
    for measurement in &outcome.measurements {
        for side in &measurement.sides {
            let name = side.side.clone() + OTHER_BUILD;
            let Some(other) = measurement.sides.iter().find(|other| other.side == name) else { continue };
            let (costs, others) = match measurement.unit {
                Unit::Microseconds | Unit::Milliseconds | Unit::SecondsPerGib => (&side.values, &other.values),
                Unit::MegabytesPerSecond => (&other.values, &side.values),
            };
            let interval = Interval::of_ratios_by_rank(costs, others);
            let is_limited = measurement.device.split(" + ").any(|device| device != Kind::Memory.name());
            let verdict = match interval {
                // Short runs meet more or fewer slices of the controller by their place in the order: equal builds differ by up to 10 %.
                _ if is_limited => "not judged: the limit of the device decides",
                Interval { high, .. } if high < RATIO_EXCLUDED => "a loss of 5 % is excluded",
                Interval { low, .. } if low > RATIO_EXCLUDED => "LOSES MORE THAN 5 %",
                _ => "undecided",
            };
            is_empty = false;
            let what = format!(
                "{}, {}, {} {}",
                measurement.workload, measurement.figure, measurement.file_system, measurement.device
            );
            section.row(vec![
                what.into(),
                side.side.clone().into(),
                format!("{:.3}", interval.middle).into(),
                format!("{:.3} to {:.3}", interval.low, interval.high).into(),
                verdict.into(),
            ]);
        }
    }
    (!is_empty).then_some(section)
}

/// The machine and the devices.
#[must_use]
pub fn machine(outcome: &Outcome) -> Section {
    let mut section = Section::new("Machine", &["what", "value"]);
    let machine = &outcome.machine;
    let mut row = |what: &str, value: String| section.row(vec![what.into(), value.into()]);
    row("processor", format!("{}, {} processors", machine.processor, machine.processors));
    row("memory", format!("{} MiB", machine.memory_mib));
    row("kernel", machine.kernel.clone());
    row("load average before and after", format!("{:.1} and {:.1}", machine.load[0], machine.load[1]));
    row("limits set by", format!("control groups, version {}", machine.controller));
    row("build", machine.build.clone());
    row(
        "run",
        format!("{}, {} repetitions, {:.0} s", outcome.run.scale, outcome.run.repetitions, outcome.run.length_s),
    );
    if let Some(tree) = &outcome.run.tree {
        row("tree", format!("{} files, {} KiB", tree.files, tree.bytes >> 10));
    }
    for (program, version) in &machine.versions {
        row(program, version.clone());
    }
    for device in &outcome.devices {
        let rate = |rate: Option<u64>, unit: &str, by: u64| rate.map(|rate| format!("{} {unit}", rate / by));
        let limits = [
            rate(device.written_bytes_per_s_max, "MB/s written", 1_000_000),
            rate(device.read_bytes_per_s_max, "MB/s read", 1_000_000),
            rate(device.writes_per_s_max, "writes/s", 1),
            rate(device.reads_per_s_max, "reads/s", 1),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        let found: Vec<String> = device.found_share_of_limit.iter().map(|share| format!("{share:.2}")).collect();
        let found = if found.is_empty() { String::new() } else { format!(" (found: {} of it)", found.join(", ")) };
        let limits = if limits.is_empty() { "no limits".to_owned() } else { limits.join(", ") };
        row(&format!("device {}", device.name), limits + &found);
    }
    section
}

/// The skipped measurements.
#[must_use]
pub fn skipped(outcome: &Outcome) -> Option<Section> {
    let mut section = Section::new("Not measured", &["what", "why"]);
    for skipped in &outcome.skipped {
        section.row(vec![skipped.what.clone().into(), skipped.reason.clone().into()]);
    }
    (!outcome.skipped.is_empty()).then_some(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let texts: Vec<String> = [1234.5, 99.96, 1.234, 0.0123].map(number).into_iter().collect();
        assert_eq!(texts, ["1234", "100.0", "1.23", "0.012"]);
    }

    #[test]
    fn a_build_that_loses_is_named_whether_more_or_less_is_better() {
        let told = |device: &str, unit, ours: f64, others: f64| {
            let mut outcome = super::super::document::tests::outcome();
            let side = |name: &str, value| SideValues::new(name.to_owned(), None, vec![value; 20], None);
            outcome.measurements[0].unit = unit;
            outcome.measurements[0].device = device.to_owned();
            outcome.measurements[0].sides = vec![side("polymux", ours), side("polymux, other build", others)];
            builds(&outcome).expect("two builds were measured").text()
        };
        assert!(told("memory + memory", Unit::Microseconds, 11.0, 10.0).contains("LOSES MORE THAN 5 %"));
        assert!(told("memory", Unit::MegabytesPerSecond, 10.0, 11.0).contains("LOSES MORE THAN 5 %"));
        assert!(told("memory", Unit::MegabytesPerSecond, 11.0, 10.0).contains("a loss of 5 % is excluded"));
        assert!(told("120/120", Unit::MegabytesPerSecond, 10.0, 11.0).contains("not judged"));
        assert!(builds(&super::super::document::tests::outcome()).is_none(), "one build alone");
    }
}
