//! The traffic of each device over time, as a chart.

use std::path::Path;

use anyhow::Result;
use plotters::chart::ChartBuilder;
use plotters::element::{PathElement, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, TRANSPARENT, WHITE};

use super::convergence::Course;
use crate::svg::{self, Area, Drawn, FONT};
use crate::throttled::Profile;

const SIZE: (u32, u32) = (960, 420);
const COLORS: [RGBColor; 3] = [RGBColor(40, 100, 190), RGBColor(200, 110, 30), RGBColor(20, 130, 130)];
const SUM: RGBColor = RGBColor(90, 90, 90);

/// Seconds over which a point of a line is taken: the kernel's throttle works in slices of 100 ms.
const POINT_SECONDS: f64 = 0.3;

/// Draws a course.
///
/// # Errors
/// Where the file cannot be written.
pub fn draw(path: &Path, title: &str, profiles: &[Profile], course: &Course) -> Result<()> {
    let names: Vec<String> = profiles.iter().map(|profile| format!("device {}", profile.name)).collect();
    svg::write(path, &svg::picture(SIZE, |area| draw_on(area, title, &names, course))?)
}

/// Lines of each device and of their sum: seconds and MB/s.
fn lines(course: &Course, devices: usize) -> Vec<Vec<(f64, f64)>> {
    let mut lines = vec![Vec::new(); devices + 1];
    for sample in course.series.0.iter().skip(1) {
        let rates = course.series.rates((sample.second - POINT_SECONDS).max(0.0), sample.second);
        for (line, rate) in lines.iter_mut().zip(&rates) {
            line.push((sample.second, rate / 1e6));
        }
        lines[devices].push((sample.second, rates.iter().sum::<f64>() / 1e6));
    }
    lines
}

fn draw_on(area: &Area<'_>, title: &str, names: &[String], course: &Course) -> Drawn {
    area.fill(&WHITE)?;
    let lines = lines(course, names.len());
    let top = lines.iter().flatten().map(|(_, rate)| *rate).fold(1.0, f64::max) * 1.1;
    let end = course.borders.last().copied().unwrap_or(1.0);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("seconds (upright lines: the fastest device is cut to a tenth, and restored)")
        .y_desc("MB/s")
        .label_style((FONT, 13))
        .draw()?;
    let changes = course.borders.iter().skip(1).take(course.borders.len().saturating_sub(2));
    for change in changes {
        chart.draw_series(std::iter::once(PathElement::new(
            vec![(*change, 0.0), (*change, top)],
            BLACK.stroke_width(1),
        )))?;
    }
    let labels = names.iter().map(String::as_str).chain(["all"]);
    for (number, (line, name)) in lines.into_iter().zip(labels).enumerate() {
        let color = COLORS.get(number).filter(|_| number < names.len()).copied().unwrap_or(SUM);
        chart.draw_series(std::iter::once(PathElement::new(line, color.stroke_width(2))))?;
        let style = (FONT, 14).into_font().color(&color).pos(Pos::new(HPos::Left, VPos::Center));
        let down = i32::try_from(number)? * 18;
        area.draw(&Text::new(name.to_owned(), (80, 50 + down), style))?;
    }
    Ok(area.present()?)
}

#[cfg(test)]
mod tests {
    use super::super::series::{Sample, Series};
    use super::*;
    use crate::throttled::{DISK_LIKE, NVME_LIKE};

    #[test]
    fn a_chart_has_a_line_for_each_device_and_for_all_of_them() {
        let samples =
            (0..40_u64).map(|at| Sample { second: at as f64 / 10.0, bytes: vec![at * 12_000_000, at * 5_600_000] });
        let course = Course { series: Series(samples.collect()), borders: vec![0.0, 1.0, 2.0, 3.9] };
        let found = lines(&course, 2);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [39, 39, 39]);
        assert!((found[0][20].1 - 120.0).abs() < 1e-6 && (found[2][20].1 - 176.0).abs() < 1e-6);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("charts/course.svg");
        draw(&path, "1 writers", &[NVME_LIKE, DISK_LIKE], &course).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in ["device nvme", "device hdd", "all", "MB/s", "seconds", "1 writers"] {
            assert!(svg.contains(text), "{text} is not in the chart:\n{svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
