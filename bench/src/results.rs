//! Keeps the figures of each part in a file, so that pictures can show parts of several runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::options::Part;
use super::report::Figures;

/// Replaces the kept figures of a part.
pub fn save(folder: &Path, part: Part, figures: &Figures) -> Result<()> {
    fs::create_dir_all(folder)?;
    let file = file_of(folder, part)?;
    fs::write(&file, serde_json::to_string_pretty(figures)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the kept figures of all parts, in the order of the parts.
pub fn all(folder: &Path) -> Result<Vec<Figures>> {
    let mut kept = Vec::new();
    for part in Part::value_variants() {
        let file = file_of(folder, *part)?;
        if file.exists() {
            let text = fs::read_to_string(&file)?;
            let figures = serde_json::from_str(&text);
            kept.push(figures.with_context(|| format!("cannot read {}", file.display()))?);
        }
    }
    Ok(kept)
}

fn file_of(folder: &Path, part: Part) -> Result<PathBuf> {
    let name = part.to_possible_value().context("a part has no name")?;
    Ok(folder.join(format!("{}.json", name.get_name())))
}
