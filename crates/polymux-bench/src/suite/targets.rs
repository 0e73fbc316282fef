//! The targets, in one table, and whether a run meets them.
//!
//! A target is judged by the median of the ratios (or differences) of the repetitions of one run, on every
//! ground on which its workload was measured and for every path that it is about, and never rounded in favour of any side.

mod comparison;
mod operations;
mod programs;

use std::collections::BTreeSet;

use super::outcome::{Judgement, Measurement, SideValues, Verdict, ratios};
use super::sides::{ExtendedAttributes, Mode, Route, Transport};
use crate::statistics::Summary;

/// Which side of a measurement is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The native file system.
    Native,
    /// mergerfs as it comes.
    Mergerfs,
    /// mergerfs with its documented fast settings.
    MergerfsFast,
    /// mergerfs with those, and writes that the kernel collects.
    MergerfsWriteBack,
    /// Polymux on whichever path.
    Polymux,
    /// Polymux as it chooses how it does I/O.
    Chosen,
    /// Polymux where the kernel goes to the object.
    Passthrough,
    /// Polymux through the daemon with the page cache.
    Cached,
    /// Polymux with requests over `/dev/fuse`.
    Classic,
    /// Polymux with requests over `io_uring`.
    IoUring,
    /// Polymux with requests over `io_uring`, without extended attributes, which mergerfs does not have in its fast settings.
    IoUringNoXattr,
}

impl Subject {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Mergerfs => "mergerfs",
            Self::MergerfsFast => "mergerfs fast",
            Self::MergerfsWriteBack => "mergerfs write-back",
            Self::Polymux => "polymux",
            Self::Chosen => "polymux as it chooses",
            Self::Passthrough => "polymux in passthrough",
            Self::Cached => "polymux in cached mode",
            Self::Classic => "polymux over /dev/fuse",
            Self::IoUring => "polymux over io_uring",
            Self::IoUringNoXattr => "polymux over io_uring without extended attributes",
        }
    }

    fn is(self, side: &SideValues) -> bool {
        let route = side.route;
        let has_xattrs = |route: &Route| route.extended_attributes == ExtendedAttributes::On;
        let plain = route.filter(has_xattrs);
        let has = |is: fn(Mode, Transport) -> bool| plain.is_some_and(|route| is(route.mode, route.transport));
        match self {
            Self::Native | Self::Mergerfs | Self::MergerfsFast | Self::MergerfsWriteBack => {
                route.is_none() && side.side == self.in_words()
            }
            Self::Polymux => plain.is_some(),
            Self::Chosen => has(|mode, _| mode == Mode::Auto),
            Self::Passthrough => has(|mode, _| mode == Mode::Passthrough),
            Self::Cached => has(|mode, _| mode == Mode::Cached),
            Self::Classic => has(|_, transport| transport == Transport::Classic),
            Self::IoUring => has(|_, transport| transport == Transport::IoUring),
            Self::IoUringNoXattr => plain.is_none() && route.is_some_and(|route| route.transport == Transport::IoUring),
        }
    }

    /// The sides that are meant; the first one where something is compared with it.
    fn of(self, measurement: &Measurement) -> impl Iterator<Item = &SideValues> {
        measurement.sides.iter().filter(move |side| self.is(side))
    }
}

/// The figure to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Against {
    /// This figure of another side.
    Side(Subject),
    /// Another figure of the same side.
    Figure(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    RatioAtMost(f64),
    RatioAtLeast(f64),
    DifferenceAtMostUs(f64),
}

/// One promise.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Target {
    claim: &'static str,
    workload: &'static str,
    figure: &'static str,
    /// Kinds of devices; empty: all on which it was measured.
    devices: &'static [&'static str],
    subject: Subject,
    against: Against,
    bound: Bound,
}

const THROTTLED: &[&str] = &["230/660", "120/120", "56/53"];

