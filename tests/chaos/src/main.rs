//! The program that runs a fault injection campaign: `cargo xtask chaos`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use idem_chaos::{self as chaos, CampaignConfig};

/// Runs the live range under fault injection and prints a ledger. Fails when an error happened or
/// when a fault did not happen often enough.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    config: CampaignConfig,
}

fn main() -> Result<ExitCode> {
    let Arguments { config } = Arguments::parse();
    // This must come before any thread is started: only threads that start later are in the new
    // mount namespace.
    chaos::disk::unshare_mounts()?;
    let mut worker = std::env::current_exe()?;
    worker.set_file_name("chaos-worker");
    ensure!(
        worker.exists(),
        "cannot find {}, which is built with this program",
        worker.display()
    );
    let Some(ledger) = chaos::run(&config, &worker)? else {
        eprintln!("a signal ended the campaign, so there is no ledger");
        return Ok(ExitCode::FAILURE);
    };
    println!("{ledger}");
    Ok(if ledger.is_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
