//! Draws the figures as pictures in SVG.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;

use super::report::{Curve, Line};
use super::results::Kept;

const OURS: RGBColor = RGBColor(0, 114, 178);
const THEIRS: RGBColor = RGBColor(230, 159, 0);
const MISSED: RGBColor = RGBColor(213, 94, 0);
const FONT: &str = "sans-serif";
/// The height of one bar with its space, in pixels.
const BAR: i32 = 26;
/// The height of the two lines above the bars.
const HEAD: i32 = 2 * BAR;
/// The left edge of the bars.
const LEFT: i32 = 620;
/// The length of a bar with the ratio 1.
const UNIT: f64 = 150.0;
/// Longer bars are cut.
const LONGEST: f64 = 2.6;

/// Draws `ratios.svg` with every ratio that has a target, and for each part with curves a picture
/// with the name of the part.
pub fn draw(all: &[Kept], folder: &Path) -> Result<()> {
    ensure!(!all.is_empty(), "no part was measured yet");
    fs::create_dir_all(folder)?;
    let tables = all.iter().flat_map(|kept| &kept.figures.tables);
    let lines: Vec<(&str, &Line)> = tables
        .flat_map(|table| {
            let title = table.title.trim().split(':').next().unwrap_or_default();
            let lines = table.lines.iter();
            lines
                .filter(|line| line.target.limit().is_some())
                .map(move |line| (title, line))
        })
        .collect();
    let file = folder.join("ratios.svg");
    ratios(&what_was_measured(all), &lines, &file).map_err(|error| anyhow!("{error}"))?;
    for kept in all.iter().filter(|kept| !kept.figures.curves.is_empty()) {
        let measured = what_was_measured(std::slice::from_ref(kept));
        let title = format!("{} ({measured})", kept.part);
        let file = folder.join(format!("{}.svg", kept.part));
        curves(&title, &kept.figures.curves, &file).map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}

/// Returns which versions were measured, and when.
fn what_was_measured(all: &[Kept]) -> String {
    let versions: BTreeSet<_> = all.iter().map(|kept| kept.version.as_str()).collect();
    let versions = Vec::from_iter(versions).join(", ");
    let days: BTreeSet<_> = all.iter().map(|kept| kept.day.as_str()).collect();
    let days = match (days.first(), days.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (first, _) => first.copied().unwrap_or_default().to_owned(),
    };
    format!("idem {versions}, measured {days}")
}

/// Draws a bar for each ratio, and a mark at its target.
fn ratios(
    measured: &str,
    lines: &[(&str, &Line)],
    file: &Path,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let height = HEAD + BAR * (lines.len() as i32 + 1);
    let root = SVGBackend::new(file, (1100, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: i32| (FONT, size).into_font().color(&BLACK);
    root.draw(&Text::new(
        format!("Ratio of idem to its baseline ({measured})"),
        (10, 8),
        text(15),
    ))?;
    root.draw(&Text::new(
        "Blue: the target is met. Red: it is missed. Black mark: the target. Grey line: 1.",
        (10, 8 + BAR),
        text(13),
    ))?;
    let one = LEFT + UNIT as i32;
    root.draw(&PathElement::new(
        vec![(one, HEAD), (one, height - BAR / 2)],
        RGBColor(190, 190, 190),
    ))?;
    for (row, (title, line)) in lines.iter().enumerate() {
        let top = HEAD + BAR * row as i32 + 6;
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
fn curves(
    title: &str,
    curves: &[Curve],
    file: &Path,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let height = HEAD as u32 + 260 * curves.len() as u32;
    let root = SVGBackend::new(file, (900, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, (FONT, 18))?;
    for (area, curve) in root.split_evenly((curves.len(), 1)).iter().zip(curves) {
        let first = curve.at.first().copied().unwrap_or_default();
        let last = curve.at.last().copied().unwrap_or(first + 1.0);
        let largest = curve.ours.iter().chain(&curve.theirs).copied();
        let largest = largest.fold(0.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .caption(&curve.name, (FONT, 16))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(70)
            .build_cartesian_2d(first..last, 0.0..largest)?;
        chart.configure_mesh().x_desc(&curve.axis).draw()?;
        for (name, values, color) in [
            ("idem", &curve.ours, OURS),
            ("hand-written", &curve.theirs, THEIRS),
        ] {
            let points = curve.at.iter().copied().zip(values.iter().copied());
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

#[cfg(test)]
mod tests {
    use super::super::report::{Figures, Table, Target};
    use super::*;

    fn kept(day: &str) -> Kept {
        let mut table = Table::new("storage: bytes", ["idem", "hand-written"]);
        table.pair("on disk", 1.0, 2.0, Target::AtMost(0.6));
        Kept {
            part: "storage".to_owned(),
            version: "0.3.0".to_owned(),
            day: day.to_owned(),
            figures: Figures::from(vec![table]),
        }
    }

    #[test]
    fn picture_has_the_versions_and_days_of_its_figures() {
        let folder = std::env::temp_dir().join(format!("idem-pictures-{}", std::process::id()));
        draw(&[kept("2026-11-26"), kept("2026-11-25")], &folder).unwrap();
        let picture = fs::read_to_string(folder.join("ratios.svg")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        for text in [
            "idem 0.3.0, measured 2026-11-25 to 2026-11-26",
            "storage: on disk",
            "0.50x (target &lt;= 0.60x)",
        ] {
            assert!(picture.contains(text), "{text}: {picture}");
        }
    }
}
