//! A table that is redrawn in place on a terminal, with a bar for each contestant.

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// The style of a row. The texts of the rows begin at the column [`INDENT`].
const ROW: &str = "  {prefix:15} [{bar:20.cyan}] {wide_msg}";

/// The columns before the text of a row: two spaces, the name, the bar with its brackets and the
/// spaces between them.
const INDENT: usize = 2 + 15 + 1 + 22 + 1;

/// The position of a full bar.
const FULL: u64 = 1_000;

/// The table. Without a terminal it draws nothing, and the caller prints lines instead.
///
/// The bars are ASCII, because a terminal may not have a UTF-8 locale. Colours follow `NO_COLOR`.
pub struct Table {
    bars: MultiProgress,
    title: ProgressBar,
    headings: ProgressBar,
    rows: Vec<ProgressBar>,
}

impl Table {
    /// Creates a table on the standard error with a row for each name.
    pub fn new(headings: &str, names: &[&'static str]) -> Result<Self> {
        let bars = MultiProgress::new();
        let text = ProgressStyle::with_template("{wide_msg}")?;
        let row = ProgressStyle::with_template(ROW)?.progress_chars("=> ");
        let add = |length, style: &ProgressStyle| {
            bars.add(ProgressBar::new(length)).with_style(style.clone())
        };
        let title = add(1, &text);
        let heading_line = add(1, &text).with_message(format!("{:INDENT$}{headings}", ""));
        let rows = names
            .iter()
            .map(|name| add(FULL, &row).with_prefix(*name))
            .collect();
        Ok(Self {
            bars,
            title,
            headings: heading_line,
            rows,
        })
    }

    /// Returns whether there is a terminal on which the table is drawn.
    pub fn is_drawn(&self) -> bool {
        !self.bars.is_hidden()
    }

    /// Sets the title and draws the table.
    pub fn set_title(&self, title: String) {
        self.title.set_message(title);
        self.headings.tick();
        for row in &self.rows {
            row.tick();
        }
    }

    /// Sets the bar of a row, as a share from 0 to 1, and its text.
    pub fn set_row(&self, index: usize, share: f64, text: String) {
        if let Some(row) = self.rows.get(index) {
            row.set_position((share.clamp(0.0, 1.0) * FULL as f64) as u64);
            row.set_message(text);
        }
    }

    /// Removes the table from the screen. It is not drawn again.
    pub fn close(&self) {
        for bar in self.rows.iter().chain([&self.headings, &self.title]) {
            bar.finish_and_clear();
        }
        // Ignore the error: the terminal may have been closed.
        let _ = self.bars.clear();
    }
}
