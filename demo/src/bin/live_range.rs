//! The program that runs the shooting range over a real broker:
//! `cargo xtask demo --broker rabbitmq`.

use std::{
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Parser;
use idem_demo::range::live::{self, LiveConfig, Look};
use indicatif::{ProgressBar, ProgressStyle};

/// Runs the shooting range over a real broker. The producer, the consumers and the relays are
/// killed repeatedly, the broker and the database once each.
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
    ensure!(
        program.exists(),
        "cannot find {}, which is built with this program",
        program.display()
    );

    eprintln!("starting {} and PostgreSQL", config.broker.name());
    let mut display = Display::new();
    let report = live::run(&config, &program, |look| display.show(look)).await?;
    display.finish();
    println!("\n{report}");
    match (report.verdict.is_right(), config.unprotected) {
        (true, true) => println!(
            "This run had too few faults to show a difference. Raise --duplicates or --messages."
        ),
        (false, false) => {
            eprintln!("idem made errors, which is a bug in idem");
            return Ok(ExitCode::FAILURE);
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of a run: one line that is updated in place on a terminal, and otherwise a
/// new line every two seconds.
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
            "{sent:>6} sent {:>6} handled {:>6} facts {kills:>4} killed {crashes} crashes \
             {:>4} contradictions",
            progress.handled, progress.heard, progress.contradictions,
        )
    }
}
