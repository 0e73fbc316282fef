//! `top` on a terminal.
//!
//! Invariant: everything fits 80 columns and 24 lines; longer text is cut, never wrapped.

use polymux_types::ByteSize;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::sample::{JobActivity, TierActivity, TopReport};
use super::text;
use crate::output;
use crate::status;

/// Columns of the bar that shows how full a tier is.
const BAR_WIDTH: u64 = 12;

/// Draws a report.
pub fn draw(frame: &mut Frame, report: &TopReport) {
    let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let waiting = text::waiting(report);
    let hits: Vec<Line> = text::device_hits(report).map(Line::from).into_iter().collect();
    // Where there is little space, moves take precedence over reasons.
    let waiting_count = waiting.len().min(4);
    let areas = Layout::vertical([
        lines(1),
        lines(report.tiers.len() + 2),
        lines(hits.len()),
        lines(report.drains.len()),
        Constraint::Min(3),
        lines(waiting_count),
        lines(2),
    ])
    .split(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let heading_style = if report.is_paused { bold.fg(Color::Yellow) } else { bold };
    frame.render_widget(Paragraph::new(text::heading(report)).style(heading_style), areas[0]);
    draw_tiers(frame, areas[1], &report.tiers);
    let drains: Vec<Line> = report.drains.iter().map(|drain| Line::from(status::drain_line(drain))).collect();
    frame.render_widget(Paragraph::new(hits), areas[2]);
    frame.render_widget(Paragraph::new(drains), areas[3]);
    draw_jobs(frame, areas[4], &report.running);
    let waiting: Vec<Line> = waiting.into_iter().take(waiting_count).map(Line::from).collect();
    frame.render_widget(Paragraph::new(waiting), areas[5]);
    let foot = vec![Line::from(text::counters(report)), Line::from("q quits")];
    frame.render_widget(Paragraph::new(foot), areas[6]);
}

fn heading(cells: &[&'static str]) -> Row<'static> {
    Row::new(cells.to_vec()).style(Style::new().add_modifier(Modifier::UNDERLINED))
}

fn draw_tiers(frame: &mut Frame, area: Rect, tiers: &[TierActivity]) {
    let rows = tiers.iter().map(|tier| {
        let state = text::state_of(tier);
        let colour = match state {
            "online" => Color::Green,
            "draining" => Color::Yellow,
            _ => Color::Red,
        };
        Row::new(vec![
            Cell::from(tier.name.clone()),
            Cell::from(Span::styled(state.to_owned(), Style::new().fg(colour))),
            Cell::from(format!("{}/s", ByteSize(tier.read_bytes_per_second))),
            Cell::from(format!("{}/s", ByteSize(tier.written_bytes_per_second))),
            Cell::from(text::hits(tier)),
            Cell::from(bar(tier)),
            Cell::from(format!("{} of {}", output::size(tier.used), output::size(tier.total))),
        ])
    });
    let widths = [10, 8, 11, 11, 5, 14, 21].map(Constraint::Max);
    let table = Table::new(rows, widths).header(heading(&["tier", "state", "read", "written", "hits", "full", "used"]));
    frame.render_widget(table, area);
}

/// How full a tier is; `|` stands at its marks.
fn bar(tier: &TierActivity) -> String {
    let Some(used) = text::fill_percent(tier.used, tier.total) else { return "-".to_owned() };
    let marks = [tier.low_mark, tier.high_mark].map(|mark| text::fill_percent(Some(mark), tier.total));
    let cell_of = |percent: u64| (percent * BAR_WIDTH / 100).min(BAR_WIDTH - 1);
    let marks: Vec<u64> = marks.into_iter().flatten().filter(|mark| *mark > 0).map(cell_of).collect();
    let cell = |index: u64| match (marks.contains(&index), index * 100 < used * BAR_WIDTH) {
        (true, _) => '|',
        (false, true) => '#',
        (false, false) => '-',
    };
    format!("[{}]", (0..BAR_WIDTH).map(cell).collect::<String>())
}

fn draw_jobs(frame: &mut Frame, area: Rect, jobs: &[JobActivity]) {
    let rows = jobs.iter().map(|activity| {
        let job = &activity.job;
        let done = text::fill_percent(Some(job.bytes_done), Some(job.bytes_total)).unwrap_or(0);
        Row::new(vec![
            text::direction(activity),
            job.reason.clone(),
            format!("{done} %"),
            text::rate_of(activity),
            text::remaining(activity),
            output::one_line(&text::file_of(activity)),
        ])
    });
    let widths = [
        Constraint::Max(12),
        Constraint::Max(9),
        Constraint::Max(5),
        Constraint::Max(12),
        Constraint::Max(11),
        Constraint::Fill(1),
    ];
    let table = Table::new(rows, widths).header(heading(&["move", "why", "done", "rate", "left", "file"]));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn drawn(report: &TopReport, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, report)).unwrap();
        let buffer = terminal.backend().buffer();
        (0..rows).map(|row| (0..columns).map(|column| buffer[(column, row)].symbol()).collect()).collect()
    }

    #[test]
    fn everything_that_matters_is_on_a_small_terminal() {
        let lines = drawn(&super::super::sample::tests::report(), 80, 24);
        let text = lines.join("\n");
        for needle in [
            "media on /media",
            "fast served 48 %",
            "draining",
            "10 MiB/s",
            "75 %",
            "off slow",
            "drain",
            "7 s",
            "films/a-r",
            "q quits",
        ] {
            assert!(text.contains(needle), "{needle} is not in:\n{text}");
        }
        let bar = lines.iter().find_map(|line| Some(&line[line.find('[')?..=line.find(']')?])).expect("there is a bar");
        assert_eq!(bar, "[#########||-]", "three quarters and marks at 80 and 90 %");
    }

    #[test]
    fn a_tiny_terminal_and_many_moves_are_no_failure() {
        let mut report = super::super::sample::tests::report();
        let job = report.running[0].clone();
        report.running = vec![job; 500];
        for (columns, rows) in [(80, 24), (20, 5), (1, 1), (300, 100)] {
            drawn(&report, columns, rows);
        }
    }
}
