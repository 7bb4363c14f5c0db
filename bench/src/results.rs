//! Keeps the figures of each part in a file, so that pages and pictures show parts of several runs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::options::Part;
use super::report::Figures;

/// The figures of a part, with what was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The name of the part on the command line.
    pub part: String,
    /// The version of idem.
    pub version: String,
    /// The day of the measurement in UTC, as `2026-01-31`.
    pub day: String,
    pub figures: Figures,
}

impl Kept {
    /// Returns the figures of the present version and day.
    fn now(part: &str, figures: Figures) -> Self {
        Self {
            part: part.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            day: OffsetDateTime::now_utc().date().to_string(),
            figures,
        }
    }
}

/// Reads the kept figures of all parts.
pub fn read(file: &Path) -> Result<Vec<Kept>> {
    let text = fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))
}

/// Replaces the kept figures of a part, or adds them.
pub fn save(file: &Path, part: Part, figures: &Figures) -> Result<()> {
    let part = part.to_possible_value().context("a part has no name")?;
    let new = Kept::now(part.get_name(), figures.clone());
    let mut all = if file.exists() {
        read(file)?
    } else {
        Vec::new()
    };
    match all.iter_mut().find(|kept| kept.part == new.part) {
        Some(kept) => *kept = new,
        None => all.push(new),
    }
    let text = serde_json::to_string_pretty(&all)? + "\n";
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
