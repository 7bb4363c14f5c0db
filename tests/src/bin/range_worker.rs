//! One process of the range over a broker. `live-range` and `chaos` start these processes.

use anyhow::Result;
use clap::Parser;
use idem_tests::range::live::{Post, Role, work};

/// Runs one process of the shooting range over a real broker.
#[derive(Parser)]
struct Arguments {
    /// The role of the process
    #[arg(value_enum)]
    role: Role,
    #[command(flatten)]
    post: Post,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { role, post } = Arguments::parse();
    // The warnings of the client library go to the log of the process.
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    work::run(role, &post).await
}
