//! A campaign of fault injection: `cargo xtask chaos`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use idem_tests::chaos::{self, CampaignConfig};

/// The live range under fault injection. Prints a ledger, and fails when an error happened or a
/// fault did not happen often enough.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    config: CampaignConfig,
}

fn main() -> Result<ExitCode> {
    let Arguments { config } = Arguments::parse();
    // Before the threads of the runtime.
    chaos::campaign::prepare()?;
    let mut worker = std::env::current_exe()?;
    worker.set_file_name("range-worker");
    worker
        .try_exists()
        .context("range-worker is built with this program")?;
    let Some(ledger) = chaos::run(&config, &worker)? else {
        eprintln!("a signal has ended the campaign before its ledger");
        return Ok(ExitCode::FAILURE);
    };
    println!("{ledger}");
    Ok(if ledger.is_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