const fn target(
    claim: &'static str,
    (workload, figure, devices): (&'static str, &'static str, &'static [&'static str]),
    subject: Subject,
    against: Subject,
    bound: Bound,
) -> Target {
    Target { claim, workload, figure, devices, subject, against: Against::Side(against), bound }
}

/// Targets of single operations and streams.
const TARGETS: &[Target] = {
    use Bound::{DifferenceAtMostUs, RatioAtLeast, RatioAtMost};
    use Subject::{Cached, Classic, IoUring, IoUringNoXattr, Mergerfs, MergerfsFast, Native, Passthrough, Polymux};
    const WRITE: (&str, &str, &[&str]) = ("write-4m", "write", THROTTLED);
    const WRITE_NEW: (&str, &str, &[&str]) = ("write-4m-new", "write", THROTTLED);
    const READ: (&str, &str, &[&str]) = ("read-4m", "read", THROTTLED);
    &[
        target(
            "one-byte read, warm, one tier",
            ("read-warm", "1 byte", &[]),
            Passthrough,
            Native,
            DifferenceAtMostUs(0.15),
        ),
        target(
            "one-byte read, warm, split over two tiers",
            ("read-warm-split", "1 byte", &[]),
            Cached,
            Native,
            RatioAtMost(1.5),
        ),
        target("one-byte read, cold", ("read-cold", "1 byte", &["200-iops"]), Polymux, Native, RatioAtMost(1.05)),
        target("sequential writes with fsync", WRITE, Passthrough, Native, RatioAtLeast(0.97)),
        target("sequential writes with fsync", WRITE, Cached, Native, RatioAtLeast(0.95)),
        target("sequential writes of a new file with fsync", WRITE_NEW, Cached, Native, RatioAtLeast(0.95)),
        target("sequential reads", READ, Passthrough, Native, RatioAtLeast(0.97)),
        target("sequential reads", READ, Cached, Native, RatioAtLeast(0.95)),
        target("random writes, buffered", ("write-4k", "write", THROTTLED), Passthrough, Native, RatioAtLeast(0.95)),
        target(
            "random writes, direct",
            ("write-4k-direct", "write", THROTTLED),
            Passthrough,
            Native,
            RatioAtLeast(0.95),
        ),
        target(
            "create + close + unlink",
            ("create-unlink", "create + close + unlink", &[]),
            Polymux,
            MergerfsFast,
            RatioAtMost(0.65),
        ),
        target("untar of 2,000 files", ("untar", "untar", &[]), IoUring, MergerfsFast, RatioAtMost(0.45)),
        target("untar of 2,000 files", ("untar", "untar", &[]), IoUringNoXattr, MergerfsFast, RatioAtMost(0.45)),
        target("readdir + stat of 10,000 entries", ("listing", "first", &[]), Polymux, Mergerfs, RatioAtMost(0.25)),
        target("stat, warm", ("many-files", "stat", &[]), Polymux, Native, RatioAtMost(1.5)),
        target(
            "direct read of 4 KiB, one thread",
            ("read-4k-direct", "4 KiB", &[]),
            IoUring,
            Classic,
            RatioAtMost(0.85),
        ),
        Target {
            claim: "p99 on the fast tier beside a hammered slow one",
            workload: "mixed-load",
            figure: "beside, p99",
            devices: &[],
            subject: Polymux,
            against: Against::Figure("alone, p99"),
            bound: RatioAtMost(2.0),
        },
    ]
};

impl Bound {
    fn found(self, of: &[f64], to: &[f64]) -> Option<Summary> {
        let values = match self {
            Self::RatioAtMost(_) | Self::RatioAtLeast(_) => ratios(of, to)?,
            Self::DifferenceAtMostUs(_) => {
                ratios(of, to)?;
                of.iter().zip(to).map(|(of, to)| of - to).collect()
            }
        };
        Some(Summary::of(&values))
    }

    fn is_kept(self, found: f64) -> bool {
        match self {
            Self::RatioAtMost(bound) | Self::DifferenceAtMostUs(bound) => found <= bound,
            Self::RatioAtLeast(bound) => found >= bound,
        }
    }

