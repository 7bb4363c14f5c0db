//! The program of the demo. `cargo xtask demo` starts it, and it can also run with any database
//! that has the extension.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use idem_demo::{self as demo, Options};

/// Shows the errors of three kinds of handlers under the same faulty traffic: handlers without
/// protection, handlers that are idempotent by id, and handlers that use idem. Then measures what
/// protection costs.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let Arguments { options } = Arguments::parse();
    if demo::run(&options).await? {
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!("idem made errors, which is a bug in idem");
        Ok(ExitCode::FAILURE)
    }
}
