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
    work::run(role, &post).await
}
