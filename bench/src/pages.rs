//! The kept figures in README.md and docs/benchmarks.md. A test compares them with the pages.

use std::fs;

use anyhow::{Context, Result};
use idem_cluster::workspace_root;

use super::process::line_name;
use super::protection::Contestant;
use super::report::Table;
use super::results::Kept;

/// A page, and what stands in it between its two marks.
type Page = (&'static str, fn(&[Kept]) -> Result<String>);

const PAGES: [Page; 2] = [("README.md", price), ("docs/benchmarks.md", table)];

/// Writes the kept figures into the pages.
pub fn write(kept: &[Kept]) -> Result<()> {
    for page in PAGES {
        fs::write(workspace_root().join(page.0), written(page, kept)?)?;
    }
    Ok(())
}

/// Returns the text of a page with the kept figures.
fn written((file, content): Page, kept: &[Kept]) -> Result<String> {
    const START: &str = "<!-- cargo xtask bench -- --write -->\n";
    const END: &str = "<!-- end -->\n";
    let text = fs::read_to_string(workspace_root().join(file))?;
    let parts = text.split_once(START).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.with_context(|| format!("{file} has no marks"))?;
    Ok(format!("{before}{START}{}{END}{after}", content(kept)?))
}

/// Returns the price of a protected message in one line.
fn price(kept: &[Kept]) -> Result<String> {
    let process = kept.iter().find(|kept| kept.part == "process");
    let process = process.context("process was not measured")?;
    let lines = process.figures.tables.iter().flat_map(|table| &table.lines);
    // A message takes more time where the ratio of the rates is smaller.
    let time = |outgoing, baseline| {
        let name = line_name("on", outgoing, baseline);
        let line = lines.clone().find(|line| line.what == name);
        line.map(|line| format!("{:.2} times", 1.0 / line.ratio))
    };
    let against = |baseline| time(false, baseline).context("process has no such line");
    let outbox = time(true, Contestant::ByHand);
    let outbox = outbox.map(|time| format!("; with an effect, {time} that with inbox and outbox"));
    Ok(format!(
        "A message in `process()` takes {} the time without protection, and {} that with a\n\
         hand-written inbox{} (idem {}).\n",
        against(Contestant::BusinessAlone)?,
        against(Contestant::ByHand)?,
        outbox.unwrap_or_default(),
        process.version
    ))
}

/// Returns the table of all kept figures.
fn table(kept: &[Kept]) -> Result<String> {
    let mut text = String::from(
        "\n| measurement | idem | compared with | ratio | target | |\n|---|---|---|---|---|---|\n",
    );
    let tables = kept.iter().flat_map(|kept| &kept.figures.tables);
    text.extend(tables.map(Table::markdown));
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::results;
    use super::*;

    fn recorded() -> Vec<Kept> {
        results::read(&workspace_root().join("bench/results.json")).unwrap()
    }

    /// README.md and docs/benchmarks.md have the figures of bench/results.json.
    #[test]
    fn pages_have_the_kept_figures() {
        for page in PAGES {
            let text = fs::read_to_string(workspace_root().join(page.0)).unwrap();
            assert!(
                text == written(page, &recorded()).unwrap(),
                "{} differs from bench/results.json: run `cargo xtask bench -- --write`",
                page.0
            );
        }
    }

    /// The price has the times of the lines, which are the inverse of the ratios of the rates.
    #[test]
    fn price_is_the_time_of_a_message() {
        let mut all = recorded();
        let process = all.iter_mut().find(|kept| kept.part == "process").unwrap();
        let table = &mut process.figures.tables[0];
        table.lines.clear();
        for (outgoing, baseline, rate) in [
            (false, Contestant::BusinessAlone, 80.0),
            (false, Contestant::ByHand, 125.0),
            (true, Contestant::ByHand, 200.0),
        ] {
            let name = line_name("on", outgoing, baseline);
            table.pair(&name, rate, 100.0, crate::report::Target::None);
        }
        let price = price(&all).unwrap();
        for part in ["1.25 times the time", "0.80 times that", "0.50 times that"] {
            assert!(price.contains(part), "{part}: {price}");
        }
    }
}
