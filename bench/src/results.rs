//! Keeps the figures of each part in a file, so that pictures can show parts of several runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::options::Part;
use super::report::Figures;

/// The figures of a part, with what was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The version of idem.
    pub version: String,
    /// The day of the measurement in UTC, as `2026-01-31`.
    pub day: String,
    pub figures: Figures,
}

impl Kept {
    /// Returns the figures of the present version and day.
    fn now(figures: Figures) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            day: OffsetDateTime::now_utc().date().to_string(),
            figures,
        }
    }
}

/// Replaces the kept figures of a part.
pub fn save(folder: &Path, part: Part, figures: &Figures) -> Result<()> {
    fs::create_dir_all(folder)?;
    let file = file_of(folder, part)?;
    let kept = Kept::now(figures.clone());
    fs::write(&file, serde_json::to_string_pretty(&kept)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the kept figures of all parts, in the order of the parts.
pub fn all(folder: &Path) -> Result<Vec<Kept>> {
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
