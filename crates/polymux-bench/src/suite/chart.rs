//! One chart for each workload: a bar for the median of each side, with a line from the smallest to the largest value.

use std::path::{Path, PathBuf};

use anyhow::Result;
use plotters::chart::ChartBuilder;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, TRANSPARENT, WHITE};

use super::outcome::{Measurement, Outcome, SideValues};
use super::table;
use crate::svg::{self, Area, Drawn, FONT};

const WIDTH: u32 = 960;
const ROW_HEIGHT: u32 = 20;
/// Above, and below for the axis.
const FRAME_HEIGHT: u32 = 110;
const LABEL_WIDTH: u32 = 200;

const NATIVE: RGBColor = RGBColor(120, 120, 120);
const MERGERFS: [RGBColor; 2] = [RGBColor(224, 160, 80), RGBColor(200, 110, 30)];
const POLYMUX: [RGBColor; 4] =
    [RGBColor(40, 100, 190), RGBColor(100, 150, 220), RGBColor(20, 130, 130), RGBColor(110, 190, 180)];

/// One line of a chart.
enum Row<'a> {
    /// A figure on a ground, above its sides.
    Heading(String),
    /// A side, and which of its family it is.
    Side(&'a SideValues, usize),
}

/// Draws all charts of an outcome and returns each workload with the file of its chart.
///
/// # Errors
/// Where a file cannot be written.
pub fn draw_all(outcome: &Outcome, directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let groups = outcome.measurements.chunk_by(|one, other| one.workload == other.workload);
    groups
        .map(|measurements| {
            let workload = &measurements[0].workload;
            let path = directory.join(format!("{workload}.svg"));
            svg::write(&path, &draw(measurements)?)?;
            Ok((workload.clone(), path))
        })
        .collect()
}

fn rows(measurements: &[Measurement]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for measurement in measurements {
        rows.push(Row::Heading(format!("{}, {} {}", measurement.figure, measurement.file_system, measurement.device)));
        let (mut peers, mut routes) = (0, 0);
        for side in &measurement.sides {
            let next = if side.route.is_some() { &mut routes } else { &mut peers };
            rows.push(Row::Side(side, *next));
            *next += usize::from(side.side != "native");
        }
    }
    rows
}

fn color(side: &SideValues, number: usize) -> RGBColor {
    match (side.route, side.side.as_str()) {
        (Some(_), _) => POLYMUX[number % POLYMUX.len()],
        (None, "native") => NATIVE,
        (None, _) => MERGERFS[number % MERGERFS.len()],
    }
}

fn label(size: u32, horizontal: HPos) -> plotters::style::TextStyle<'static> {
    (FONT, size).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center))
}

/// The chart of one workload as SVG.
fn draw(measurements: &[Measurement]) -> Result<String> {
    let rows = rows(measurements);
    let count = u32::try_from(rows.len())?;
    let size = (WIDTH, count * ROW_HEIGHT + FRAME_HEIGHT);
    svg::picture(size, |area| draw_rows(area, &rows, &measurements[0]))
}

fn draw_rows(area: &Area<'_>, rows: &[Row], first: &Measurement) -> Drawn {
    area.fill(&WHITE)?;
    let largest = rows.iter().map(|row| if let Row::Side(side, _) = row { side.summary.max } else { 0.0 });
    // Space for the number beside the longest bar.
    let end = largest.fold(f64::MIN_POSITIVE, f64::max) * 1.15;
    let height = crate::statistics::count(rows.len());
    let unit = first.unit;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: {}", first.workload, unit.better()), (FONT, 18))
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(LABEL_WIDTH)
        .build_cartesian_2d(0.0..end, 0.0..height)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .disable_y_axis()
        .y_labels(0)
        .x_desc(format!("{} (bar: median; line: smallest to largest)", unit.symbol()))
        .x_label_formatter(&|value| table::number(*value))
        .label_style((FONT, 13))
        .draw()?;
    for (number, row) in rows.iter().enumerate() {
        let top = height - crate::statistics::count(number);
        let (left, middle) = chart.backend_coord(&(0.0, top - 0.5));
        match row {
            Row::Heading(text) => area.draw(&Text::new(text.clone(), (left + 4, middle), label(13, HPos::Left)))?,
            Row::Side(side, of_family) => {
                let summary = &side.summary;
                let bar = [(0.0, top - 0.85), (summary.median, top - 0.15)];
                chart.draw_series(std::iter::once(Rectangle::new(bar, color(side, *of_family).filled())))?;
                let line = |points: Vec<(f64, f64)>| PathElement::new(points, BLACK.stroke_width(1));
                let spread = [
                    line(vec![(summary.min, top - 0.5), (summary.max, top - 0.5)]),
                    line(vec![(summary.min, top - 0.7), (summary.min, top - 0.3)]),
                    line(vec![(summary.max, top - 0.7), (summary.max, top - 0.3)]),
                ];
                chart.draw_series(spread)?;
                area.draw(&Text::new(side.side.clone(), (left - 6, middle), label(13, HPos::Right)))?;
                let (right, _) = chart.backend_coord(&(summary.max.max(summary.median), top - 0.5));
                area.draw(&Text::new(table::number(summary.median), (right + 6, middle), label(12, HPos::Left)))?;
            }
        }
    }
    Ok(area.present()?)
}

#[cfg(test)]
mod tests {
    use super::super::figure::Unit;
    use super::*;

    #[test]
    fn a_chart_names_sides_units_and_medians() {
        let values = |name: &str, values: &[f64]| SideValues::new(name.to_owned(), None, values.to_vec(), None);
        let measurement = Measurement {
            workload: "write-4m".to_owned(),
            about: "about".to_owned(),
            ends_with: "fsync".to_owned(),
            figure: "write".to_owned(),
            unit: Unit::MegabytesPerSecond,
            file_system: "xfs".to_owned(),
            device: "120/120".to_owned(),
            sides: vec![values("native", &[118.0, 119.5, 120.0]), values("mergerfs fast", &[99.0, 101.0, 105.0])],
        };
        let svg = draw(&[measurement]).unwrap();
        for text in ["native", "mergerfs fast", "MB/s", "more is better", "write, xfs 120/120", "120", "101"] {
            assert!(svg.contains(text), "{text} is not in the chart:\n{svg}");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}
