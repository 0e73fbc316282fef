//! `polymux policy advise`: how the size of the fastest tier affects the reads that programs make.

use anyhow::Result;
use polymux_types::ByteSize;

use crate::cli::OutputFormat;
use crate::client;
use crate::output::{self, Table};
use crate::protocol::{AdviceReport, Answer, Request};
use polymux_config::registry::Registry;

/// Labels of the steps of a report.
const STEPS: [&str; 4] = ["half as large", "as it is", "twice as large", "four times as large"];

/// Percent of the reads by which a choice has to serve more for that to be worth a word: syncs and reads of several pages are counted in more
/// than one way.
const WORTH_A_WORD_PERCENT: u64 = 10;

/// Percent of the reads that a smaller tier has to serve to be called enough.
const ENOUGH_PERCENT: u64 = 95;

/// Reports the share of device reads that the fastest tier serves, and would serve with another size.
pub fn run(registry: &Registry, volume: &str, format: OutputFormat) -> Result<()> {
    let name = client::volume_name(registry, volume)?;
    let report = match client::ask_mounted(registry, &name, &Request::PolicyAdvise)? {
        Answer::Advice(report) => report,
        _ => return Err(client::answered_something_else(&name)),
    };
    match format {
        OutputFormat::Json => output::json(&report),
        OutputFormat::Text => output::line(&render(&report)),
    }
}

fn percent(share: Option<u64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{share} %"))
}

fn render(report: &AdviceReport) -> String {
    let tier = &report.tier;
    if report.reads == 0 {
        return "no small reads are known that a device served in the last ten minutes: memory answered, or nothing was read at random. \
                Files that the kernel reads itself are known of when they are closed; with one tier, `promotion = \"polite\"` or a policy that moves \
                nothing up at once, reads are not noted."
            .to_owned();
    }
    let mut lines = vec![
        format!(
            "small reads that devices served in about the last ten minutes: {}, of which `{tier}` served {}",
            report.reads,
            percent(report.served_percent)
        ),
        format!(
            "what was read more than a few times: {} in {} ranges of 2 MiB",
            ByteSize(report.range_bytes),
            report.ranges
        ),
    ];
    let mut table = Table::new(&[tier.as_str(), "room for files", "serves at best"]);
    for (name, step) in STEPS.iter().zip(&report.steps) {
        table.row(vec![(*name).to_owned(), ByteSize(step.room_bytes).to_string(), percent(step.served_percent)]);
    }
    lines.push(table.render("  "));
    lines.extend(conclusion(report));
    lines.join("\n")
}

/// The conclusion from the numbers, if there is one.
fn conclusion(report: &AdviceReport) -> Option<String> {
    let best = |step: usize| report.steps.get(step)?.served_percent;
    let (half, now, twice) = (best(0)?, best(1)?, best(2)?);
    let served = report.served_percent?;
    if served + WORTH_A_WORD_PERCENT <= now {
        return Some(format!(
            "`{tier}` as it is could serve another {} % of the reads: `polymux plan {}` tells what is about to move, `polymux explain FILE` why not",
            now - served,
            report.volume,
            tier = report.tier,
        ));
    }
    if now + WORTH_A_WORD_PERCENT <= twice {
        return Some(format!("twice the room would serve another {} % of the reads", twice - now));
    }
    (report.room_bytes > 0 && half >= ENOUGH_PERCENT).then(|| "half the room would do for this".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::AdviceStepReport;

    fn report(served: u64, best: [u64; 4]) -> AdviceReport {
        let step =
            |(index, percent)| AdviceStepReport { room_bytes: (1_u64 << 29) << index, served_percent: Some(percent) };
        AdviceReport {
            volume: "media".to_owned(),
            tier: "ssd".to_owned(),
            room_bytes: 1 << 30,
            reads: 12_345,
            served_percent: Some(served),
            ranges: 7,
            range_bytes: 14 << 20,
            steps: (0..).zip(best).map(step).collect(),
        }
    }

    #[test]
    fn advice_says_whether_room_or_moves_are_missing() {
        let text = render(&report(40, [50, 70, 90, 100]));
        for needle in [
            "12345",
            "served 40 %",
            "14 MiB in 7 ranges",
            "twice as large",
            "90 %",
            "`ssd` as it is could serve another 30 %",
        ] {
            assert!(text.contains(needle), "{needle} is not in:\n{text}");
        }
        assert!(
            render(&report(69, [50, 70, 90, 100])).ends_with("twice the room would serve another 20 % of the reads")
        );
        assert!(render(&report(100, [97, 100, 100, 100])).ends_with("half the room would do for this"));
        for nothing_to_say in [report(98, [80, 100, 100, 100]), report(3, [2, 4, 8, 16])] {
            let text = render(&nothing_to_say);
            assert!(text.trim_end().ends_with('%'), "{text}");
        }
    }

    #[test]
    fn without_reads_there_is_no_advice() {
        let none = AdviceReport { reads: 0, served_percent: None, ..report(0, [0; 4]) };
        assert!(render(&none).starts_with("no small reads are known"));
    }
}
