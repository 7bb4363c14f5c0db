//! The program of one process. The demo and the campaigns of fault injection start these processes.

use anyhow::Result;
use clap::Parser;

use super::{Post, Role, run};

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
///
/// # Errors
/// Returns the error that ended the role.
pub async fn main() -> Result<()> {
    let Arguments { role, post } = Arguments::parse();
    // The warnings of the client library go to the log of the process.
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    run(role, &post).await
}
