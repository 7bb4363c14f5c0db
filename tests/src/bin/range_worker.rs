//! One process of the range over a broker; `live-range` starts them.

use anyhow::Result;
use clap::Parser;
use idem_tests::range::live::{Post, Role, work};

/// One process of the shooting range over a real broker.
#[derive(Parser)]
struct Arguments {
    /// What it does
    #[arg(value_enum)]
    role: Role,
    #[command(flatten)]
    post: Post,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { role, post } = Arguments::parse();
    // What its clients warn of is in its log.
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    work::run(role, &post).await
}
