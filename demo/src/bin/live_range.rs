//! The program that runs the shooting range over a real broker:
//! `cargo xtask demo --broker rabbitmq`.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Parser;
use idem_demo::range::live::{self, LiveConfig};

/// The time between two lines of progress.
const NEXT_LINE: Duration = Duration::from_secs(2);

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
    let mut next = Instant::now();
    let report = live::run(&config, &program, |look| {
        if Instant::now() >= next {
            eprintln!("{look}");
            next = Instant::now() + NEXT_LINE;
        }
    })
    .await?;
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
