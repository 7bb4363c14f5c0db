//! The program that runs the shooting range. `cargo xtask demo` starts it, and it can also run with
//! any database that has the extension.

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use idem_tests::range::{self, Config, Watch};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

/// Runs the shooting range on an at-least-once transport. The same traffic goes to handlers without
/// protection, to handlers that are idempotent by id, and to handlers that use idem.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    config: Config,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let Arguments { config } = Arguments::parse();
    let report = range::run_watched(&config, Display::show).await?;
    println!("\n{report}");
    if !report.idem_is_right() {
        eprintln!("idem made errors, which is a bug in idem");
        return Ok(ExitCode::FAILURE);
    }
    if !report.others_are_wrong() {
        println!(
            "This run had too few faults to show a difference. \
             Raise --duplicates, --kill or --shots."
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of one trial until it is dropped: one line that is updated in place on a
/// terminal, and otherwise a new line every two seconds.
struct Display {
    watch: Watch,
    bar: ProgressBar,
    ticker: JoinHandle<()>,
}

impl Display {
    fn show(watch: Watch) -> Self {
        let on_terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        let interval = Duration::from_millis(if on_terminal { 100 } else { 2_000 });
        let ticker = tokio::spawn({
            let (watch, bar) = (watch.clone(), bar.clone());
            async move {
                let mut tick = tokio::time::interval(interval);
                tick.tick().await;
                loop {
                    tick.tick().await;
                    if on_terminal {
                        bar.set_message(line(&watch));
                        bar.tick();
                    } else {
                        eprintln!("{}", line(&watch));
                    }
                }
            }
        });
        Self { watch, bar, ticker }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.ticker.abort();
        self.bar.finish_and_clear();
        eprintln!("{}", line(&self.watch));
    }
}

fn line(watch: &Watch) -> String {
    let counts = watch.counts();
    format!(
        "{:<8} {:>7} deliveries  {:>6} duplicates  {:>6} waiting  {:>5} contradictions",
        watch.system().name(),
        counts.deliveries,
        counts.duplicates,
        counts.waiting,
        watch.contradictions(),
    )
}
