//! The program of one process. The demo and the campaigns of fault injection start these processes.

use std::{io::Read, process, thread};

use anyhow::Result;
use clap::Parser;

use super::run;
use crate::range::live::post::{Post, Role};

/// Runs one process of the shooting range over a real broker.
#[derive(Parser)]
struct Arguments {
    /// The role of the process
    #[arg(value_enum)]
    role: Role,
    #[command(flatten)]
    post: Post,
}

/// Parses the arguments of the process and runs its role.
pub async fn main() -> Result<()> {
    let Arguments { role, post } = Arguments::parse();
    // The warnings of the client library go to the log of the process.
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    end_with_owner();
    run(role, &post).await
}

/// Ends this process when its standard input is closed, which happens at the latest when the parent
/// process ends.
///
/// The parent-death signal of the kernel is not used, because the kernel sends it already when the
/// *thread* ends that started this process.
fn end_with_owner() {
    thread::spawn(|| {
        let mut nothing = [0];
        while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
        process::exit(70);
    });
}
