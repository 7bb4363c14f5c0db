//! The shooting range over a real broker as a program: `cargo xtask demo --broker rabbitmq`.

use std::{
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Parser;
use idem_tests::range::live::{self, LiveConfig, Look};
use indicatif::{ProgressBar, ProgressStyle};

/// A shooting range over a real broker: producer, consumers and relays are killed again and again,
/// the broker and the database once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    config: LiveConfig,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let Arguments { config } = Arguments::parse();
    let mut program = std::env::current_exe()?;
    program.set_file_name("range-worker");
    program
        .try_exists()
        .context("range-worker is built with this program")?;

    eprintln!("{} and PostgreSQL are starting", config.broker.name());
    let mut display = Display::new();
    let report = live::run(&config, &program, |look| display.show(look)).await?;
    display.finish();
    println!("\n{report}");
    match (report.verdict.is_right(), config.unprotected) {
        (true, true) => println!(
            "This traffic was too kind to show a difference: raise --duplicates or --messages."
        ),
        (false, false) => {
            eprintln!("idem made errors: this must not be");
            return Ok(ExitCode::FAILURE);
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// A line that moves on a terminal, a line now and then anywhere else.
struct Display {
    bar: ProgressBar,
    on_terminal: bool,
    next: Instant,
    last: String,
}

impl Display {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{spinner} {wide_msg}");
        Self {
            bar: ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())),
            on_terminal: std::io::stderr().is_terminal(),
            next: Instant::now(),
            last: String::new(),
        }
    }

    fn show(&mut self, look: &Look) {
        self.last = Self::line(look);
        if self.on_terminal {
            self.bar.set_message(self.last.clone());
            self.bar.tick();
        } else if Instant::now() >= self.next {
            eprintln!("{}", self.last);
            self.next = Instant::now() + Duration::from_secs(2);
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
        eprintln!("{}", self.last);
    }

    fn line(look: &Look) -> String {
        let Look {
            sent,
            progress,
            kills,
            crashes,
        } = look;
        format!(
            "{sent:>6} sent {:>6} handled {:>6} facts {kills:>4} killed {crashes} crashes {:>4} contradictions",
            progress.handled, progress.heard, progress.contradictions,
        )
    }
}
