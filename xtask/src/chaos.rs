//! A campaign of fault injection over servers of its own, as root.

use anyhow::Result;

use crate::context::Context;
use crate::{build, step};

/// Builds the extension and the programs, and runs a campaign. Fails when its ledger is red.
pub fn chaos(context: &Context, minutes: u32, arguments: &[String]) -> Result<()> {
    build::build(context)?;
    let mut programs = context.cargo([
        "build",
        "--package",
        "idem-tests",
        "--bin",
        "chaos",
        "--bin",
        "range-worker",
    ]);
    programs.arg("--quiet");
    step::run(
        "building the campaign",
        programs,
        "`cargo build -p idem-tests` shows the errors of the compiler in full",
    )?;
    let mut campaign = context.cargo([
        "run",
        "--quiet",
        "--package",
        "idem-tests",
        "--bin",
        "chaos",
        "--",
    ]);
    campaign.arg(format!("--minutes={minutes}")).args(arguments);
    step::show(campaign)
}
