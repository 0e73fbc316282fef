//! How many reads a second each side served, round by round, as a chart.

use std::path::Path;

use anyhow::Result;
use plotters::chart::ChartBuilder;
use plotters::coord::combinators::IntoLogRange;
use plotters::element::{Circle, PathElement, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, WHITE};

use crate::svg::{self, Area, Drawn, FONT};

const SIZE: (u32, u32) = (960, 420);
const COLORS: [RGBColor; 6] = [
    RGBColor(120, 120, 120),
    RGBColor(20, 130, 130),
    RGBColor(200, 110, 30),
    RGBColor(40, 100, 190),
    RGBColor(150, 60, 150),
    RGBColor(90, 90, 40),
];

/// Lowest and highest rate that the chart covers at least.
const RATES: (f64, f64) = (1000.0, 100_000.0);

/// Rates of one side, one for each round.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) rates: &'a [f64],
}

/// Draws a line for each side over rounds of `round_seconds`; an upright line stands after each `phase_rounds` of them.
///
/// # Errors
/// Where the file cannot be written.
pub(super) fn draw(
    path: &Path,
    title: &str,
    lines: &[Line<'_>],
    (round_seconds, phase_rounds): (usize, usize),
) -> Result<()> {
    svg::write(path, &svg::picture(SIZE, |area| draw_on(area, title, lines, (round_seconds, phase_rounds)))?)
}

fn draw_on(area: &Area<'_>, title: &str, lines: &[Line<'_>], (round_seconds, phase_rounds): (usize, usize)) -> Drawn {
    area.fill(&WHITE)?;
    let second = |rounds: usize| (rounds * round_seconds) as f64;
    let rounds = lines.iter().map(|line| line.rates.len()).max().unwrap_or(1);
    let rates = || lines.iter().flat_map(|line| line.rates).copied().filter(|rate| *rate > 0.0);
    let (bottom, top) = (rates().fold(RATES.0, f64::min), rates().fold(RATES.1, f64::max));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .right_y_label_area_size(130)
        .build_cartesian_2d(0.0..second(rounds), (bottom..top).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("seconds (upright line: other files are hot from here on)")
        .y_desc("reads a second")
        .label_style((FONT, 13))
        .draw()?;
    for change in (phase_rounds..rounds).step_by(phase_rounds.max(1)) {
        let upright = vec![(second(change), bottom), (second(change), top)];
        chart.draw_series(std::iter::once(PathElement::new(upright, BLACK.stroke_width(1))))?;
    }
    for (number, line) in lines.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let at = |(round, rate): (usize, &f64)| (second(round) + second(1) / 2.0, rate.max(bottom));
        let points: Vec<(f64, f64)> = line.rates.iter().enumerate().map(at).collect();
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        chart.draw_series(std::iter::once(PathElement::new(points, color.stroke_width(2))))?;
        let style = (FONT, 14).into_font().color(&color).pos(Pos::new(HPos::Left, VPos::Center));
        let place = (i32::try_from(SIZE.0)? - 130, 60 + i32::try_from(number)? * 18);
        area.draw(&Text::new(line.name.to_owned(), place, style))?;
    }
    Ok(area.present()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_side_and_takes_a_rate_of_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("charts/hot-set.svg");
        let lines =
            [Line { name: "disk", rates: &[3300.0; 4] }, Line { name: "polymux", rates: &[0.0, 900.0, 55_000.0] }];
        draw(&path, "reads of a hot set", &lines, (8, 2)).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in ["disk", "polymux", "reads a second", "reads of a hot set"] {
            assert!(svg.contains(text), "{text} is not in the chart:\n{svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
        draw(&directory.path().join("empty.svg"), "nothing", &[], (8, 0)).unwrap();
    }
}
