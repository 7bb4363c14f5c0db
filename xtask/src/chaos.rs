//! Runs a campaign of fault injection with its own servers, as root.

use anyhow::Result;

use crate::context::Context;
use crate::{build, setup, step};

/// Builds the extension and the programs, and runs a campaign. Fails when the ledger, which is the
/// report of the campaign, has an error or too few faults.
pub fn chaos(context: &Context, minutes: u32, arguments: &[String]) -> Result<()> {
    setup::setup(context)?;
    build::build(context)?;
    let mut programs = context.cargo([
        "build",
        "--package",
        "idem-chaos",
        "--bin",
        "chaos",
        "--bin",
        "chaos-worker",
    ]);
    programs.arg("--quiet");
    step::run(
        "building the campaign",
        programs,
        "run `cargo build -p idem-chaos` to see all errors of the compiler",
    )?;
    let mut campaign = context.cargo([
        "run",
        "--quiet",
        "--package",
        "idem-chaos",
        "--bin",
        "chaos",
        "--",
    ]);
    campaign.arg(format!("--minutes={minutes}")).args(arguments);
    step::show(campaign)
}