    fn in_words(self, against: &str) -> String {
        match self {
            Self::RatioAtMost(bound) => format!("at most {} of {against}", two_decimals(bound)),
            Self::RatioAtLeast(bound) => format!("at least {} of {against}", two_decimals(bound)),
            Self::DifferenceAtMostUs(bound) => format!("at most {against} + {bound} us"),
        }
    }
}

/// At most two decimals, for a report.
fn two_decimals(bound: f64) -> f64 {
    (bound * 100.0).round() / 100.0
}

impl Target {
    fn against_in_words(&self) -> &'static str {
        match self.against {
            Against::Side(subject) => subject.in_words(),
            Against::Figure(figure) => figure,
        }
    }

    fn verdict(&self, ground: String, side: &str, judged: Result<Summary, String>) -> Verdict {
        let (found, reason) = match judged {
            Ok(found) => (Some(found), None),
            Err(reason) => (None, Some(reason)),
        };
        let judgement = match &found {
            None => Judgement::NotMeasured,
            Some(found) if self.bound.is_kept(found.median) => Judgement::Met,
            Some(_) => Judgement::NotMet,
        };
        Verdict {
            claim: self.claim.to_owned(),
            ground,
            side: side.to_owned(),
            bound: self.bound.in_words(self.against_in_words()),
            found,
            judgement,
            reason,
        }
    }

    fn not_measured(&self, ground: String, reason: String) -> Verdict {
        self.verdict(ground, self.subject.in_words(), Err(reason))
    }

    fn compare(&self, side: &SideValues, measurement: &Measurement, all: &[Measurement]) -> Result<Summary, String> {
        let to = match self.against {
            Against::Side(subject) => subject.of(measurement).next(),
            Against::Figure(figure) => {
                let is_beside = |other: &&Measurement| {
                    other.figure == figure
                        && other.workload == measurement.workload
                        && other.file_system == measurement.file_system
                        && other.device == measurement.device
                };
                all.iter().find(is_beside).and_then(|other| other.side(&side.side))
            }
        };
        let to = to.ok_or_else(|| format!("{} was not measured", self.against_in_words()))?;
        self.bound.found(&side.values, &to.values).ok_or_else(|| "repetitions are missing".to_owned())
    }

    fn concerns(&self, measurement: &Measurement) -> bool {
        measurement.workload == self.workload
            && measurement.figure == self.figure
            && (self.devices.is_empty() || self.devices.contains(&measurement.device.as_str()))
    }

    fn judge(&self, measurements: &[Measurement]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for measurement in measurements.iter().filter(|measurement| self.concerns(measurement)) {
            let ground = format!("{} {}", measurement.file_system, measurement.device);
            let before = verdicts.len();
            for side in self.subject.of(measurement) {
                let judged = self.compare(side, measurement, measurements);
                verdicts.push(self.verdict(ground.clone(), &side.side, judged));
            }
            if verdicts.len() == before {
                verdicts.push(self.not_measured(ground, format!("{} was not measured", self.subject.in_words())));
            }
        }
        let ran = |device: &str| measurements.iter().any(|known| self.concerns(known) && known.device == device);
        for device in self.devices.iter().filter(|device| !ran(device)) {
            verdicts.push(self.not_measured((*device).to_owned(), format!("{} did not run there", self.workload)));
        }
        if verdicts.is_empty() {
            verdicts.push(self.not_measured(String::new(), format!("{} did not run", self.workload)));
        }
        verdicts
    }
}

fn all() -> impl Iterator<Item = Target> {
    TARGETS.iter().copied().chain(operations::targets()).chain(programs::targets())
}

