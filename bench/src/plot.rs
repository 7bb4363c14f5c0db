//! Draws the figures as pictures in SVG.

use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;

use super::report::{Curve, Figures, Line};

const OURS: RGBColor = RGBColor(0, 114, 178);
const THEIRS: RGBColor = RGBColor(230, 159, 0);
const MISSED: RGBColor = RGBColor(213, 94, 0);
const FONT: &str = "sans-serif";
/// The height of one bar with its space, in pixels.
const BAR: i32 = 26;
/// The left edge of the bars.
const LEFT: i32 = 620;
/// The length of a bar with the ratio 1.
const UNIT: f64 = 150.0;
/// Longer bars are cut.
const LONGEST: f64 = 2.6;

/// Draws `ratios.svg` with every ratio that has a target, and `long-run.svg` with the figures of
/// each minute of the long run.
pub fn draw(all: &[Figures], folder: &Path) -> Result<()> {
    ensure!(!all.is_empty(), "no part was measured yet");
    fs::create_dir_all(folder)?;
    let tables = all.iter().flat_map(|figures| &figures.tables);
    let lines: Vec<(&str, &Line)> = tables
        .flat_map(|table| {
            let title = table.title.trim().split(':').next().unwrap_or_default();
            let lines = table.lines.iter();
            lines
                .filter(|line| line.target.limit().is_some())
                .map(move |line| (title, line))
        })
        .collect();
    ratios(&lines, &folder.join("ratios.svg")).map_err(|error| anyhow!("{error}"))?;
    for figures in all.iter().filter(|figures| !figures.curves.is_empty()) {
        curves(&figures.curves, &folder.join("long-run.svg"))
            .map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}

/// Draws a bar for each ratio, and a mark at its target.
fn ratios(
    lines: &[(&str, &Line)],
    file: &Path,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let height = BAR * (lines.len() as i32 + 2);
    let root = SVGBackend::new(file, (1100, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: i32| (FONT, size).into_font().color(&BLACK);
    root.draw(&Text::new(
        "Ratio of idem to its baseline. The black mark is the target, and the grey line is 1.",
        (10, 8),
        text(15),
    ))?;
    let one = LEFT + UNIT as i32;
    root.draw(&PathElement::new(
        vec![(one, BAR), (one, height - BAR / 2)],
        RGBColor(190, 190, 190),
    ))?;
    for (row, (title, line)) in lines.iter().enumerate() {
        let top = BAR * (row as i32 + 1) + 6;
        let at = |ratio: f64| LEFT + (ratio.min(LONGEST) * UNIT) as i32;
        let color = match line.target.is_met_by(line.ratio) {
            true => OURS,
            false => MISSED,
        };
        root.draw(&Text::new(
            shortened(&format!("{title}: {}", line.what)),
            (10, top + 1),
            text(13),
        ))?;
        root.draw(&Rectangle::new(
            [(LEFT, top), (at(line.ratio), top + BAR - 12)],
            color.filled(),
        ))?;
        if let Some(limit) = line.target.limit() {
            root.draw(&PathElement::new(
                vec![(at(limit), top - 3), (at(limit), top + BAR - 9)],
                BLACK.stroke_width(2),
            ))?;
        }
        root.draw(&Text::new(
            format!("{:.2}x (target {})", line.ratio, line.target),
            (LEFT + (LONGEST * UNIT) as i32 + 10, top + 1),
            text(13),
        ))?;
    }
    root.present()?;
    Ok(())
}

/// Returns the text with at most as many characters as fit left of the bars.
fn shortened(text: &str) -> String {
    const FITS: usize = 92;
    match text.char_indices().nth(FITS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Draws a chart for each curve, one below the other.
fn curves(curves: &[Curve], file: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let root = SVGBackend::new(file, (900, 260 * curves.len() as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, curve) in root.split_evenly((curves.len(), 1)).iter().zip(curves) {
        let largest = curve.ours.iter().chain(&curve.theirs).copied();
        let largest = largest.fold(0.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .caption(&curve.name, (FONT, 16))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(70)
            .build_cartesian_2d(1..curve.ours.len().max(2), 0.0..largest)?;
        chart.configure_mesh().x_desc("minute").draw()?;
        for (name, values, color) in [
            ("idem", &curve.ours, OURS),
            ("hand-written", &curve.theirs, THEIRS),
        ] {
            let points = values.iter().enumerate().map(|(n, value)| (n + 1, *value));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    root.present()?;
    Ok(())
}
