//! Pictures as SVG text: the frame that all charts share.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};

/// Font of all labels.
pub const FONT: &str = "sans-serif";

/// Where a chart draws.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// How drawing ends.
pub type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// A picture of so many points, width and height.
///
/// # Errors
/// Whatever `draw` reports.
pub fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).map_err(|error| anyhow!("a chart cannot be drawn: {error}"))?;
    }
    Ok(svg)
}

/// Writes a picture to a file, whose directory is made where it is missing.
///
/// # Errors
/// Where the file cannot be written.
pub fn write(path: &Path, picture: &str) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(path, picture).with_context(|| path.display().to_string())
}