/// A verdict for every target on every ground that it was measured on and every side that it is about, or one that says that it was not; one
/// for all targets of a workload that did not run.
#[must_use]
pub fn judge(measurements: &[Measurement]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut did_not_run = BTreeSet::new();
    for target in all() {
        if measurements.iter().any(|measurement| measurement.workload == target.workload) {
            verdicts.extend(target.judge(measurements));
        } else if did_not_run.insert(target.workload) {
            verdicts.push(target.not_measured(String::new(), format!("{} did not run", target.workload)));
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::super::figure::Unit;
    use super::super::sides::Route;
    use super::super::workloads;
    use super::*;

    const CACHED: Route = Route::new(Mode::Cached, Transport::Classic);

    fn measurement(workload: &str, figure: &str, device: &str, sides: &[(&str, Option<Route>, &[f64])]) -> Measurement {
        let side = |(name, route, values): &(&str, Option<Route>, &[f64])| {
            SideValues::new((*name).to_owned(), *route, values.to_vec(), None)
        };
        Measurement {
            workload: workload.to_owned(),
            about: String::new(),
            ends_with: String::new(),
            figure: figure.to_owned(),
            unit: Unit::Microseconds,
            file_system: "ext4".to_owned(),
            device: device.to_owned(),
            sides: sides.iter().map(side).collect(),
        }
    }

    fn verdicts(measurements: &[Measurement], claim: &str) -> Vec<(String, Judgement)> {
        let all = judge(measurements).into_iter().filter(|verdict| verdict.claim == claim);
        all.map(|verdict| (verdict.ground, verdict.judgement)).collect()
    }

    #[test]
    fn every_target_is_about_a_figure_and_devices_that_exist() {
        use super::super::workload::Scale;
        for target in all() {
            let workload = workloads::ALL.iter().find(|workload| workload.name() == target.workload);
            let workload = workload.unwrap_or_else(|| panic!("there is no workload {}", target.workload));
            assert!(workload.figures().iter().any(|figure| figure.name == target.figure), "{}", target.claim);
            if let Against::Figure(other) = target.against {
                assert!(workload.figures().iter().any(|figure| figure.name == other), "{}", target.claim);
            }
            let devices: Vec<String> =
                workload.grounds(Scale::Full).iter().map(super::super::ground::Ground::device).collect();
            assert!(target.devices.iter().all(|device| devices.contains(&(*device).to_owned())), "{}", target.claim);
        }
    }

    #[test]
    fn a_target_is_met_up_to_its_bound_and_not_beyond() {
        let run = |value: f64| {
            vec![measurement(
                "read-cold",
                "1 byte",
                "200-iops",
                &[("native", None, &[100.0]), ("p", Some(CACHED), &[value])],
            )]
        };
        let ground = "ext4 200-iops".to_owned();
        assert_eq!(verdicts(&run(105.0), "one-byte read, cold"), [(ground.clone(), Judgement::Met)]);
        assert_eq!(verdicts(&run(105.1), "one-byte read, cold"), [(ground, Judgement::NotMet)]);
    }

    #[test]
    fn what_was_not_measured_is_said_for_each_device() {
        let run =
            [measurement("write-4m", "write", "120/120", &[("native", None, &[120.0]), ("p", Some(CACHED), &[119.0])])];
        let found = verdicts(&run, "sequential writes with fsync");
        let not = |ground: &str| (ground.to_owned(), Judgement::NotMeasured);
        let passthrough = [not("ext4 120/120"), not("230/660"), not("56/53")];
        let cached = [("ext4 120/120".to_owned(), Judgement::Met), not("230/660"), not("56/53")];
        assert_eq!(found, [passthrough, cached].concat());
        assert_eq!(verdicts(&run, "stat, warm"), [not("")]);
    }

    #[test]
    fn a_figure_may_be_compared_with_another_of_the_same_side() {
        let device = "memory + 200-iops";
        let run = [
            measurement("mixed-load", "alone, p99", device, &[("p", Some(CACHED), &[50.0, 60.0, 70.0])]),
            measurement("mixed-load", "beside, p99", device, &[("p", Some(CACHED), &[100.0, 119.0, 400.0])]),
        ];
        let found = verdicts(&run, "p99 on the fast tier beside a hammered slow one");
        assert_eq!(found, [("ext4 memory + 200-iops".to_owned(), Judgement::Met)]);
    }
}
