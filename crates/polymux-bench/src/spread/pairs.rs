//! One policy against another on workloads that both should do alike, by interleaved pairs.
//!
//! Method:
//! * One volume on devices without limits, mounted with the policy `hot-cold` as it is, and with the policy and the options that are
//!   measured, in turn; which of them begins changes.
//! * Judged is the upper end of the 95 % confidence interval of the median ratio: a loss of 5 % is excluded. It is the interval of ranks,
//!   because single turns take half a second longer, on either side, whenever the host writes something back. The mean stands beside it.

use std::time::Instant;

use anyhow::{Context, Result};

use super::SpreadArguments;
use super::stand::Stand;
use super::volume::{Settings, Volume};
use crate::report::{Cell, Report, Section};
use crate::statistics::{Interval, RATIO_EXCLUDED, Spread};

/// The policy to compare with.
const OTHER: &str = "hot-cold";

/// The figures of each turn, by name; each is a time in milliseconds.
pub struct Figures<'a> {
    /// The measured files, for the title.
    pub title: &'a str,
    /// Names.
    pub names: &'a [&'static str],
}

/// Measures pairs. `once` starts the volume, and stops it.
///
/// # Errors
/// Whatever the devices, the program or the file systems report.
pub fn measure(
    stand: &Stand,
    figures: &Figures,
    report: &mut Report,
    mut once: impl FnMut(&mut Volume) -> Result<Vec<f64>>,
) -> Result<()> {
    let arguments = stand.arguments;
    let policies = [OTHER, arguments.policy.as_str()];
    let options = [String::new(), arguments.options.join("\n")];
    // Made by the program that has both policies.
    let mut volume = stand.volume_with(&Settings { policy: &arguments.policy, ..Settings::default() })?;
    let mut found: [Vec<Vec<f64>>; 2] = [Vec::new(), Vec::new()];
    // The first time is not measured: programs and their input are read into memory.
    for pair in 0..=arguments.pairs {
        for turn in 0..policies.len() {
            let side = (usize::from(pair) + turn) % policies.len();
            volume.set_policy(policies[side])?;
            volume.set_options(&options[side])?;
            let times = once(&mut volume).context(policies[side].to_owned())?;
            if pair > 0 {
                found[side].push(times);
            }
        }
    }
    report.add(table(stand, figures, &found));
    Ok(())
}

/// Milliseconds since a moment.
#[must_use]
pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The measured policy and options, in words.
fn name_of(arguments: &SpreadArguments) -> String {
    let options = arguments.options.iter().map(|option| format!(", {option}"));
    arguments.policy.clone() + &options.collect::<String>()
}

fn table(stand: &Stand, figures: &Figures, found: &[Vec<Vec<f64>>; 2]) -> Section {
    let names = [OTHER.to_owned(), name_of(stand.arguments)];
    let title = format!("{}, devices without limits, {} pairs", figures.title, stand.arguments.pairs);
    let columns = [
        "figure",
        "policy",
        "ms, median",
        "ms, min to max",
        "mean ratio, 95 %",
        "median ratio",
        "95 % from",
        "to",
        "to exclude",
        "met",
    ];
    let mut section = Section::new(stand.title(&title), &columns);
    for (at, figure) in figures.names.iter().enumerate() {
        let values = |side: usize| found[side].iter().map(|times| times[at]).collect::<Vec<f64>>();
        let mean = Interval::of_ratios(&values(1), &values(0));
        let mean = format!("{:.3} ({:.3} to {:.3})", mean.middle, mean.low, mean.high);
        let ratio = Interval::of_ratios_by_rank(&values(1), &values(0));
        for (side, name) in names.iter().enumerate() {
            let times = Spread::of(&values(side));
            let of_ours = |number: f64| Cell::optional((side == 1).then_some(number), 3);
            section.row(vec![
                (*figure).into(),
                name.clone().into(),
                Cell::Number(times.median, 1),
                times.range(1).into(),
                if side == 0 { Cell::Empty } else { mean.clone().into() },
                of_ours(ratio.middle),
                of_ours(ratio.low),
                of_ours(ratio.high),
                of_ours(RATIO_EXCLUDED),
                if side == 0 { Cell::Empty } else { if ratio.high < RATIO_EXCLUDED { "yes" } else { "no" }.into() },
            ]);
        }
    }
    section.note(
        "Ratios of pairs, in which one policy comes right after the other: their geometric mean with its interval, and their median \
         (Hodges-Lehmann) with the interval of the signed-rank test, which is judged.",
    );
    section
}
